"""Describes a picture in one process: no server, no Ray, the same code path otherwise.

    mmserve make-checkpoint tiny-checkpoint
    python samples/describe_local.py tiny-checkpoint samples/pictures/bar_chart.png
A checkpoint made that way has random weights, so its words are noise.
"""

import argparse
import base64
import mimetypes
import sys
from pathlib import Path

from serve_apps.cli import CliError
from serve_apps.cli.local import local_chunks


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("checkpoint", type=Path)
    parser.add_argument("picture", type=Path)
    parser.add_argument("question", nargs="?", default="Describe the picture.")
    parser.add_argument("--max-tokens", type=int, default=64)
    args = parser.parse_args()

    kind = mimetypes.guess_type(args.picture.name, strict=False)[0] or "image/jpeg"
    url = f"data:{kind};base64,{base64.b64encode(args.picture.read_bytes()).decode()}"
    content = [{"type": "image_url", "image_url": {"url": url}}, {"type": "text", "text": args.question}]
    body = {"messages": [{"role": "user", "content": content}], "max_tokens": args.max_tokens}
    timings = {}
    try:
        for chunk in local_chunks(args.checkpoint, body):
            for choice in chunk["choices"]:
                print(choice["delta"].get("content") or "", end="", flush=True)
            timings = chunk.get("timings") or timings
    except CliError as error:
        sys.exit(str(error))
    print("\n" + ", ".join(f"{name} {value:.1f}" for name, value in timings.items()))


if __name__ == "__main__":
    main()
