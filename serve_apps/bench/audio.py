"""An hour of AAC to log-mel frames, ours against the ways people do it with torchcodec, torchaudio, PyAV, librosa.

Each contestant runs in a process of its own, in turns, so that a busy machine slows all alike and peak memory is
its own; medians count. All have to make the same number of frames with the same mean. Makes its sounds itself.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from serve_apps.bench import format_table
from serve_apps.bench.audio_contestants import OURS, PEERS, TUNED, make_sound
from serve_apps.bench.process import ContestantError, run_contestant

# Frames by which resamplers may differ at the end, and the mean of ln(mel) by their filters.
_MAX_FRAMES_APART = 8
_MAX_MEAN_APART = 0.1


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options of `mmserve bench audio`."""
    parser.add_argument("--minutes", type=int, default=60, help="length of the sound (default: %(default)s)")
    parser.add_argument(
        "--growth", type=int, nargs="*", default=[6, 60, 360], metavar="MINUTES",
        help="lengths to time ours at (default: 6 60 360)",
    )  # fmt: skip
    parser.add_argument("--rounds", type=int, default=1, help="timed runs of each (default: %(default)s)")
    parser.add_argument("--peers", action="store_true", help="also run the other libraries")
    parser.add_argument(
        "--folder",
        type=Path,
        default=Path(tempfile.gettempdir()) / "mmserve-bench-clips",
        help="where sounds are kept (default: %(default)s)",
    )


@dataclass(kw_only=True)
class _Runs:
    """What a contestant's runs gave. problem: why there is none."""

    seconds: list[float] = field(default_factory=list)
    peak_rss_mb: float = 0.0
    import_rss_mb: float = 0.0
    frames: int = 0
    mean: float = 0.0
    problem: str | None = None

    @property
    def median(self) -> float | None:
        return statistics.median(self.seconds) if self.seconds else None


def run(args: argparse.Namespace) -> dict[str, Any]:
    """Prints two tables. `ratio_peer`: the median time of the best straightforward path over ours; `ratio_tuned`:
    that of torchcodec told to resample while it decodes; None without --peers. `peak_rss_mb` is the whole
    process's, `import_rss_mb` what it had after its imports.

    Raises ValueError for impossible numbers, and when a peer's frames are other frames.
    """
    if min([args.minutes, args.rounds, *args.growth]) < 1:
        raise ValueError(
            f"minutes {args.minutes}, rounds {args.rounds}, growth {args.growth}: each must be at least 1"
        )
    args.folder.mkdir(parents=True, exist_ok=True)
    path = _sound(args.folder, args.minutes)
    runs = {name: _Runs() for name in (OURS, *(PEERS if args.peers else ()))}
    for _ in range(args.rounds):
        for name, its in runs.items():
            if its.problem is None:
                _run_once(name, path, its)
    ours = runs[OURS]
    if ours.median is None:
        raise ValueError(f"our own run failed: {ours.problem}")
    peers = {name: its for name, its in runs.items() if name != OURS and its.median is not None}
    for name, its in peers.items():
        _check_same(name, its, ours)
    print(f"{args.minutes} minutes of AAC to log-mel, {args.rounds} rounds")
    rows = [
        [name, its.median, its.peak_rss_mb or None, its.median / ours.median if its.median else None]
        for name, its in runs.items()
    ]
    print(format_table(["contestant", "seconds", "peak RSS MB", "over ours"], rows))
    for name, its in runs.items():
        if its.problem is not None:
            print(f"{name} did not run: {its.problem}")
    growth = _grow(args.folder, args.growth)
    plain = [name for name in peers if name != TUNED]
    best = min(plain, key=lambda name: peers[name].median or 0.0) if plain else None
    return {
        "ratio_peer": _ratio(peers.get(best or ""), ours),
        "ratio_tuned": _ratio(peers.get(TUNED), ours),
        "peer": best,
        "peak_rss_mb": round(ours.peak_rss_mb, 1),
        "import_rss_mb": round(ours.import_rss_mb, 1),
        "ours_s": round(ours.median, 2),
        "peers_s": {name: round(its.median or 0.0, 2) for name, its in peers.items()},
        "growth": growth,
    }


def _ratio(peer: _Runs | None, ours: _Runs) -> float | None:
    return round(peer.median / ours.median, 3) if peer and peer.median and ours.median else None


def _grow(folder: Path, lengths: list[int]) -> list[dict[str, float]]:
    growth = []
    for minutes in lengths:
        its = _Runs()
        _run_once(OURS, _sound(folder, minutes), its)
        if its.median is None:
            raise ValueError(f"our own run of {minutes} minutes failed: {its.problem}")
        growth.append(
            {
                "minutes": minutes,
                "seconds": round(its.median, 2),
                "seconds_per_hour": round(its.median * 60 / minutes, 2),
                "peak_rss_mb": round(its.peak_rss_mb, 1),
            }
        )
    if growth:
        print(format_table(list(growth[0]), [list(row.values()) for row in growth]))
    return growth


def _check_same(name: str, its: _Runs, ours: _Runs) -> None:
    if abs(its.frames - ours.frames) > _MAX_FRAMES_APART or abs(its.mean - ours.mean) > _MAX_MEAN_APART:
        raise ValueError(
            f"{name} made {its.frames} frames with mean {its.mean:.4f}, ours {ours.frames} with "
            f"{ours.mean:.4f}; they did not do the same work"
        )


def _sound(folder: Path, minutes: int) -> Path:
    path = folder / f"sound-{minutes}min-44k-stereo.m4a"
    if not path.exists():
        part = path.with_suffix(".part")
        make_sound(part, minutes)
        part.rename(path)
    return path


def _run_once(name: str, path: Path, runs: _Runs) -> None:
    try:
        result = run_contestant("serve_apps.bench.audio_contestants", name, str(path))
    except ContestantError as error:
        runs.problem = str(error)
        return
    runs.seconds.append(result["seconds"])
    runs.peak_rss_mb = max(runs.peak_rss_mb, result["peak_rss_mb"])
    runs.import_rss_mb = result["import_rss_mb"]
    runs.frames, runs.mean = result["frames"], result["mean"]
