"""Which frames of a video are looked at, and at what size. Reads the index; decodes nothing.

Sampling follows the processor: `fps` frames per second of video, at least min_frames and at most max_frames and
never more than there are, an even number, spread evenly from the first frame to the last. At a constant rate those
are its frame numbers, trunc(k (N - 1) / (n - 1)). Otherwise they are the frames displayed at evenly spread times.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from mm_pipeline.errors import InvalidMediaError
from mm_pipeline.video.index import FrameIndex
from mm_pipeline.video.info import VideoInfo
from mm_pipeline.video.settings import VideoSettings

Int64 = npt.NDArray[np.int64]

# Containers that round times to milliseconds must not lose a sampled frame to it.
_ROUNDING_S = 0.002


@dataclass(frozen=True, kw_only=True)
class FramePlan:
    """info: the probed video. frame_times_s: per sampled frame, seconds from the video's first frame; what the
    timestamps in the prompt show. ticks: display time of each sampled frame in the index; a frame that is on
    display at several sampled times appears several times. size: (height, width) after resizing. num_units: frames
    over temporal_patch_size. tokens_per_unit: embeddings of one unit. exact: False asks for keyframes only.
    """

    info: VideoInfo
    frame_times_s: tuple[float, ...]
    ticks: tuple[int, ...]
    size: tuple[int, int]
    temporal_patch_size: int
    tokens_per_unit: int
    exact: bool = True

    @property
    def num_frames(self) -> int:
        """Sampled frames, a multiple of temporal_patch_size."""
        return len(self.ticks)

    @property
    def num_units(self) -> int:
        return self.num_frames // self.temporal_patch_size


def plan_frames(info: VideoInfo, settings: VideoSettings) -> FramePlan:
    """Chooses frames and their size.

    A sampled frame's time is its own; when a frame is still on display at the next sampled time, that time counts,
    so times always ascend. A video of a single frame repeats it to fill the unit, as the processor pads.
    Raises InvalidMediaError when start_s lies behind the end, and for shapes the model cannot take.
    """
    index = info.index
    first, end = _part(index, settings)
    ticks = index.ticks[first:end]
    begin_s = max(index.seconds(int(ticks[0])), settings.start_s or 0.0)
    end_s = index.duration_s if end == len(index.ticks) else index.seconds(int(index.ticks[end]))
    if settings.end_s is not None:
        end_s = min(end_s, settings.end_s)
    num_frames = _num_frames(end_s - begin_s, len(ticks), settings)
    chosen, asked = _spread(ticks, num_frames, index)
    if not settings.exact:
        keys = np.array([key.ticks for key in index.keys], dtype=np.int64)
        chosen = keys[_nearest(keys, chosen)]
        chosen.sort()
    times = _times(chosen, asked, index)
    missing = -len(chosen) % settings.temporal_patch_size
    height, width = settings.frame_size(info.height, info.width, len(chosen))
    return FramePlan(
        info=info,
        frame_times_s=times + times[-1:] * missing,
        ticks=tuple(chosen.tolist()) + (int(chosen[-1]),) * missing,
        size=(height, width),
        temporal_patch_size=settings.temporal_patch_size,
        tokens_per_unit=height * width // settings.factor**2,
        exact=settings.exact,
    )


def _part(index: FrameIndex, settings: VideoSettings) -> tuple[int, int]:
    """[first, end): the frames on display at some time in [start_s, end_s)."""
    origin = int(index.ticks[0])
    first, end = 0, len(index.ticks)
    if settings.start_s is not None:
        if settings.start_s >= max(index.duration_s, 1e-9):
            raise InvalidMediaError(
                f"start_s is {settings.start_s}; the video is {index.duration_s:.3f} s long", param="start_s"
            )
        at = origin + int((settings.start_s + _ROUNDING_S / 2) / index.time_base)
        first = int(np.searchsorted(index.ticks, at, side="right")) - 1
    if settings.end_s is not None:
        at = origin + int((settings.end_s - _ROUNDING_S / 2) / index.time_base)
        end = max(int(np.searchsorted(index.ticks, at, side="right")), first + 1)
    return max(first, 0), end


def _num_frames(seconds: float, num_there: int, settings: VideoSettings) -> int:
    """Formula: the processor's "Frame sampling", with seconds for frames / fps."""
    wished = int((seconds + _ROUNDING_S) * settings.fps)
    number = min(max(wished, settings.min_frames), settings.max_frames, num_there)
    return max(number // settings.temporal_patch_size * settings.temporal_patch_size, 1)


def _spread(ticks: Int64, num_frames: int, index: FrameIndex) -> tuple[Int64, Int64]:
    """(ticks of the chosen frames, times they were asked for)."""
    steps = np.arange(num_frames, dtype=np.int64)
    gaps = max(num_frames - 1, 1)
    if _is_constant(ticks):
        chosen = ticks[steps * (len(ticks) - 1) // gaps]
        return chosen, chosen
    asked = int(ticks[0]) + steps * int(ticks[-1] - ticks[0]) // gaps
    return ticks[np.searchsorted(ticks, asked, side="right") - 1], asked


def _is_constant(ticks: Int64) -> bool:
    """Whether every frame is where a constant rate puts it, but for rounding to the time base."""
    even = int(ticks[0]) + np.arange(len(ticks)) * (float(ticks[-1] - ticks[0]) / max(len(ticks) - 1, 1))
    return bool(np.abs(ticks - even).max() <= 1.0) and bool((np.diff(ticks) > 0).all())


def _times(chosen: Int64, asked: Int64, index: FrameIndex) -> tuple[float, ...]:
    repeats = np.zeros(len(chosen), dtype=bool)
    repeats[1:] = chosen[1:] == chosen[:-1]
    return tuple(index.seconds(int(tick)) for tick in np.where(repeats, asked, chosen))


def _nearest(sorted_values: Int64, wanted: Int64) -> Int64:
    right = np.clip(np.searchsorted(sorted_values, wanted), 1, max(len(sorted_values) - 1, 1))
    right = np.minimum(right, len(sorted_values) - 1)
    left = np.maximum(right - 1, 0)
    closer_left = wanted - sorted_values[left] <= sorted_values[right] - wanted
    return np.where(closer_left, left, right)
