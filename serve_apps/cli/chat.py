"""`mmserve chat QUESTION`: streams one answer to stdout and its timings to stderr.

Asks a server over HTTP, or with --local runs the same chat service in this process, without Ray.
"""

from __future__ import annotations

import argparse
import base64
import mimetypes
import os
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from serve_apps.cli import CliError
from serve_apps.cli.client import Client

DEFAULT_URL = "http://127.0.0.1:8000"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the question, the pictures, where to ask, and sampling."""
    add = parser.add_argument
    add("question", metavar="QUESTION")
    add(
        "--image", metavar="F", action="append", default=[], help="a file or URL; may be given more than once"
    )
    add("--system", help="system message")
    where = parser.add_mutually_exclusive_group()
    where.add_argument("--url", default=DEFAULT_URL, help="server to ask (default: %(default)s)")
    where.add_argument("--local", action="store_true", help="answer in this process; needs --checkpoint")
    add("--checkpoint", metavar="DIR", type=Path, help="folder in hub format, for --local")
    add("--model", help="model to ask for (default: the server's first)")
    add("--api-key", default=os.environ.get("MMSERVE_API_KEY"), help="(default: $MMSERVE_API_KEY)")
    add("--max-tokens", type=int, help="longest answer (default: the server's choice)")
    add("--temperature", type=float)
    add("--top-p", type=float)
    add("--seed", type=int)


def run(args: argparse.Namespace) -> int:
    """Asks and prints."""
    body = request_body(args)
    if args.local:
        if args.checkpoint is None:
            raise CliError("--local needs --checkpoint DIR, a folder in hub format")
        # Loads torch, which asking a server does not need.
        from serve_apps.cli.local import local_chunks

        chunks = local_chunks(args.checkpoint, body)
    else:
        client = Client(args.url, api_key=args.api_key)
        body["model"] = args.model or client.model()
        body["stream_options"] = {"include_usage": True}
        chunks = client.chat_chunks(body)
    _print(chunks)
    return 0


def request_body(args: argparse.Namespace) -> dict[str, Any]:
    """The body of the chat request, but for the model. Raises CliError for a picture that cannot be read."""
    parts: list[dict[str, Any]] = [
        {"type": "image_url", "image_url": {"url": image_url(name)}} for name in args.image
    ]
    parts.append({"type": "text", "text": args.question})
    messages: list[dict[str, Any]] = [{"role": "user", "content": parts}]
    if args.system is not None:
        messages.insert(0, {"role": "system", "content": args.system})
    body: dict[str, Any] = {"messages": messages}
    for name in ("max_tokens", "temperature", "top_p", "seed"):
        value = getattr(args, name)
        if value is not None:
            body[name] = value
    return body


def image_url(name: str) -> str:
    """URLs as they are; a file as a data: URL, so that the server need not see this machine's files."""
    if name.startswith(("http://", "https://", "data:", "file:")):
        return name
    try:
        data = Path(name).read_bytes()
    except OSError as error:
        raise CliError(f"cannot read the picture {name}: {error.strerror}") from error
    kind = mimetypes.guess_type(name)[0] or "application/octet-stream"
    return f"data:{kind};base64,{base64.b64encode(data).decode()}"


def _print(chunks: Iterator[dict[str, Any]]) -> None:
    usage: Mapping[str, Any] = {}
    timings: Mapping[str, float] = {}
    has_text = False
    try:
        for chunk in chunks:
            for choice in chunk["choices"]:
                text = choice["delta"].get("content") or ""
                has_text = has_text or bool(text)
                print(text, end="", flush=True)
            usage = chunk.get("usage") or usage
            timings = chunk.get("timings") or timings
    finally:
        if has_text:
            print(flush=True)
    print(timing_line(usage, timings), file=sys.stderr)


def timing_line(usage: Mapping[str, Any], timings: Mapping[str, float]) -> str:
    """Token counts and the milliseconds of every stage, on one line."""
    counts = []
    if usage:
        images = usage["prompt_tokens_details"]["image_tokens"]
        counts.append(f"{usage['prompt_tokens']} prompt tokens ({images} of images)")
        counts.append(f"{usage['completion_tokens']} answer tokens")
    stages = [f"{name.removesuffix('_ms')} {value:.1f}" for name, value in timings.items()]
    return "; ".join([*counts, "ms: " + ", ".join(stages)])
