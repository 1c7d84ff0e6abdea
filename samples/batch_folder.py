"""Asks the same question about every picture in a folder, several at once; one JSON line per picture.

Start a server with `make serve`, then:
    python samples/batch_folder.py samples/pictures "Describe the picture." > answers.jsonl
A picture that fails gets a line with "error"; the others go on. MMSERVE_URL names another server.
"""

import argparse
import base64
import json
import mimetypes
import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from openai import OpenAI, OpenAIError


def media_type(path: Path) -> str:
    return mimetypes.guess_type(path.name, strict=False)[0] or ""


def ask(client: OpenAI, model: str, picture: Path, question: str) -> dict:
    url = f"data:{media_type(picture)};base64,{base64.b64encode(picture.read_bytes()).decode()}"
    image = {"type": "image_url", "image_url": {"url": url}}
    messages = [{"role": "user", "content": [image, {"type": "text", "text": question}]}]
    try:
        answer = client.chat.completions.create(model=model, messages=messages, max_tokens=64)
    except OpenAIError as error:
        return {"file": picture.name, "error": str(error)}
    return {"file": picture.name, "answer": answer.choices[0].message.content}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("question", nargs="?", default="What is in this picture?")
    parser.add_argument("--at-once", type=int, default=4)
    args = parser.parse_args()

    pictures = [path for path in sorted(args.folder.iterdir()) if media_type(path).startswith("image/")]
    url = os.environ.get("MMSERVE_URL", "http://127.0.0.1:8000/v1")
    with OpenAI(base_url=url, api_key="none") as client, ThreadPoolExecutor(args.at_once) as pool:
        model = client.models.list().data[0].id
        for answer in pool.map(lambda picture: ask(client, model, picture, args.question), pictures):
            print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
