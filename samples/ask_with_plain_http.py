"""Asks about a picture, a sound or a video with nothing but the standard library: one POST, the answer as events.

Start a server with `make serve`, then:
    python samples/ask_with_plain_http.py samples/clips/traffic_light.mp4 "When does it turn green?" --fps 2
MMSERVE_URL names another server (default http://127.0.0.1:8000/v1).
"""

import argparse
import base64
import json
import mimetypes
import os
import urllib.request
from pathlib import Path

URL = os.environ.get("MMSERVE_URL", "http://127.0.0.1:8000/v1")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("file", type=Path)
    parser.add_argument("question", nargs="?", default="What is this?")
    parser.add_argument("--max-tokens", type=int, default=64)
    parser.add_argument("--fps", type=float, default=1.0, help="frames of a video per second")
    args = parser.parse_args()

    with urllib.request.urlopen(f"{URL}/models") as response:
        model = json.load(response)["data"][0]["id"]
    kind = mimetypes.guess_type(args.file.name, strict=False)[0] or "image/jpeg"
    url = f"data:{kind};base64,{base64.b64encode(args.file.read_bytes()).decode()}"
    # image_url, audio_url or video_url
    part = f"{kind.partition('/')[0]}_url"
    content = [{"type": part, part: {"url": url}}, {"type": "text", "text": args.question}]
    messages = [{"role": "user", "content": content}]
    body = {"model": model, "messages": messages, "max_tokens": args.max_tokens, "stream": True}
    body["mm_processor_kwargs"] = {"fps": args.fps}
    headers = {"Content-Type": "application/json"}
    request = urllib.request.Request(f"{URL}/chat/completions", json.dumps(body).encode(), headers)
    with urllib.request.urlopen(request) as response:
        for line in response:
            event = line.decode().strip().removeprefix("data: ")
            if event and event != "[DONE]":
                for choice in json.loads(event)["choices"]:
                    print(choice["delta"].get("content") or "", end="", flush=True)
    print()


if __name__ == "__main__":
    main()
