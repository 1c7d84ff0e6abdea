"""What a scene is: media with their truth, and questions with their answers. Knows no model and draws nothing."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

Split: TypeAlias = Literal["train", "test"]
"""Fonts, shades, levels, sizes and noise of "test" never occur in "train"."""

SAMPLE_RATE = 24_000


@dataclass(frozen=True, kw_only=True)
class Mark:
    """A shape or a letter in a picture.

    kind: "shape" or "glyph". name: "circle", or the character in upper case. colour: its everyday name.
    box: left, top, right, bottom in pixels. index: place in the order in which answers name it, from 0.
    """

    kind: Literal["shape", "glyph"]
    name: str
    colour: str
    box: tuple[float, float, float, float]
    index: int


@dataclass(frozen=True, kw_only=True)
class Picture:
    """pixels: uint8 [height, width, 3], RGB."""

    pixels: NDArray[np.uint8]
    marks: tuple[Mark, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Tone:
    """A stretch of a sound. kind: "dtmf" (name is the key), "morse" (name is "." or "-"), "beep" or "sweep".

    start_hz and end_hz are of its lower tone. level: root mean square of its samples.
    """

    kind: Literal["dtmf", "morse", "beep", "sweep"]
    name: str
    start_s: float
    end_s: float
    start_hz: float
    end_hz: float
    level: float


@dataclass(frozen=True, kw_only=True)
class Sound:
    """samples: float32 [n] in -1..1, one channel at `SAMPLE_RATE`."""

    samples: NDArray[np.float32]
    tones: tuple[Tone, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Clip:
    """A video. draw(seconds) is the frame shown then, uint8 [height, width, 3]; sound starts with the video.

    facts(seconds): what has been seen by the frame at that time, by the names in `facts.FACTS`.
    marks(seconds): the shapes in that frame.
    """

    duration_s: float
    draw: Callable[[float], NDArray[np.uint8]]
    sound: Sound | None = None
    facts: Callable[[float], Mapping[str, str]] = field(default=lambda seconds: {})
    marks: Callable[[float], tuple[Mark, ...]] = field(default=lambda seconds: ())


Medium: TypeAlias = Picture | Sound | Clip


@dataclass(frozen=True, kw_only=True)
class Turn:
    """A question about the media or about what was said before, its answer word by word, and the task it tests."""

    question: str
    answer: str
    task: str


@dataclass(frozen=True, kw_only=True)
class Sample:
    """A conversation: the media come with the first question."""

    turns: tuple[Turn, ...]
    media: tuple[Medium, ...] = field(default=())
