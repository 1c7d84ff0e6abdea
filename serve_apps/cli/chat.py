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

_WISHES = (
    "fps",
    "min_frames",
    "max_frames",
    "max_pixels",
    "total_pixels",
    "start_s",
    "end_s",
    "use_audio_in_video",
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the question, the media, how they are sampled, where to ask, and how the answer is drawn."""
    add = parser.add_argument
    add("question", metavar="QUESTION")
    for kind, what in (("image", "a picture"), ("video", "a video"), ("audio", "a sound")):
        add(
            f"--{kind}",
            metavar="F",
            action=_AddMedia,
            dest="media",
            default=[],
            help=f"{what}, a file or URL; all media go in front of the question in the order given",
        )
    add("--fps", type=float, help="frames of video per second (default: the server's, as for all of these)")
    add("--min-frames", type=int, help="fewest frames of one video")
    add("--max-frames", type=int, help="most frames of one video")
    add("--max-pixels", type=int, help="largest picture or frame after resizing")
    add("--total-pixels", type=int, help="most pixels of all frames of one video")
    add("--start-s", type=float, help="use video and sound from this second on")
    add("--end-s", type=float, help="use video and sound up to this second")
    add(
        "--no-audio-in-video",
        dest="use_audio_in_video",
        action="store_false",
        default=None,
        help="leave out the sound of videos",
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


class _AddMedia(argparse.Action):
    """Collects (modality, file or URL) of several flags in the order of the command line."""

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: Any,
        option_string: str | None = None,
    ) -> None:
        modality = (option_string or "").removeprefix("--")
        setattr(namespace, self.dest, [*getattr(namespace, self.dest), (modality, values)])


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
    """The body of the chat request, but for the model. Raises CliError for a file that cannot be read."""
    parts: list[dict[str, Any]] = [
        {"type": f"{modality}_url", f"{modality}_url": {"url": media_url(name)}}
        for modality, name in args.media
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
    wishes = {name: getattr(args, name) for name in _WISHES if getattr(args, name) is not None}
    if wishes:
        body["mm_processor_kwargs"] = wishes
    return body


def media_url(name: str) -> str:
    """URLs as they are; a file as a data: URL, so that the server need not see this machine's files."""
    if name.startswith(("http://", "https://", "data:", "file:")):
        return name
    try:
        data = Path(name).read_bytes()
    except OSError as error:
        raise CliError(f"cannot read {name}: {error.strerror}") from error
    kind = mimetypes.guess_type(name)[0] or "application/octet-stream"
    return f"data:{kind};base64,{base64.b64encode(data).decode()}"


def _print(chunks: Iterator[dict[str, Any]]) -> None:
    usage: Mapping[str, Any] = {}
    timings: Mapping[str, float] = {}
    notes: list[Mapping[str, str]] = []
    has_text = False
    try:
        for chunk in chunks:
            for choice in chunk["choices"]:
                text = choice["delta"].get("content") or ""
                has_text = has_text or bool(text)
                print(text, end="", flush=True)
            usage = chunk.get("usage") or usage
            timings = chunk.get("timings") or timings
            notes += chunk.get("media_notes", [])
    finally:
        if has_text:
            print(flush=True)
    for note in notes:
        print(f"{note['modality']}: {note['note']}", file=sys.stderr)
    print(timing_line(usage, timings), file=sys.stderr)


def timing_line(usage: Mapping[str, Any], timings: Mapping[str, float]) -> str:
    """Token counts and the milliseconds of every stage, on one line."""
    counts = []
    if usage:
        details = usage["prompt_tokens_details"]
        named = [
            f"{details[f'{name}_tokens']} of {words}"
            for name, words in (("image", "images"), ("video", "video"), ("audio", "audio"))
            if details.get(f"{name}_tokens")
        ]
        of_media = f" ({', '.join(named)})" if named else ""
        counts.append(f"{usage['prompt_tokens']} prompt tokens{of_media}")
        counts.append(f"{usage['completion_tokens']} answer tokens")
    stages = [f"{name.removesuffix('_ms')} {value:.1f}" for name, value in timings.items()]
    return "; ".join([*counts, "ms: " + ", ".join(stages)])
