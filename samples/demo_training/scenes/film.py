"""What is shown when in a clip, and the frame at any time of it. Knows no questions and no sound."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from samples.demo_training.scenes.base import Mark, Split
from samples.demo_training.scenes.layouts import Ground, backdrop, figure
from samples.demo_training.scenes.shapes import COLOURS, Rgb, Shape, paint, pick, shade, spread

# Width / height of the clips.
_ASPECTS = (1.0, 1.0, 4 / 3, 4 / 3, 16 / 9, 3 / 4)
# Levels of grey behind the shapes, with the colours that do not stand out from them.
_TONES: tuple[tuple[tuple[float, float], tuple[str, ...]], ...] = (
    ((232, 255), ("white",)),
    ((120, 150), ("white",)),
    ((12, 46), ("black",)),
)


@dataclass(frozen=True, kw_only=True)
class Take:
    """A shape on the screen in start_s <= time < end_s. It goes straight, at one speed, to (to_x, to_y)."""

    shape: Shape
    start_s: float
    end_s: float
    to_x: float
    to_y: float

    @property
    def moves(self) -> bool:
        return (self.to_x, self.to_y) != (self.shape.x, self.shape.y)

    def at(self, seconds: float) -> Shape:
        """The shape where it is at this time."""
        if not self.moves:
            return self.shape
        share = (seconds - self.start_s) / (self.end_s - self.start_s)
        x = self.shape.x + share * (self.to_x - self.shape.x)
        y = self.shape.y + share * (self.to_y - self.shape.y)
        return replace(self.shape, x=x, y=y)


def still(shape: Shape, start_s: float, end_s: float) -> Take:
    """The shape in its place for so long."""
    return Take(shape=shape, start_s=start_s, end_s=end_s, to_x=shape.x, to_y=shape.y)


class Film:
    """Backdrops, each from its time on (the first from 0), and takes before them."""

    def __init__(
        self, backdrops: Sequence[tuple[float, NDArray[np.uint8]]], takes: Sequence[Take] = ()
    ) -> None:
        self._backdrops = tuple(backdrops)
        self._takes = tuple(takes)
        self._last: tuple[tuple[int, ...], NDArray[np.uint8]] | None = None

    def draw(self, seconds: float) -> NDArray[np.uint8]:
        """The frame at this time, uint8 [height, width, 3]; not to be written to, as later ones may share it."""
        behind = max(i for i, (start_s, _) in enumerate(self._backdrops) if start_s <= seconds or i == 0)
        shown = [i for i, take in enumerate(self._takes) if take.start_s <= seconds < take.end_s]
        state = (behind, *shown)
        if self._last is not None and self._last[0] == state:
            return self._last[1]
        canvas = Image.fromarray(self._backdrops[behind][1])
        for index in shown:
            paint(canvas, self._takes[index].at(seconds))
        frame = np.asarray(canvas)
        self._last = None if any(self._takes[i].moves for i in shown) else (state, frame)
        return frame

    def marks(self, seconds: float) -> tuple[Mark, ...]:
        """The shapes shown at this time; index: of the take."""
        return tuple(
            Mark(kind="shape", name=shape.kind, colour=shape.colour, box=shape.box, index=index)
            for index, take in enumerate(self._takes)
            if take.start_s <= seconds < take.end_s
            for shape in (take.at(seconds),)
        )


@dataclass(frozen=True, kw_only=True)
class Stage:
    """The screen of a clip. colours: those that stand out from it."""

    ground: Ground
    colours: tuple[str, ...]
    grain: NDArray[np.int16] | None

    @property
    def pixels(self) -> NDArray[np.uint8]:
        return self._with_grain(np.asarray(backdrop(self.ground)))

    def flooded(self, rgb: Rgb) -> NDArray[np.uint8]:
        """The whole screen in one shade."""
        full = np.empty((self.ground.height, self.ground.width, 3), np.uint8)
        full[:] = rgb
        return self._with_grain(full)

    def shape(
        self,
        rng: np.random.Generator,
        split: Split,
        *,
        kind: str,
        colour: str,
        x: float,
        y: float,
        size: float,
    ) -> Shape:
        """x, y: shares of width and height; size: a share of the shorter side."""
        return figure(
            rng,
            split,
            self.ground,
            kind=kind,
            colour=colour,
            x=x * self.ground.width,
            y=y * self.ground.height,
            size=size * self.ground.side,
        )

    def recoloured(self, rng: np.random.Generator, split: Split, shape: Shape, colour: str) -> Shape:
        """The same shape in another colour."""
        fresh = figure(
            rng, split, self.ground, kind=shape.kind, colour=colour, x=shape.x, y=shape.y, size=shape.size
        )
        return replace(shape, colour=colour, shade=fresh.shade)

    def _with_grain(self, pixels: NDArray[np.uint8]) -> NDArray[np.uint8]:
        if self.grain is None:
            return pixels
        grained = pixels + self.grain
        return np.clip(grained, 0, 255, out=grained).astype(np.uint8)


def stage(rng: np.random.Generator, split: Split) -> Stage:
    """A screen of 96 to 288 pixels, mostly plain; even numbers, as video codecs want them."""
    aspect = pick(rng, _ASPECTS)
    short = spread(rng, 96, 160, split)
    width, height = (short * aspect, short) if aspect >= 1 else (short, short / aspect)
    tones, hidden = pick(rng, _TONES)
    tone = spread(rng, *tones, split)
    base = tone + rng.uniform(-9, 9, 3)
    slope = 0.0 if rng.random() < 0.6 else float(rng.uniform(-18, 18))
    first, second = _rgb(base), _rgb(base + slope)
    corners = (first, first, second, second) if rng.random() < 0.5 else (first, second, first, second)
    size = (2 * round(width / 2), 2 * round(height / 2))
    grain = None
    if rng.random() < 0.4:
        strength = round(spread(rng, 2, 12, split))
        grain = rng.integers(-strength, strength + 1, (size[1], size[0], 1), np.int16)
    return Stage(
        ground=Ground(width=size[0], height=size[1], corners=corners, noise=0, blur=0.0, jpeg=0),
        colours=tuple(colour for colour in COLOURS if colour not in hidden),
        grain=grain,
    )


def flood(rng: np.random.Generator, split: Split, screen: Stage, colour: str) -> NDArray[np.uint8]:
    """The whole screen in a shade of this colour."""
    return screen.flooded(shade(rng, colour, split))


def _rgb(levels: NDArray[np.float64]) -> Rgb:
    red, green, blue = (min(255, max(0, round(float(level)))) for level in levels)
    return red, green, blue
