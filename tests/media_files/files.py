"""What a test file is: bytes and the truth about them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True, kw_only=True)
class VideoFile:
    """times_s, numbers: the frames a player shows, in order, from the first one's time. height, width: upright and
    with square pixels. time_error_s: what the container's clock rounds away. matrix, full_range, bits: how the
    pixels are to be read."""

    data: bytes
    times_s: tuple[float, ...]
    numbers: tuple[int, ...]
    height: int = 128
    width: int = 192
    rotation: int = 0
    time_error_s: float = 0.0011
    matrix: str = "bt601"
    full_range: bool = False
    bits: int = 8


@dataclass(frozen=True, kw_only=True)
class SoundFile:
    """num_samples: real samples per channel at `rate`. burst_times_s: where the bursts of a tone begin. level: RMS
    of the mono mix inside a burst, None where the mix is not told by a formula."""

    data: bytes
    num_samples: int
    rate: int
    burst_times_s: tuple[float, ...] = ()
    level: float | None = None


VIDEO_FILES: dict[str, Callable[[], VideoFile]] = {}
SOUND_FILES: dict[str, Callable[[], SoundFile]] = {}


def video_file(build: Callable[[], VideoFile]) -> Callable[[], VideoFile]:
    """Enters a builder into VIDEO_FILES under its name; builds once."""
    return VIDEO_FILES.setdefault(build.__name__, _once(build))


def sound_file(build: Callable[[], SoundFile]) -> Callable[[], SoundFile]:
    """Enters a builder into SOUND_FILES under its name; builds once."""
    return SOUND_FILES.setdefault(build.__name__, _once(build))


def _once(build: Callable[[], object]) -> Callable[[], object]:
    made: list[object] = []

    def cached() -> object:
        if not made:
            made.append(build())
        return made[0]

    cached.__name__, cached.__doc__ = build.__name__, build.__doc__
    return cached


def tone(seconds: float, rate: int, frequency: float = 1000.0, level: float = 0.5) -> np.ndarray:
    """float32 [n]: a sine of the given amplitude."""
    return (level * np.sin(2 * np.pi * frequency * np.arange(round(seconds * rate)) / rate)).astype(
        np.float32
    )


def bursts(seconds: float, rate: int, times_s: tuple[float, ...], level: float = 0.5) -> np.ndarray:
    """float32 [n]: silence, and 100 ms of a tone at each time."""
    wave = np.zeros(round(seconds * rate), np.float32)
    for time in times_s:
        begin = round(time * rate)
        wave[begin : begin + rate // 10] = tone(0.1, rate, level=level)
    return wave
