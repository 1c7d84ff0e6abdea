"""What decoding a video or a sound yields, part by part. Plain data that travels between processes."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TypeAlias

import numpy as np
import numpy.typing as npt


@dataclass(frozen=True, kw_only=True)
class PlanPart:
    """First part of a video, before anything is decoded.

    frame_times_s: of each sampled frame, seconds from the video's first frame. frames_per_unit: frames that make
    one unit. tokens_per_unit: embeddings of a unit. audio_start_s: where its sound begins on the same clock.
    """

    frame_times_s: tuple[float, ...]
    frames_per_unit: int
    tokens_per_unit: int
    audio_start_s: float


@dataclass(frozen=True, kw_only=True)
class FramePart:
    """The next sampled frames, uint8 [n, 3, H, W] at their final size; n is a multiple of frames_per_unit."""

    frames: npt.NDArray[np.uint8] = field(repr=False)


@dataclass(frozen=True, kw_only=True)
class MelPart:
    """The next segment of sound, log-mel float32 [frames, mels]."""

    mel: npt.NDArray[np.float32] = field(repr=False)


@dataclass(frozen=True, kw_only=True)
class ReportPart:
    """Last part. decode_ms: time spent on decoding. notes: damage and other remarks, in words."""

    decode_ms: float = 0.0
    notes: tuple[str, ...] = ()


DecodedPart: TypeAlias = "PlanPart | FramePart | MelPart | ReportPart"
