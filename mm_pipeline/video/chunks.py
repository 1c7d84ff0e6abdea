"""A plan's frames as pieces of decoding work. Knows keyframes and counts frames; decodes nothing.

A run starts at a keyframe and ends with the last wanted frame before the next run's keyframe, so frames after
that are never touched. Chunks are what a thread takes at a time: neighbouring runs, joined until they are worth it.
Their cost is the number of frames that must be decoded; threads that take chunk after chunk stay equally loaded.
"""

from __future__ import annotations

import bisect
from dataclasses import dataclass

import numpy as np

from mm_pipeline.video.index import FrameIndex
from mm_pipeline.video.plan import FramePlan

# Work worth handing to a thread, in frames to decode.
_LEAST_COST = 32


@dataclass(frozen=True, kw_only=True)
class Run:
    """key: number of the keyframe in the index. targets: ticks of wanted frames, ascending, each once.
    cost: frames to decode."""

    key: int
    targets: tuple[int, ...]
    cost: int


def plan_runs(plan: FramePlan) -> list[Run]:
    """Runs in display order; together their targets are the plan's frames."""
    index = plan.info.index
    key_ticks = [key.ticks for key in index.keys]
    by_key: dict[int, list[int]] = {}
    for tick in dict.fromkeys(plan.ticks):
        by_key.setdefault(max(bisect.bisect_right(key_ticks, tick) - 1, 0), []).append(tick)
    return [
        Run(key=key, targets=tuple(targets), cost=_cost(index, key_ticks[key], targets[-1]))
        for key, targets in by_key.items()
    ]


def join_runs(runs: list[Run]) -> list[tuple[Run, ...]]:
    """Chunks of neighbouring runs, each of at least _LEAST_COST frames but the last."""
    chunks: list[tuple[Run, ...]] = []
    current: list[Run] = []
    for run in runs:
        current.append(run)
        if sum(each.cost for each in current) >= _LEAST_COST:
            chunks.append(tuple(current))
            current = []
    if current:
        chunks.append(tuple(current))
    return chunks


def _cost(index: FrameIndex, key_ticks: int, last: int) -> int:
    begin, end = np.searchsorted(index.ticks, [key_ticks, last + 1])
    return int(end - begin)
