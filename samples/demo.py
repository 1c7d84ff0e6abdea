"""What `make demo` runs: starts a server, asks about the sample media over HTTP, takes the server down.

    python -m samples.demo --checkpoint samples/demo_model

Every answer is compared with the right one. Exits with 0 when every question got an answer, right or wrong, else
with 1, and shows the server's log.
"""

from __future__ import annotations

import argparse
import base64
import json
import signal
import sys
import tempfile
import urllib.error
import urllib.request
from pathlib import Path

from samples.demo_training.score import is_right
from serve_apps.bench.server import ServerError, running_server

MEDIA = Path(__file__).with_name("demo_media")
"""questions.json there says what is asked about which files; `make_demo_media.py` makes them."""

STAGES = ("fetch_ms", "encode_ms", "queue_ms", "prefill_ms", "decode_ms", "ttft_ms", "total_ms")
MODALITIES = ("image", "video", "audio")
ANSWER_SECONDS = 120.0


class DemoError(Exception):
    """Something the demo needs did not work; the message says what."""


def ask(url: str, model: str, messages: list[dict]) -> dict:
    """The chat completion that goes on with the messages, as the server sent it."""
    body = {"model": model, "messages": messages, "max_tokens": 32, "temperature": 0}
    request = urllib.request.Request(
        f"{url}/v1/chat/completions", json.dumps(body).encode(), {"Content-Type": "application/json"}
    )
    try:
        with urllib.request.urlopen(request, timeout=ANSWER_SECONDS) as response:
            return json.load(response)
    except urllib.error.HTTPError as error:
        with error:
            raise DemoError(f"HTTP {error.code}: {error.read().decode()[:500]}") from None
    except OSError as error:
        raise DemoError(f"no answer: {error}") from None


def media_part(modality: str, path: Path) -> dict:
    """The file as a part of a message. Its kind is left open on purpose: the server goes by the bytes."""
    data = base64.b64encode(path.read_bytes()).decode()
    return {"type": f"{modality}_url", f"{modality}_url": {"url": f"data:;base64,{data}"}}


def hold(url: str, model: str, conversation: dict) -> list[bool]:
    """Asks one conversation's questions one after another and shows the answers; which of them are right."""
    files = [(file["modality"], MEDIA / file["path"]) for file in conversation["files"]]
    print()
    print(", ".join(f"{path.name} ({path.stat().st_size / 1024:.0f} KB)" for _, path in files) or "no media")
    messages: list[dict] = []
    right = []
    for number, turn in enumerate(conversation["turns"]):
        media = [media_part(*file) for file in files] if number == 0 else []
        messages.append({"role": "user", "content": [*media, {"type": "text", "text": turn["question"]}]})
        answer = ask(url, model, messages)
        said = answer["choices"][0]["message"]["content"]
        messages.append({"role": "assistant", "content": said})
        right.append(is_right(said, turn["answer"]))
        verdict = "right" if right[-1] else f"WRONG, it is {turn['answer']!r}"
        print(f"  question  {turn['question']}")
        print(f"  answer    {said}  ({verdict})")
        show_costs(answer)
    return right


def show_costs(answer: dict) -> None:
    usage, timings = answer["usage"], answer["timings"]
    details = usage["prompt_tokens_details"]
    kinds = [f"{details[f'{name}_tokens']} {name}" for name in MODALITIES if details[f"{name}_tokens"]]
    shown = f" ({', '.join(kinds)})" if kinds else ""
    print(f"  tokens    {usage['prompt_tokens']} in{shown}, {usage['completion_tokens']} out")
    stages = [f"{name.removesuffix('_ms')} {timings[name]:.1f}" for name in STAGES if name in timings]
    print(f"  ms        {', '.join(stages)}", flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--checkpoint", type=Path, required=True)
    args = parser.parse_args()
    # Else SIGTERM would end this process and leave the server running.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))

    conversations = json.loads((MEDIA / "questions.json").read_text())
    print("starting the server; this takes up to a minute", flush=True)
    right: list[bool] = []
    with tempfile.TemporaryDirectory() as scratch:
        try:
            with running_server(args.checkpoint, Path(scratch) / "server.log") as server:
                print(f"server ready after {server.ready_s:.0f} s", flush=True)
                with urllib.request.urlopen(f"{server.url}/v1/models", timeout=ANSWER_SECONDS) as response:
                    model = json.load(response)["data"][0]["id"]
                for conversation in conversations:
                    right += hold(server.url, model, conversation)
        except (DemoError, ServerError) as error:
            print(f"\ndemo failed: {error}", file=sys.stderr)
            return 1
    print(f"\ndemo done: {sum(right)} of {len(right)} answers are right, the server is down")
    return 0


if __name__ == "__main__":
    sys.exit(main())
