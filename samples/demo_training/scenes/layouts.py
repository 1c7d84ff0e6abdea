"""Where shapes lie in a picture, and what the picture is like: size, ground, noise, blur. Knows no questions."""

from __future__ import annotations

import io
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np
from PIL import Image, ImageChops, ImageFilter

from samples.demo_training.scenes.base import Mark, Picture, Split
from samples.demo_training.scenes.shapes import (
    CHROMATIC,
    COLOURS,
    SHAPES,
    Rgb,
    Shape,
    paint,
    pick,
    shade,
    spread,
)

_LONG_PX = ((120, 200),) * 3 + ((200, 300),) * 12 + ((300, 480),) * 4 + ((480, 1000),)
_MIN_CONTRAST = 95
_MAX_TRIES = 40
_MIDDLE = 128
_MAX_RANDOM_BYTES = 50_021


@dataclass(frozen=True, kw_only=True)
class Ground:
    """What lies behind the shapes. corners: top left, top right, bottom left, bottom right; between them it flows.

    blur: radius in pixels. jpeg: quality, or 0 for none. noise: highest change of a pixel.
    """

    width: int
    height: int
    corners: tuple[Rgb, Rgb, Rgb, Rgb]
    noise: int
    blur: float
    jpeg: int

    @property
    def side(self) -> int:
        return min(self.width, self.height)

    def contrast(self, rgb: Rgb) -> float:
        """The least distance of a shade from the ground, 0..441."""
        return min(math.dist(rgb, corner) for corner in self.corners)


@dataclass(frozen=True, kw_only=True)
class Scene:
    """A picture before it is painted. Shapes are ordered from left to right."""

    ground: Ground
    shapes: tuple[Shape, ...]

    @property
    def kinds(self) -> list[str]:
        return [shape.kind for shape in self.shapes]

    @property
    def colours(self) -> list[str]:
        return [shape.colour for shape in self.shapes]

    @property
    def names(self) -> list[str]:
        return [shape.name for shape in self.shapes]


def ground(rng: np.random.Generator, split: Split, max_long: int = 1000) -> Ground:
    """Mostly near 256 x 256, as large pictures cost time and are scaled down anyway.

    max_long: of its longer side in pixels.
    """
    low, high = pick(rng, [band for band in _LONG_PX if band[1] <= max_long])
    long = spread(rng, low, high, split)
    aspect = pick(rng, (1.0, 1.0, 4 / 3, 1.5, 1 + rng.random()))
    short = max(120.0, long / aspect)
    width, height = (long, short) if rng.random() < 0.5 else (short, long)
    tones = pick(rng, ((232, 255), (232, 255), (100, 140), (12, 46)))
    tone = spread(rng, *tones, split)
    base = tone + rng.uniform(-9, 9, 3)
    slope = 0.0 if rng.random() < 0.6 else 30 * rng.random()
    turn = 2 * math.pi * rng.random()
    across, down = slope * math.cos(turn), slope * math.sin(turn)
    return Ground(
        width=round(width),
        height=round(height),
        corners=(_rgb(base), _rgb(base + across), _rgb(base + down), _rgb(base + across + down)),
        noise=round(spread(rng, 2, 24, split)) if rng.random() < 0.4 else 0,
        blur=0.4 + 0.5 * rng.random() if rng.random() < 0.15 else 0.0,
        jpeg=int(rng.integers(45, 95)) if rng.random() < 0.15 else 0,
    )


def _rgb(levels: np.ndarray[tuple[int, ...], np.dtype[np.float64]]) -> Rgb:
    red, green, blue = (min(255, max(0, round(float(level)))) for level in levels)
    return red, green, blue


def scene(
    rng: np.random.Generator,
    split: Split,
    *,
    num_shapes: int,
    kinds: Sequence[str] = SHAPES,
    colours: Sequence[str] = COLOURS,
    max_long: int = 1000,
) -> Scene:
    """Shapes that do not touch, of some of these kinds and colours, none of which the ground hides."""
    behind = ground(rng, split, max_long)
    fitting = [colour for colour in colours if _can_contrast(colour, behind)] or CHROMATIC
    shapes: list[Shape] = []
    for x, y, size in _places(rng, split, behind, num_shapes):
        kind, colour = pick(rng, kinds), pick(rng, fitting)
        shapes.append(figure(rng, split, behind, kind=kind, colour=colour, x=x, y=y, size=size))
    return Scene(ground=behind, shapes=tuple(sorted(shapes, key=lambda shape: (shape.x, shape.y))))


def some(rng: np.random.Generator, names: Sequence[str], most: int) -> list[str]:
    """At most so many of the names: few kinds and colours make numbers worth asking."""
    return [names[index] for index in rng.permutation(len(names))[:most]]


def figure(
    rng: np.random.Generator,
    split: Split,
    behind: Ground,
    *,
    kind: str,
    colour: str,
    x: float,
    y: float,
    size: float,
) -> Shape:
    """A shape in a shade that stands out from the ground, turned so little that it keeps its name."""
    found = shade(rng, colour, split)
    while behind.contrast(found) < _MIN_CONTRAST:
        found = shade(rng, colour, split)
    return _turned(rng, Shape(kind=kind, colour=colour, shade=found, x=x, y=y, size=size))


def any_figure(
    rng: np.random.Generator,
    split: Split,
    behind: Ground,
    *,
    taken: list[str],
    x: float,
    y: float,
    size: float,
) -> Shape | None:
    """A shape of any kind in a colour that is not taken, or None where the colour drawn cannot be seen."""
    colour = pick(rng, [name for name in COLOURS if name not in taken])
    if not _can_contrast(colour, behind):
        return None
    found = shade(rng, colour, split)
    if behind.contrast(found) < _MIN_CONTRAST:
        return None
    return _turned(rng, Shape(kind=pick(rng, SHAPES), colour=colour, shade=found, x=x, y=y, size=size))


def _turned(rng: np.random.Generator, shape: Shape) -> Shape:
    """Turned so little that it keeps its name."""
    turn = 0.0 if rng.random() < 0.5 else rng.uniform(-12, 12)
    if shape.kind in ("triangle", "star") and rng.random() < 0.25:
        turn = rng.uniform(0, 360)
    return replace(shape, turn=turn)


def _can_contrast(colour: str, behind: Ground) -> bool:
    tone = sum(behind.corners[0]) / 3
    return not ((colour == "white" and tone > 170) or (colour == "black" and tone < 80))


def _places(
    rng: np.random.Generator, split: Split, behind: Ground, num_shapes: int
) -> list[tuple[float, float, float]]:
    """Centre and size of each shape: in a row, in a column or anywhere."""
    width, height, side = behind.width, behind.height, behind.side
    # Below a tenth of the picture's mean side the parts of a star are lost when it is scaled to 256 x 256.
    low = max(0.13, 0.105 * math.sqrt(width * height) / side)
    equal = rng.random() < 0.4
    # In a row or column the shapes share its length.
    way = pick(rng, ("row", "column", "anywhere", "anywhere", "anywhere"))
    length = width if way == "row" else height
    if way != "anywhere" and low * side * 1.3 * num_shapes > length:
        way = "anywhere"
    room = (
        0.8 * length / side / num_shapes if way != "anywhere" else 0.75 / math.sqrt(max(1, num_shapes - 0.5))
    )
    high = max(low + 0.01, min(0.35, room))
    sizes = [spread(rng, low, high, split) * side for _ in range(num_shapes)]
    if equal:
        sizes = sizes[:1] * num_shapes
    if way != "anywhere":
        return _line(rng, behind, sizes, way)
    while True:
        places: list[tuple[float, float, float]] = []
        for size in sorted(sizes, reverse=True):
            for _ in range(_MAX_TRIES):
                edge = 0.6 * size
                x, y = edge + (width - 2 * edge) * rng.random(), edge + (height - 2 * edge) * rng.random()
                gap = 0.03 * side
                if all(max(abs(x - u), abs(y - v)) > 0.58 * (size + other) + gap for u, v, other in places):
                    places.append((x, y, size))
                    break
        if len(places) == num_shapes:
            return places
        sizes = [max(low * side, 0.9 * size) for size in sizes]


def _line(
    rng: np.random.Generator, behind: Ground, sizes: list[float], way: str
) -> list[tuple[float, float, float]]:
    long, short = (behind.width, behind.height) if way == "row" else (behind.height, behind.width)
    step = long / len(sizes)
    middle = short * rng.uniform(0.3, 0.7)
    middle = min(max(middle, 0.65 * max(sizes)), short - 0.65 * max(sizes))
    places = []
    for index, size in enumerate(sizes):
        along, across = (index + 0.5) * step, middle + 0.04 * size * rng.uniform(-1, 1)
        places.append((along, across, size) if way == "row" else (across, along, size))
    return places


def marks(shapes: tuple[Shape, ...]) -> tuple[Mark, ...]:
    return tuple(
        Mark(kind="shape", name=shape.kind, colour=shape.colour, box=shape.box, index=index)
        for index, shape in enumerate(shapes)
    )


def backdrop(behind: Ground) -> Image.Image:
    """The ground alone, without noise."""
    size = (behind.width, behind.height)
    if len(set(behind.corners)) == 1:
        return Image.new("RGB", size, behind.corners[0])
    small = Image.new("RGB", (2, 2))
    small.putdata(behind.corners)
    return small.resize(size, Image.Resampling.BILINEAR)


def develop(
    rng: np.random.Generator, canvas: Image.Image, behind: Ground, found: tuple[Mark, ...]
) -> Picture:
    """What a camera or an editor leaves on a finished canvas: blur, noise, JPEG."""
    if behind.blur:
        canvas = canvas.filter(ImageFilter.BoxBlur(behind.blur * behind.side / 256))
    if behind.noise:
        canvas = ImageChops.add(canvas, _grain(rng, behind), 1, -_MIDDLE)
    if behind.jpeg:
        file = io.BytesIO()
        canvas.save(file, "JPEG", quality=behind.jpeg)
        canvas = Image.open(file)
    return Picture(pixels=np.asarray(canvas), marks=found)


def _grain(rng: np.random.Generator, behind: Ground) -> Image.Image:
    """Noise about `_MIDDLE`. Of random bytes at most so many: the same ones again some rows below show nowhere."""
    num_bytes = 3 * behind.width * behind.height
    drawn = rng.bytes(min(num_bytes, _MAX_RANDOM_BYTES)).translate(_grain_table(behind.noise))
    repeated = drawn * math.ceil(num_bytes / len(drawn))
    return Image.frombytes("RGB", (behind.width, behind.height), repeated[:num_bytes])


@lru_cache(maxsize=32)
def _grain_table(most: int) -> bytes:
    """From a random byte to a level: the sum of its halves has a triangular spread, near enough to a camera's."""
    return bytes(_MIDDLE + round(((byte >> 4) + (byte & 15) - 15) * most / 15) for byte in range(256))


def render(rng: np.random.Generator, drawn: Scene) -> Picture:
    canvas = backdrop(drawn.ground)
    for shape in drawn.shapes:
        paint(canvas, shape)
    return develop(rng, canvas, drawn.ground, marks(drawn.shapes))
