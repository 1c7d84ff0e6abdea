"""The demo model through a real server: how soon it is ready, how fast and how truly it answers.

Starts the server cold, as a process of its own. The questions and their scores come from the source tree's
`samples.demo_training`, which is run as a process too: installed packages do not hold it.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from serve_apps.bench import format_table
from serve_apps.bench.server import running_server

REPORT = "evaluation.json"
"""What the training leaves in the checkpoint folder; may hold "head_agreement"."""

_TREE = Path(__file__).parents[2]
_CHECKPOINT = Path("samples") / "demo_model"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options of `mmserve bench demo`."""
    parser.add_argument(
        "--checkpoint", type=Path, help=f"folder in hub format (default: {_CHECKPOINT} of the source tree)"
    )
    parser.add_argument("--cases", type=int, default=100, help="of each family (default: %(default)s)")
    parser.add_argument(
        "--runs", type=int, default=9, help="timed questions of each kind (default: %(default)s)"
    )


def run(args: argparse.Namespace) -> dict[str, Any]:
    """Prints a table and returns the result under the keys of ARCHITECTURE.md; what is not measured is null.

    Raises ValueError without a source tree or a checkpoint, and when the server or a question fails.
    """
    if min(args.cases, args.runs) < 1:
        raise ValueError(f"cases {args.cases}, runs {args.runs}: each must be at least 1")
    if not (_TREE / "samples" / "demo_training" / "evaluate.py").is_file():
        raise ValueError(
            f"{_TREE} is no source tree of this project: samples/demo_training is not in it. Clone the "
            "repository, install it with 'pip install -e .[training]' and run this there"
        )
    checkpoint = args.checkpoint or _TREE / _CHECKPOINT
    if not (checkpoint / "config.json").is_file():
        raise ValueError(f"{checkpoint} holds no checkpoint; give one with --checkpoint")
    with tempfile.TemporaryDirectory() as name:
        scratch = Path(name)
        with running_server(checkpoint.resolve(), scratch / "server.log") as server:
            print(f"ready after {server.ready_s:.1f} s", flush=True)
            seconds = _from_tree("latency", scratch, "--url", server.url, "--runs", str(args.runs))
            evaluation = _from_tree("evaluate", scratch, "--url", server.url, "--cases", str(args.cases))
    result = {
        "accuracy": {family: share["accuracy"] for family, share in evaluation["families"].items()},
        "cases": args.cases,
        "ready_s": round(server.ready_s, 2),
        "picture_s": round(statistics.median(seconds["picture"]), 3),
        "video_s": round(statistics.median(seconds["video"]), 3),
        "accept_length": None,
        "speedup": None,
        "head_agreement": _head_agreement(checkpoint),
    }
    print(_table(result))
    print("accept_length, speedup: null; the engine does not draft with the MTP heads yet")
    if result["head_agreement"] is None:
        print(f"head_agreement: null; {checkpoint} has no {REPORT} that tells it")
    return result


def _from_tree(module: str, scratch: Path, *arguments: str) -> dict[str, Any]:
    """Runs samples.demo_training.MODULE in the source tree; what it wrote to --out. Its table goes to stderr."""
    out = scratch / f"{module}.json"
    command = [sys.executable, "-m", f"samples.demo_training.{module}", *arguments, "--out", str(out)]
    done = subprocess.run(command, cwd=_TREE, stdout=sys.stderr, check=False)
    if done.returncode:
        raise ValueError(
            f"samples.demo_training.{module} ended with status {done.returncode}; see its output above"
        )
    report: dict[str, Any] = json.loads(out.read_text())
    return report


def _head_agreement(checkpoint: Path) -> Any:
    path = checkpoint / REPORT
    return json.loads(path.read_text()).get("head_agreement") if path.is_file() else None


def _table(result: dict[str, Any]) -> str:
    rows: list[list[object]] = [
        [f"accuracy, {family}", f"{100 * share:.1f} %"] for family, share in result["accuracy"].items()
    ]
    rows += [
        ["ready after a cold start", f"{result['ready_s']:.1f} s"],
        ["a question about a picture", f"{result['picture_s']:.2f} s"],
        ["a question about a video of 10 s", f"{result['video_s']:.2f} s"],
    ]
    return format_table(["", f"{result['cases']} cases"], rows)
