"""Times one question at a time about a picture and about a video of ten seconds, on a running server.

    python -m samples.demo_training.latency --url http://127.0.0.1:8000 --runs 9 --out latency.json

All media differ, so nothing the server keeps helps. Knows no scores.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from samples.demo_training.askers import Asker, ServerAsker
from samples.demo_training.cases import Case, case_rng, make_case, write_media
from samples.demo_training.evaluate import hold
from samples.demo_training.scenes import clips
from samples.demo_training.scenes.base import Clip

VIDEO_S = (9.5, 10.5)
# Far from the numbers that an evaluation counts up to.
_FIRST = 1_000_000


def picture_case(number: int, folder: Path) -> Case:
    """One question about one picture."""
    return make_case("pictures", _FIRST + number, folder)


def video_case(number: int, folder: Path) -> Case:
    """One question about a video that lasts about ten seconds."""
    rng = case_rng("latency", number)
    while True:
        sample = clips.sample(rng, "test", turns=1)
        (clip,) = sample.media
        if isinstance(clip, Clip) and VIDEO_S[0] <= clip.duration_s <= VIDEO_S[1]:
            break
    turn = sample.turns[0]
    files = write_media(rng, sample.media, folder, f"latency-{number}")
    return Case(family="video", task=turn.task, number=number, turns=(turn,), files=files)


async def measure(asker: Asker, num_runs: int, folder: Path) -> dict[str, list[float]]:
    """Seconds from the question to the last word of its answer: "picture" and "video", in turns."""
    seconds: dict[str, list[float]] = {"picture": [], "video": []}
    for number in range(num_runs):
        for name, make in (("picture", picture_case), ("video", video_case)):
            case = await asyncio.to_thread(make, number, folder)
            outcome = await hold(asker, case)
            seconds[name].append(outcome.seconds / len(case.turns))
    return seconds


def main(arguments: Sequence[str] | None = None) -> int:
    """Prints the medians."""
    parser = argparse.ArgumentParser(
        prog="python -m samples.demo_training.latency", description=(__doc__ or "").splitlines()[0]
    )
    parser.add_argument("--url", required=True, help="the server to ask")
    parser.add_argument("--runs", type=int, default=9, help="questions of each kind (default: %(default)s)")
    parser.add_argument("--out", type=Path, help="write the seconds here as JSON")
    args = parser.parse_args(arguments)
    if args.runs < 1:
        parser.error(f"--runs is {args.runs}; it must be at least 1")
    with tempfile.TemporaryDirectory() as scratch:
        seconds = asyncio.run(measure(ServerAsker(args.url), args.runs, Path(scratch)))
    for name, values in seconds.items():
        print(f"{name}: median {statistics.median(values):.2f} s, most {max(values):.2f} s of {args.runs}")
    if args.out:
        args.out.write_text(json.dumps(seconds) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
