"""`mmserve inspect FILE`: what is in a video or sound file and what a model would get of it."""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from serve_apps.cli import CliError


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the file, sampling, and what to show."""
    add = parser.add_argument
    add("file", metavar="FILE", type=Path, help="video or sound")
    add("--contact-sheet", metavar="OUT.png", type=Path, help="draw the sampled frames with their times")
    add("--fps", type=float, help="sampled frames per second (default: the checkpoint's)")
    add("--max-frames", type=int, help="most sampled frames (default: the checkpoint's)")
    add("--start-s", type=float, metavar="S", help="begin here, in seconds from the start")
    add("--end-s", type=float, metavar="S", help="end here, in seconds from the start")
    add("--json", action="store_true", help="print one JSON object instead of text")
    add(
        "--checkpoint",
        metavar="DIR",
        type=Path,
        help="folder in hub format whose settings to use (default: the model's public settings)",
    )


def run(args: argparse.Namespace) -> int:
    """Prints the report; with --contact-sheet also writes the picture."""
    if not args.file.is_file():
        raise CliError(f"there is no file {args.file}")
    config = _config(args.checkpoint)
    # Loads torch, which a wrong file name does not need.
    from mm_pipeline.errors import MediaError
    from mm_pipeline.options import MediaOptions
    from serve_apps.inspect import ContactSheet, as_text, inspect_file

    sheet = ContactSheet() if args.contact_sheet is not None else None
    try:
        options = MediaOptions(
            fps=args.fps, max_frames=args.max_frames, start_s=args.start_s, end_s=args.end_s
        )
        report = inspect_file(
            args.file, config=config, options=options, on_frames=None if sheet is None else sheet.add
        )
    except MediaError as error:
        raise CliError(f"{args.file}: {error.message}") from error
    except ValueError as error:
        raise CliError(f"{args.checkpoint}: {error}") from error
    if sheet is not None:
        if report.video is None:
            raise CliError(
                f"{args.file} has no video, so there is nothing to draw; leave --contact-sheet out"
            )
        _save(sheet, args.contact_sheet, args.file.name, report.video.duration_s)
    print(json.dumps(asdict(report)) if args.json else as_text(report))
    return 0


def _config(checkpoint: Path | None) -> Mapping[str, Any]:
    if checkpoint is None:
        return {}
    try:
        config: Mapping[str, Any] = json.loads((checkpoint / "config.json").read_text())
    except (OSError, ValueError) as error:
        raise CliError(f"{checkpoint} has no readable config.json; give a folder in hub format") from error
    return config


def _save(sheet: Any, path: Path, name: str, duration_s: float) -> None:
    try:
        sheet.save(path, f"{name}, {duration_s:.3f} s")
    except (OSError, ValueError) as error:
        raise CliError(f"cannot write the contact sheet to {path}; give a path that ends in .png") from error
