"""Prints a line of text into a picture and tells where each glyph came to lie. Knows no questions."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from PIL import Image, ImageDraw

from samples.demo_training.scenes import fonts
from samples.demo_training.scenes.base import Split
from samples.demo_training.scenes.layouts import Ground
from samples.demo_training.scenes.shapes import COLOURS, Rgb, pick, shade, spread

Box: TypeAlias = tuple[float, float, float, float]

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
        left, top, right, bottom = zip(*self.boxes, strict=True)
        return min(left), min(top), max(right), max(bottom)

    def paint(self, canvas: Image.Image) -> None:
        canvas.paste(self.shade, self.at, self.ink)


def _luma(rgb: Rgb) -> float:
    return 0.299 * rgb[0] + 0.587 * rgb[1] + 0.114 * rgb[2]


def ink_for(rng: np.random.Generator, split: Split, behind: Ground, taken: list[str]) -> tuple[str, Rgb]:
    """A colour, none of the taken ones, and a shade of it that can be read on the ground."""
    while True:
        colour = pick(rng, [name for name in COLOURS if name not in taken])
        found = shade(rng, colour, split)
        if min(abs(_luma(found) - _luma(corner)) for corner in behind.corners) >= _MIN_LUMA_STEP:
            return colour, found


def set_line(
    rng: np.random.Generator,
    split: Split,
    text: str,
    behind: Ground,
    taken: list[str],
    height_share: float = 1.0,
) -> Line:
    """Sets the text somewhere in the picture: any font of the split, height, slight turn, slant and stretch.

    height_share: how much of the tallest height it may take, so that shapes find room.
    """
    face = pick(rng, fonts.faces(split))
    low = max(0.09, _MIN_CAP_PX / 256 * math.sqrt(behind.width * behind.height) / behind.side)
    cap = spread(rng, low, max(low, 0.35 * height_share), split) * behind.side
    matrix = _warp(rng, split)
    spacing = 0.12 * rng.random() if rng.random() < 0.3 else 0.0
    fine = 1 if matrix is None else 2
    while True:
        font = fonts.load(face, max(8, round(fine * cap / fonts.cap_share(face))))
        boxes, advance = [], 0.0
        for glyph in text:
            left, top, right, bottom = font.getbbox(glyph, anchor="ls")
            boxes.append((round(advance) + left, top, round(advance) + right, bottom))
            advance += font.getlength(glyph) + spacing * font.size
        left, top = min(box[0] for box in boxes), min(box[1] for box in boxes)
        right, bottom = max(box[2] for box in boxes), max(box[3] for box in boxes)
        outline = ((left, top), (right, top), (right, bottom), (left, bottom))
        turned = [_apply(matrix, corner) for corner in outline]
        width = max(x for x, _ in turned) - min(x for x, _ in turned)
        height = max(y for _, y in turned) - min(y for _, y in turned)
        if width <= 0.95 * behind.width and height <= 0.95 * behind.height:
            break
        cap *= min(0.97, 0.95 * behind.width / width, 0.95 * behind.height / height)
    sheet = Image.new("L", (math.ceil(right - left), math.ceil(bottom - top)))
    draw = ImageDraw.Draw(sheet)
    for glyph, box, offset in zip(
        text, boxes, [font.getbbox(glyph, anchor="ls") for glyph in text], strict=True
    ):
        draw.text((box[0] - offset[0] - left, -top), glyph, font=font, fill=255, anchor="ls")
    x0, y0 = min(x for x, _ in turned), min(y for _, y in turned)
    at = round(rng.random() * (behind.width - width)), round(rng.random() * (behind.height - height))
    if matrix is not None:
        sheet = _warped(sheet, matrix, (left, top), (x0, y0), (math.ceil(width), math.ceil(height)))
    placed = []
    for box in boxes:
        corners = [_apply(matrix, (box[i], box[j])) for i in (0, 2) for j in (1, 3)]
        across, down = [x - x0 + at[0] for x, _ in corners], [y - y0 + at[1] for _, y in corners]
        placed.append((min(across), min(down), max(across), max(down)))
    colour, found = ink_for(rng, split, behind, taken)
    return Line(ink=sheet, at=at, boxes=tuple(placed), colour=colour, shade=found)


Matrix: TypeAlias = tuple[float, float, float, float]


def _warp(rng: np.random.Generator, split: Split) -> Matrix | None:
    """From twice the size to the picture: turn, slant and stretch; None leaves the line as the font has it."""
    if rng.random() < 0.4:
        return None
    turn = math.radians(spread(rng, -8, 8, split))
    slant = math.tan(math.radians(rng.uniform(-7, 7))) if rng.random() < 0.4 else 0.0
    stretch = rng.uniform(0.88, 1.14) if rng.random() < 0.5 else 1.0
    cos, sin = math.cos(turn) / 2, math.sin(turn) / 2
    return cos * stretch, cos * slant - sin, sin * stretch, sin * slant + cos


def _apply(matrix: Matrix | None, point: tuple[float, float]) -> tuple[float, float]:
    if matrix is None:
        return point
    a, b, c, d = matrix
    return a * point[0] + b * point[1], c * point[0] + d * point[1]


def _warped(
    sheet: Image.Image,
    matrix: Matrix,
    origin: tuple[float, float],
    new_origin: tuple[float, float],
    size: tuple[int, int],
) -> Image.Image:
    """The sheet, its corner at `origin`, seen through the matrix in a frame with its corner at `new_origin`."""
    a, b, c, d = matrix
    area = a * d - b * c
    a, b, c, d = d / area, -b / area, -c / area, a / area
    x, y = (
        a * new_origin[0] + b * new_origin[1] - origin[0],
        c * new_origin[0] + d * new_origin[1] - origin[1],
    )
    return sheet.transform(size, Image.Transform.AFFINE, (a, b, x, c, d, y), Image.Resampling.BICUBIC)
