"""Shows two pictures in one prompt and asks what tells them apart.

Start a server with `make serve`, then:
    python samples/compare_two_pictures.py samples/pictures/shapes.webp samples/pictures/evening.jpg
MMSERVE_URL names another server (default http://127.0.0.1:8000/v1).
"""

import argparse
import base64
import mimetypes
import os
from pathlib import Path

from openai import OpenAI

URL = os.environ.get("MMSERVE_URL", "http://127.0.0.1:8000/v1")


def image_part(picture: Path) -> dict:
    kind = mimetypes.guess_type(picture.name, strict=False)[0] or "image/jpeg"
    data = base64.b64encode(picture.read_bytes()).decode()
    return {"type": "image_url", "image_url": {"url": f"data:{kind};base64,{data}"}}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("first", type=Path)
    parser.add_argument("second", type=Path)
    parser.add_argument("question", nargs="?", default="What is different between the two?")
    args = parser.parse_args()

    client = OpenAI(base_url=URL, api_key="none")
    content = [
        {"type": "text", "text": "The first picture:"},
        image_part(args.first),
        {"type": "text", "text": "The second picture:"},
        image_part(args.second),
        {"type": "text", "text": args.question},
    ]
    messages = [{"role": "user", "content": content}]
    model = client.models.list().data[0].id
    answer = client.chat.completions.create(model=model, messages=messages, max_tokens=64)
    print(answer.choices[0].message.content)
    print(f"{answer.usage.prompt_tokens} tokens in, {answer.usage.completion_tokens} out")


if __name__ == "__main__":
    main()
