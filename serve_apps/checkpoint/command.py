"""`mmserve make-checkpoint`: arguments, messages, exit code. The work is in `make`."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

DEFAULT_SIZE = "tiny"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds DIR, --size and --seed."""
    parser.add_argument("folder", metavar="DIR", type=Path, help="new, empty or made by this command")
    parser.add_argument(
        "--size",
        choices=("tiny", "small"),
        default=DEFAULT_SIZE,
        help="tiny: a few MB, quick on a laptop; small: about 200M text parameters (default: tiny)",
    )
    parser.add_argument("--seed", type=int, default=0, help="of the random weights (default: 0)")


def run(args: argparse.Namespace) -> int:
    """Makes the checkpoint. Returns the exit code: 0, or 2 when the folder must not be written to."""
    # Importing torch takes a second, which `mmserve --help` should not.
    from serve_apps.checkpoint.make import NotOurFolderError, make_checkpoint

    try:
        make_checkpoint(args.folder, args.size, seed=args.seed)
    except NotOurFolderError as error:
        print(f"mmserve make-checkpoint: {error}", file=sys.stderr)
        return 2
    num_bytes = sum(path.stat().st_size for path in args.folder.rglob("*") if path.is_file())
    print(f"wrote {args.folder}: {args.size}, random weights, {num_bytes / 1e6:.1f} MB")
    return 0
