"""Prints a line of text into a picture and tells where each glyph came to lie. Knows no questions."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from PIL import Image, ImageDraw, ImageFont

from samples.demo_training.scenes import fonts
from samples.demo_training.scenes.base import Split
from samples.demo_training.scenes.layouts import Ground
from samples.demo_training.scenes.shapes import COLOURS, Rgb, pick, shade, spread

Box: TypeAlias = tuple[float, float, float, float]
Warp: TypeAlias = tuple[float, float, float, float]
"""a, b, c, d: the point (x, y) comes to lie at (a x + b y, c x + d y)."""

_MIN_LUMA_STEP = 70
_MIN_CAP_PX = 22
"""Of a capital once the picture has the area of 256 x 256."""


@dataclass(frozen=True, kw_only=True)
class Line:
    """A printed line. ink: coverage 0..255, its top left corner at `at`. boxes: of each glyph's ink, in pixels."""

    ink: Image.Image
    at: tuple[int, int]
    boxes: tuple[Box, ...]
    colour: str
    shade: Rgb

    @property
    def box(self) -> Box:
        return hull(self.boxes)

    def paint(self, canvas: Image.Image) -> None:
        canvas.paste(self.shade, self.at, self.ink)


def _luma(rgb: Rgb) -> float:
    return 0.299 * rgb[0] + 0.587 * rgb[1] + 0.114 * rgb[2]


def ink_for(rng: np.random.Generator, split: Split, behind: Ground) -> tuple[str, Rgb]:
    """A colour and a shade of it that can be read on the ground."""
    while True:
        colour = pick(rng, COLOURS)
        found = shade(rng, colour, split)
        if min(abs(_luma(found) - _luma(corner)) for corner in behind.corners) >= _MIN_LUMA_STEP:
            return colour, found


def set_line(
    rng: np.random.Generator, split: Split, text: str, behind: Ground, height_share: float = 1.0
) -> Line | None:
    """Sets the text somewhere in the picture: any font of the split, height, slight turn, slant and stretch.

    height_share: how much of the tallest height it may take, so that shapes find room. None where it would have
    to be too small to be read.
    """
    face = pick(rng, fonts.faces(split))
    low = max(0.09, _MIN_CAP_PX / 256 * math.sqrt(behind.width * behind.height) / behind.side)
    cap = spread(rng, low, max(low, 0.35 * height_share), split) * behind.side
    turned = warp(rng, split)
    spacing = 0.12 * rng.random() if rng.random() < 0.3 else 0.0
    while True:
        if cap < 0.95 * low * behind.side:
            return None
        laid = row(face, cap, spacing, text)
        left, top, right, bottom = hull([warped(turned, box) for box in laid.boxes])
        share = max((right - left) / behind.width, (bottom - top) / behind.height) / 0.95
        if share <= 1:
            break
        cap *= min(0.97, 1 / share)
    x = round(rng.random() * (behind.width - (right - left)) - left)
    y = round(rng.random() * (behind.height - (bottom - top)) - top)
    # The frame of the ink: a little room all round, as edges are smooth.
    left_px, top_px = math.floor(left) - 2, math.floor(top) - 2
    size = math.ceil(right) + 2 - left_px, math.ceil(bottom) + 2 - top_px
    colour, found = ink_for(rng, split, behind)
    boxes = [warped(turned, box) for box in laid.boxes]
    return Line(
        ink=drawn(laid, text, turned, (left_px, top_px), size),
        at=(left_px + x, top_px + y),
        boxes=tuple((box[0] + x, box[1] + y, box[2] + x, box[3] + y) for box in boxes),
        colour=colour,
        shade=found,
    )


@dataclass(frozen=True, kw_only=True)
class Row:
    """Glyphs side by side: pens are their places on the baseline, boxes those of their ink, the first pen at 0."""

    font: ImageFont.FreeTypeFont
    pens: list[int]
    boxes: list[Box]


def row(face: str, cap: float, spacing: float, text: str) -> Row:
    """cap: height of a capital in pixels. spacing: added between glyphs, as a share of the font's size."""
    font = fonts.load(face, cap / fonts.cap_share(face))
    pens, boxes, advance = [], [], 0.0
    for letter in text:
        step, (left, top, right, bottom) = fonts.glyph(face, round(font.size), letter)
        pens.append(round(advance))
        boxes.append((pens[-1] + left, top, pens[-1] + right, bottom))
        advance += step + spacing * font.size
    return Row(font=font, pens=pens, boxes=boxes)


def warp(rng: np.random.Generator, split: Split) -> Warp | None:
    """Turn, slant and stretch; None leaves the row as the font has it."""
    if rng.random() < 0.4:
        return None
    turn = math.radians(spread(rng, -8, 8, split))
    slant = math.tan(math.radians(rng.uniform(-7, 7))) if rng.random() < 0.4 else 0.0
    stretch = rng.uniform(0.88, 1.14) if rng.random() < 0.5 else 1.0
    cos, sin = math.cos(turn), math.sin(turn)
    return cos * stretch, cos * slant - sin, sin * stretch, sin * slant + cos


def hull(boxes: Sequence[Box]) -> Box:
    left, top, right, bottom = zip(*boxes, strict=True)
    return min(left), min(top), max(right), max(bottom)


def warped(warp: Warp | None, box: Box) -> Box:
    """The upright box about a warped one."""
    if warp is None:
        return box
    a, b, c, d = warp
    corners = [(a * x + b * y, c * x + d * y) for x in (box[0], box[2]) for y in (box[1], box[3])]
    across, down = zip(*corners, strict=True)
    return min(across), min(down), max(across), max(down)


def drawn(
    row: Row, text: str, warp: Warp | None, origin: tuple[int, int], size: tuple[int, int]
) -> Image.Image:
    """The row's ink in a frame of this size whose corner lies at `origin`."""
    if warp is None:
        frame, corner = size, origin
    else:
        left, top, right, bottom = hull(row.boxes)
        corner = math.floor(left) - 2, math.floor(top) - 2
        frame = math.ceil(right) + 2 - corner[0], math.ceil(bottom) + 2 - corner[1]
    sheet = Image.new("L", frame)
    draw = ImageDraw.Draw(sheet)
    for letter, pen in zip(text, row.pens, strict=True):
        draw.text((pen - corner[0], -corner[1]), letter, font=row.font, fill=255, anchor="ls")
    if warp is None:
        return sheet
    a, b, c, d = warp
    area = a * d - b * c
    a, b, c, d = d / area, -b / area, -c / area, a / area
    x, y = a * origin[0] + b * origin[1] - corner[0], c * origin[0] + d * origin[1] - corner[1]
    return sheet.transform(size, Image.Transform.AFFINE, (a, b, x, c, d, y), Image.Resampling.BICUBIC)
