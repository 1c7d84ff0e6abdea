"""What `make demo` runs: starts a server, asks about the sample media over HTTP, takes the server down.

    python samples/demo.py --checkpoint .demo/tiny

Exits with 0 when every question got an answer, else with 1, and shows the server's log.
"""

from __future__ import annotations

import argparse
import base64
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

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
START_SECONDS = 240.0
STOP_SECONDS = 30.0
ANSWER_SECONDS = 120.0
NUM_LOG_LINES = 40


class DemoError(Exception):
    """Something the demo needs did not work; the message says what."""


@contextmanager
def server(checkpoint: Path, log: Path) -> Iterator[str]:
    """Runs `mmserve serve` on a free port; yields its URL once it answers, and always takes it down."""
    port = free_port()
    command = [Path(sys.executable).with_name("mmserve"), "serve", checkpoint]
    environment = {**os.environ, "RAY_USAGE_STATS_ENABLED": "0"}
    with log.open("wb") as output:
        process = subprocess.Popen(
            [*map(str, command), "--host", "127.0.0.1", "--port", str(port)],
            stdout=output,
            stderr=subprocess.STDOUT,
            stdin=subprocess.DEVNULL,
            env=environment,
            start_new_session=True,
        )
    try:
        url = f"http://127.0.0.1:{port}"
        wait_until_ready(process, url)
        yield url
    finally:
        stop(process)


def free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])


def wait_until_ready(process: subprocess.Popen[bytes], url: str) -> None:
    deadline = time.monotonic() + START_SECONDS
    while time.monotonic() < deadline:
        if process.poll() is not None:
            raise DemoError(f"the server stopped with exit code {process.returncode} before it was ready")
        try:
            with urllib.request.urlopen(f"{url}/health", timeout=5):
                return
        except (OSError, urllib.error.URLError):
            time.sleep(0.5)
    raise DemoError(f"the server was not ready after {START_SECONDS:.0f} s")


def stop(process: subprocess.Popen[bytes]) -> None:
    """Asks the server to end; whatever of it is left after STOP_SECONDS is killed."""
    process.terminate()
    try:
        process.wait(STOP_SECONDS)
    except subprocess.TimeoutExpired:
        print(f"the server did not end within {STOP_SECONDS:.0f} s of SIGTERM; killing it", file=sys.stderr)
    # The server has a process group of its own, so this reaches workers that outlived it and nobody else.
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        return
    process.wait()


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
        log = Path(scratch) / "server.log"
        started = time.monotonic()
        try:
            with server(args.checkpoint, log) as url:
                print(f"server ready after {time.monotonic() - started:.0f} s", flush=True)
                with urllib.request.urlopen(f"{url}/v1/models", timeout=ANSWER_SECONDS) as response:
                    model = json.load(response)["data"][0]["id"]
                for modality, name, question in QUESTIONS:
                    path = SAMPLES / name
                    show(path, question, ask(url, model, modality, path, question))
        except DemoError as error:
            print(f"\ndemo failed: {error}\n\nthe server's last lines:", file=sys.stderr)
            print(*log.read_text(errors="replace").splitlines()[-NUM_LOG_LINES:], sep="\n", file=sys.stderr)
            return 1
    print(
        "\ndemo done: every question was answered, the server is down. The words are noise: random weights."
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
