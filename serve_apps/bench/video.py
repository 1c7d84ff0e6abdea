"""Sampled frames of a long 720p video, ours against decord, torchcodec, OpenCV and the plain PyAV loop.

`--case hour`: 768 frames of one hour. `--case 1fps`: 600 frames of ten minutes. Each contestant runs in a process
of its own, in turns, so that a busy machine slows all alike and peak memory is its own; medians count. The frames
that ours decodes are compared, before scaling, with those of the plain loop, by timestamp and checksum. Makes its
clips itself.
"""

from __future__ import annotations

import argparse
import json
import shutil
import statistics
import subprocess
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from serve_apps.bench import format_table
from serve_apps.bench.process import ContestantError, run_contestant
from serve_apps.bench.video_clips import CLIPS, FPS, make_clip

# What smart resize makes of 1280 x 720 under that area.
_HEIGHT, _WIDTH, _MAX_PIXELS = 224, 448, 448 * 256
_CASES = {"hour": (3600, 768), "1fps": (600, 600)}
_PEERS = ("decord", "OpenCV", "torchcodec default", "torchcodec best")
_PLAIN = "plain loop"
_FFMPEG = "ffmpeg noref"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options of `mmserve bench video`."""
    parser.add_argument("--case", choices=_CASES, default="hour", help="default: %(default)s")
    parser.add_argument(
        "--codecs", nargs="+", choices=CLIPS, default=list(CLIPS), help="default: all, the first counts"
    )
    parser.add_argument("--rounds", type=int, default=1, help="timed runs of each (default: %(default)s)")
    parser.add_argument("--seconds", type=int, help="length of the video instead of the case's")
    parser.add_argument("--frames", type=int, help="sampled frames instead of the case's")
    parser.add_argument(
        "--peers", action="store_true", help="also run the other libraries and the plain loop"
    )
    parser.add_argument(
        "--folder",
        type=Path,
        default=Path(tempfile.gettempdir()) / "mmserve-bench-clips",
        help="where clips are kept (default: %(default)s)",
    )


@dataclass(kw_only=True)
class _Runs:
    """What a contestant's runs gave. problem: why there is none."""

    seconds: list[float] = field(default_factory=list)
    peak_rss_mb: float = 0.0
    frames: int = 0
    digests: list[list[int]] | None = None
    problem: str | None = None

    @property
    def median(self) -> float | None:
        return statistics.median(self.seconds) if self.seconds else None


def run(args: argparse.Namespace) -> dict[str, Any]:
    """Prints a table per codec. Ratios are the other's median time over ours; without --peers they are None.

    Raises ValueError for impossible numbers.
    """
    seconds, num_frames = _CASES[args.case]
    seconds, num_frames = args.seconds or seconds, args.frames or num_frames
    if not 2 <= num_frames <= seconds * FPS or num_frames % 2 or args.rounds < 1:
        raise ValueError(
            f"frames {num_frames}, seconds {seconds}, rounds {args.rounds}: need an even number of frames "
            f"from 2 to seconds x {FPS}, and at least one round"
        )
    args.folder.mkdir(parents=True, exist_ok=True)
    results = {
        codec: _run_codec(codec, seconds, num_frames, args.rounds, args.peers, args.folder)
        for codec in args.codecs
    }
    return {"case": args.case, **results[args.codecs[0]], "codecs": results}


def _run_codec(
    codec: str, seconds: int, num_frames: int, rounds: int, peers: bool, folder: Path
) -> dict[str, Any]:
    clip = make_clip(codec, seconds, folder)
    last = seconds * FPS - 1
    job = {
        "path": str(clip),
        "numbers": [number * last // (num_frames - 1) for number in range(num_frames)],
        "gop": CLIPS[codec].gop,
        "height": _HEIGHT,
        "width": _WIDTH,
        "max_pixels": _MAX_PIXELS,
    }
    names = ["ours", *((_FFMPEG, _PLAIN, *_PEERS) if peers else ())]
    runs = {name: _Runs() for name in names}
    for _ in range(rounds):
        for name in names:
            if runs[name].problem is None:
                _run_once(name, job, runs[name])
            if runs["ours"].problem is not None:
                raise RuntimeError(f"our own decoder failed on {codec}: {runs['ours'].problem}")
    checked = _Runs()
    if peers:
        _run_once("ours checked", job, checked)

    ours = runs["ours"]
    assert ours.median is not None, "checked after every round"
    print(f"{codec}: {num_frames} frames of {seconds} s, {clip.stat().st_size / 1e6:.0f} MB, {rounds} rounds")
    rows = [
        [name, each.median, each.peak_rss_mb or None, each.frames or None, each.median / ours.median]
        for name, each in runs.items()
        if each.median is not None
    ]
    print(format_table(["contestant", "seconds", "peak MB", "frames", "over ours"], rows))
    for name, each in runs.items():
        if each.problem is not None:
            print(f"{name} did not run: {each.problem}")
    fair = {name: each.median for name, each in runs.items() if name in _PEERS and each.median is not None}
    best = min(fair, key=fair.__getitem__) if fair else None
    return {
        "ratio_best_peer": round(fair[best] / ours.median, 3) if best else None,
        "best_peer": best,
        "ratio_plain_loop": _ratio(runs.get(_PLAIN), ours.median),
        "wall_over_ffmpeg_noref": _inverse(_ratio(runs.get(_FFMPEG), ours.median)),
        "mismatched_frames": _mismatches(checked, runs.get(_PLAIN)),
        "peak_rss_mb": round(ours.peak_rss_mb, 1),
        "frames": ours.frames,
        "seconds": {
            name: None if each.median is None else round(each.median, 2) for name, each in runs.items()
        },
    }


def _ratio(other: _Runs | None, ours: float) -> float | None:
    return None if other is None or other.median is None else round(other.median / ours, 3)


def _inverse(ratio: float | None) -> float | None:
    return None if ratio is None else round(1 / ratio, 3)


def _mismatches(checked: _Runs, plain: _Runs | None) -> int | None:
    """Sampled frames whose timestamp or pixels differ from the plain loop's."""
    if plain is None or plain.digests is None or checked.digests is None:
        return None
    pairs = zip(checked.digests, plain.digests, strict=False)
    return sum(mine != its for mine, its in pairs) + abs(len(checked.digests) - len(plain.digests))


def _run_once(name: str, job: dict[str, Any], runs: _Runs) -> None:
    if name == _FFMPEG:
        _run_ffmpeg(job["path"], runs)
        return
    try:
        result = run_contestant("serve_apps.bench.video_contestants", name, json.dumps(job))
    except ContestantError as error:
        runs.problem = str(error)
        return
    runs.seconds.append(result["seconds"])
    runs.peak_rss_mb = max(runs.peak_rss_mb, result["peak_rss_mb"])
    runs.frames, runs.digests = result["frames"], result["digests"]


def _run_ffmpeg(path: str, runs: _Runs) -> None:
    program = shutil.which("ffmpeg")
    if program is None:
        runs.problem = "it is not installed"
        return
    command = [program, "-v", "error", "-threads", "2", "-skip_frame", "noref", "-i", path, "-f", "null", "-"]
    started = time.perf_counter()
    subprocess.run(command, check=True)
    runs.seconds.append(time.perf_counter() - started)
