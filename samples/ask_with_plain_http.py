"""Asks about a picture with nothing but the standard library: one POST, the answer as server-sent events.

Start a server with `make serve`, then:
    python samples/ask_with_plain_http.py samples/pictures/shapes.webp "How many circles are there?"
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
    parser.add_argument("picture", type=Path)
    parser.add_argument("question", nargs="?", default="What is in this picture?")
    parser.add_argument("--max-tokens", type=int, default=64)
    args = parser.parse_args()

    with urllib.request.urlopen(f"{URL}/models") as response:
        model = json.load(response)["data"][0]["id"]
    kind = mimetypes.guess_type(args.picture.name, strict=False)[0] or "image/jpeg"
    picture = f"data:{kind};base64,{base64.b64encode(args.picture.read_bytes()).decode()}"
    content = [{"type": "image_url", "image_url": {"url": picture}}, {"type": "text", "text": args.question}]
    messages = [{"role": "user", "content": content}]
    body = {"model": model, "messages": messages, "max_tokens": args.max_tokens, "stream": True}
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
