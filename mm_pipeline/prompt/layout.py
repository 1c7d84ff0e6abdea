"""Where the embeddings of a video belong in time, and in which order a prompt shows them.

Knows times and counts, no tokens and no tensors.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import groupby, pairwise
from typing import Any

import numpy as np

ONE_BLOCK = -1.0
"""`ExpansionSettings.audio_interleave_s` for all of a video's sound after all of its frames."""


@dataclass(frozen=True, kw_only=True)
class VideoLayout:
    """The embeddings of a video are `num_units` x `tokens_per_unit` video rows in order, then the audio rows.

    frame_times_s: when each sampled frame is shown, in order; the prompt names the second of a unit's first frame.
    A clip that is sampled above 1 fps so repeats a second, as the model's own processor does.
    tokens_per_unit: rows of one unit. audio_tokens: rows of the sound.
    frames_per_unit: frames in one unit; the last unit may have fewer.
    audio_start_s: when the sound's first row begins, on the clock of the frames.
    keep_surplus_audio: whether sound from after the last unit stays, in the last block, or is left out.
    """

    frame_times_s: tuple[float, ...]
    tokens_per_unit: int
    audio_tokens: int = 0
    frames_per_unit: int = 2
    audio_start_s: float = 0.0
    keep_surplus_audio: bool = False

    def __post_init__(self) -> None:
        if not self.frame_times_s or any(after < before for before, after in pairwise(self.frame_times_s)):
            raise ValueError("frame_times_s must hold at least one time, none before the one ahead of it")
        if self.tokens_per_unit < 1 or self.frames_per_unit < 1 or self.audio_tokens < 0:
            raise ValueError(
                f"tokens_per_unit {self.tokens_per_unit}, frames_per_unit {self.frames_per_unit}, audio_tokens "
                f"{self.audio_tokens}: need at least 1, 1 and 0"
            )

    @property
    def num_units(self) -> int:
        return -(-len(self.frame_times_s) // self.frames_per_unit)

    @property
    def num_video_tokens(self) -> int:
        return self.num_units * self.tokens_per_unit

    @property
    def num_tokens(self) -> int:
        """Rows of video and sound together."""
        return self.num_video_tokens + self.audio_tokens


@dataclass(frozen=True, kw_only=True)
class ExpansionSettings:
    """How a checkpoint wants videos with sound written.

    audio_interleave_s: a block of sound after every unit (0), after the units of every so many seconds (above 0),
    or once at the end (-1). audio_tokens_per_s: embeddings of a second of sound.
    """

    audio_interleave_s: float = 0.0
    audio_tokens_per_s: float = 6.25

    def __post_init__(self) -> None:
        if not (self.audio_interleave_s >= 0 or self.audio_interleave_s == ONE_BLOCK):
            raise ValueError(f"audio_interleave_s is {self.audio_interleave_s}; it must be 0 or more, or -1")
        if not self.audio_tokens_per_s > 0:
            raise ValueError(f"audio_tokens_per_s is {self.audio_tokens_per_s}; it must be above 0")

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> ExpansionSettings:
        """From `config.json` as a dict: `video_audio_interleave_length`, `audio_input_id_per_second` and
        `audio_group_size` of its `processor_config`. Raises ValueError for a processor without timestamps.
        """
        processor: Mapping[str, Any] = config.get("processor_config", {})
        if not processor.get("use_video_timestamps", True):
            raise ValueError("processor_config: use_video_timestamps is false; only true is supported")
        codes_per_s = processor.get("audio_input_id_per_second", 25.0)
        return cls(
            audio_interleave_s=float(processor.get("video_audio_interleave_length") or 0.0),
            audio_tokens_per_s=codes_per_s / processor.get("audio_group_size", 4),
        )


@dataclass(frozen=True, kw_only=True)
class Block:
    """One timestamp with its units [first_unit, last_unit) and then the audio rows [first_audio, last_audio).

    start_s: time of the first unit's first frame. Audio rows count from the sound's first.
    """

    start_s: float
    first_unit: int
    last_unit: int
    first_audio: int
    last_audio: int


def blocks_of(layout: VideoLayout, settings: ExpansionSettings) -> tuple[Block, ...]:
    """The blocks of a video in order. No audio row is passed over; a block after the sound's end has none.

    A unit hears the rows that begin between its first frame and the next unit's; the first unit also those before
    it, and the last one those up to one frame interval after the last frame.
    """
    starts_s = layout.frame_times_s[:: layout.frames_per_unit]
    edges = _audio_edges(layout, settings)
    blocks = []
    for units in _unit_groups(starts_s, settings.audio_interleave_s):
        first, last = units[0], units[-1] + 1
        blocks.append(
            Block(
                start_s=starts_s[first],
                first_unit=first,
                last_unit=last,
                first_audio=edges[first],
                last_audio=edges[last],
            )
        )
    return tuple(blocks)


def timestamp(seconds: float) -> str:
    """MM:SS, rounded down; minutes go on past 59."""
    minutes, rest = divmod(int(seconds), 60)
    return f"{minutes:02d}:{rest:02d}"


def _unit_groups(starts_s: tuple[float, ...], interleave_s: float) -> list[list[int]]:
    units = range(len(starts_s))
    if interleave_s == ONE_BLOCK:
        return [list(units)]
    if interleave_s == 0:
        return [[unit] for unit in units]
    return [list(group) for _, group in groupby(units, key=lambda unit: starts_s[unit] // interleave_s)]


def _audio_edges(layout: VideoLayout, settings: ExpansionSettings) -> list[int]:
    """Unit i hears the audio rows [edges[i], edges[i + 1])."""
    # In float32 as the model's own processor, so that a frame at the border of two rows falls on the same side.
    times = np.asarray(layout.frame_times_s, dtype=np.float32) - np.float32(layout.audio_start_s)
    # The processor takes the first interval for all of them, and 1 s for a single frame.
    interval = times[1] - times[0] if len(times) > 1 else np.float32(1)
    ends = np.append(times[layout.frames_per_unit :: layout.frames_per_unit], times[-1] + interval)
    rows = (ends * np.float32(settings.audio_tokens_per_s)).astype(np.int64)
    if layout.keep_surplus_audio:
        rows[-1] = layout.audio_tokens
    edges: list[int] = np.maximum.accumulate(rows.clip(0, layout.audio_tokens)).tolist()
    return [0, *edges]
