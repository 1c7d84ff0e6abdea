"""Asks one question about one picture with the official client and prints the answer as it comes.

Start a server with `make serve`, then:
    python samples/ask_picture.py samples/pictures/street_sign.jpg "What does the sign say?"
`pip install openai` brings the client. MMSERVE_URL names another server (default http://127.0.0.1:8000/v1).
"""

import argparse
import base64
import mimetypes
import os
from pathlib import Path

from openai import OpenAI

URL = os.environ.get("MMSERVE_URL", "http://127.0.0.1:8000/v1")


def data_url(picture: Path) -> str:
    kind = mimetypes.guess_type(picture.name, strict=False)[0] or "image/jpeg"
    return f"data:{kind};base64,{base64.b64encode(picture.read_bytes()).decode()}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("picture", type=Path)
    parser.add_argument("question", nargs="?", default="What is in this picture?")
    parser.add_argument("--max-tokens", type=int, default=64)
    args = parser.parse_args()

    client = OpenAI(base_url=URL, api_key="none")
    content = [
        {"type": "image_url", "image_url": {"url": data_url(args.picture)}},
        {"type": "text", "text": args.question},
    ]
    stream = client.chat.completions.create(
        model=client.models.list().data[0].id,
        messages=[{"role": "user", "content": content}],
        max_tokens=args.max_tokens,
        stream=True,
    )
    for chunk in stream:
        if chunk.choices and chunk.choices[0].delta.content:
            print(chunk.choices[0].delta.content, end="", flush=True)
    print()


if __name__ == "__main__":
    main()
