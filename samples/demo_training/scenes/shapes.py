"""The world's shapes and colours: their names, shades and outlines, and how one is painted. Knows no questions."""

from __future__ import annotations

import colorsys
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias, TypeVar

import numpy as np
from PIL import Image, ImageDraw

from samples.demo_training.scenes.base import Split

Rgb: TypeAlias = tuple[int, int, int]
Item = TypeVar("Item")

SHAPES = ("circle", "square", "triangle", "star", "cross")
COLOURS = ("red", "green", "blue", "yellow", "orange", "purple", "black", "white")
CHROMATIC = COLOURS[:6]

# Hue in degrees, saturation and value: lowest and highest. Names that people use for the gaps between these
# (brown, pink, turquoise, grey) are outside the world. The pure colours of CSS are all inside.
_RANGES = {
    "red": ((-10, 7), (0.78, 1), (0.68, 1)),
    "orange": ((23, 39), (0.85, 1), (0.94, 1)),
    "yellow": ((51, 60), (0.78, 1), (0.9, 1)),
    "green": ((98, 150), (0.6, 1), (0.45, 1)),
    "blue": ((208, 241), (0.68, 1), (0.58, 1)),
    "purple": ((270, 301), (0.6, 1), (0.45, 0.78)),
    "black": ((0, 360), (0, 0.3), (0, 0.11)),
    "white": ((0, 360), (0, 0.03), (0.91, 1)),
}
_NUM_CELLS = 8


def pick(rng: np.random.Generator, items: Sequence[Item]) -> Item:
    """One of the items, each as likely. (Generator.choice takes twenty times as long.)"""
    return items[int(rng.integers(len(items)))]


def spread(rng: np.random.Generator, low: float, high: float, split: Split) -> float:
    """A number in low..high: in one of eight bands for "train", in the gaps between them for "test"."""
    if split == "train":
        place = int(rng.integers(_NUM_CELLS)) + 0.7 * rng.random()
    else:
        place = int(rng.integers(_NUM_CELLS - 1)) + 0.75 + 0.2 * rng.random()
    return low + (high - low) * place / (_NUM_CELLS - 0.3)


def is_held_out(rgb: Rgb) -> bool:
    """Whether a shade belongs to "test": every fourth step of brightness does."""
    return sum(rgb) // 20 % 4 == 3


def shade(rng: np.random.Generator, colour: str, split: Split) -> Rgb:
    """A shade that everybody calls by the name `colour`."""
    hues, saturations, values = _RANGES[colour]
    while True:
        hue, saturation, value = (
            low + (high - low) * rng.random() for low, high in (hues, saturations, values)
        )
        red, green, blue = colorsys.hsv_to_rgb(hue % 360 / 360, saturation, value)
        found = (round(red * 255), round(green * 255), round(blue * 255))
        if is_held_out(found) == (split == "test"):
            return found


def _ring(num_corners: int, *radii: float) -> tuple[tuple[float, float], ...]:
    corners = []
    for index in range(num_corners):
        angle = 2 * math.pi * index / num_corners - math.pi / 2
        radius = radii[index % len(radii)]
        corners.append((radius * math.cos(angle), radius * math.sin(angle)))
    return tuple(corners)


# Corners round the centre, for a shape of size 2.
_CORNERS = {
    "square": ((-0.9, -0.9), (0.9, -0.9), (0.9, 0.9), (-0.9, 0.9)),
    "triangle": tuple((x * 1.12, y * 1.12 + 0.2) for x, y in _ring(3, 1.0)),
    "star": _ring(10, 1.12, 0.46),
    "cross": tuple(
        (x * sign, y * sign)
        for sign in (1, -1)
        for x, y in ((-0.3, -1), (0.3, -1), (0.3, -0.3), (1, -0.3), (1, 0.3), (0.3, 0.3))
    ),
}


@dataclass(frozen=True, kw_only=True)
class Shape:
    """A shape in a picture. x, y: its centre in pixels; size: about its width in pixels; turn: in degrees."""

    kind: str
    colour: str
    shade: Rgb
    x: float
    y: float
    size: float
    turn: float = 0.0

    @property
    def name(self) -> str:
        return f"{self.colour} {self.kind}"

    def corners(self) -> list[tuple[float, float]]:
        """In pixels; of a circle the four extremes."""
        half, angle = self.size / 2, math.radians(self.turn)
        if self.kind == "circle":
            return [(self.x + half * dx, self.y + half * dy) for dx, dy in ((-1, 0), (0, -1), (1, 0), (0, 1))]
        cos, sin = half * math.cos(angle), half * math.sin(angle)
        return [(self.x + x * cos - y * sin, self.y + x * sin + y * cos) for x, y in _CORNERS[self.kind]]

    @property
    def box(self) -> tuple[float, float, float, float]:
        """Left, top, right, bottom in pixels."""
        across, down = zip(*self.corners(), strict=True)
        return min(across), min(down), max(across), max(down)


def paint(canvas: Image.Image, shape: Shape) -> None:
    """Paints the shape with smooth edges; what lies outside the canvas is cut off."""
    left, top, right, bottom = shape.box
    left_px, top_px = math.floor(left), math.floor(top)
    width, height = math.ceil(right) - left_px + 1, math.ceil(bottom) - top_px + 1
    fine = 4 if shape.size < 120 else 2
    mask = Image.new("L", (width * fine, height * fine))
    draw = ImageDraw.Draw(mask)
    # Pillow names pixels by their centres: the corner (x, y) of the plane is at (x - 0.5, y - 0.5) there.
    if shape.kind == "circle":
        edges = (
            (left - left_px) * fine,
            (top - top_px) * fine,
            (right - left_px) * fine,
            (bottom - top_px) * fine,
        )
        draw.ellipse((edges[0], edges[1], edges[2] - 1, edges[3] - 1), fill=255)
    else:
        draw.polygon(
            [((x - left_px) * fine - 0.5, (y - top_px) * fine - 0.5) for x, y in shape.corners()], fill=255
        )
    canvas.paste(shape.shade, (left_px, top_px), mask.reduce(fine))
