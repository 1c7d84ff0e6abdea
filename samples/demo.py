"""What `make demo` runs: starts a server, asks about the sample media over HTTP, takes the server down.

    python samples/demo.py --checkpoint .demo/tiny

Exits with 0 when every question got an answer, else with 1, and shows the server's log.
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

from serve_apps.bench.server import ServerError, running_server

SAMPLES = Path(__file__).parent
QUESTIONS = (
    ("image", "pictures/street_sign.jpg", "What does the green sign say?"),
    ("image", "pictures/bar_chart.png", "Which day had the most visitors?"),
    ("image", "pictures/shapes.webp", "How many red circles are there?"),
    ("image", "pictures/evening.jpg", "Is it day or night?"),
    ("image", "pictures/leaf_sticker.png", "What is this, and which colour does it have?"),
    ("audio", "clips/phone_number.wav", "Which number is dialled?"),
    ("video", "clips/traffic_light.mp4", "When does the light turn green, and what changes in the sound?"),
)
STAGES = ("fetch_ms", "encode_ms", "queue_ms", "prefill_ms", "decode_ms", "ttft_ms", "total_ms")
MODALITIES = ("image", "video", "audio")
ANSWER_SECONDS = 120.0


class DemoError(Exception):
    """Something the demo needs did not work; the message says what."""


def ask(url: str, model: str, modality: str, path: Path, question: str) -> dict:
    """One chat completion about one picture, sound or video, as the server sent it."""
    # The kind of file is left open on purpose: the server goes by the bytes.
    data = base64.b64encode(path.read_bytes()).decode()
    part = {"type": f"{modality}_url", f"{modality}_url": {"url": f"data:;base64,{data}"}}
    messages = [{"role": "user", "content": [part, {"type": "text", "text": question}]}]
    body = {"model": model, "messages": messages, "max_tokens": 24, "temperature": 0}
    request = urllib.request.Request(
        f"{url}/v1/chat/completions", json.dumps(body).encode(), {"Content-Type": "application/json"}
    )
    try:
        with urllib.request.urlopen(request, timeout=ANSWER_SECONDS) as response:
            return json.load(response)
    except urllib.error.HTTPError as error:
        with error:
            raise DemoError(f"{path.name}: HTTP {error.code}: {error.read().decode()[:500]}") from None
    except OSError as error:
        raise DemoError(f"{path.name}: no answer: {error}") from None


def show(path: Path, question: str, answer: dict) -> None:
    usage, timings = answer["usage"], answer["timings"]
    details = usage["prompt_tokens_details"]
    media = [f"{details[f'{name}_tokens']} {name}" for name in MODALITIES if details[f"{name}_tokens"]]
    print(f"\n{path.name} ({path.stat().st_size / 1024:.0f} KB)")
    print(f"  question  {question}")
    print(f"  answer    {answer['choices'][0]['message']['content']!r}")
    print(f"  tokens    {usage['prompt_tokens']} in ({', '.join(media)}), {usage['completion_tokens']} out")
    stages = [f"{name.removesuffix('_ms')} {timings[name]:.1f}" for name in STAGES if name in timings]
    print(f"  ms        {', '.join(stages)}", flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--checkpoint", type=Path, required=True)
    args = parser.parse_args()
    # Else SIGTERM would end this process and leave the server running.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))

    print("The weights of this checkpoint are random, so the words of its answers are noise.")
    print("What is real: HTTP, fetch, decode, preprocess, vision and audio encoders, decoder, tokens.")
    print("\nstarting the server; this takes up to a minute", flush=True)
    with tempfile.TemporaryDirectory() as scratch:
        try:
            with running_server(args.checkpoint, Path(scratch) / "server.log") as server:
                print(f"server ready after {server.ready_s:.0f} s", flush=True)
                with urllib.request.urlopen(f"{server.url}/v1/models", timeout=ANSWER_SECONDS) as response:
                    model = json.load(response)["data"][0]["id"]
                for modality, name, question in QUESTIONS:
                    path = SAMPLES / name
                    show(path, question, ask(server.url, model, modality, path, question))
        except (DemoError, ServerError) as error:
            print(f"\ndemo failed: {error}", file=sys.stderr)
            return 1
    print(
        "\ndemo done: every question was answered, the server is down. The words are noise: random weights."
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
