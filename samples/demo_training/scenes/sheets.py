"""Pages full of letters and digits, for teaching the eye its letters; nobody asks questions about them."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np

from samples.demo_training.scenes import fonts, layouts, printing
from samples.demo_training.scenes.base import Mark, Picture, Split
from samples.demo_training.scenes.shapes import pick

# Rows are of one kind, or 0 and O could not be told apart.
_KINDS = ("0123456789", "ABCDEFGHIJKLMNOPQRSTUVWXYZ", "ABCDEFGHIJKLMNOPQRSTUVWXYZ")
_CASES = (str.upper, str.upper, str.lower)
_CAP_PX = (22.0, 64.0)
"""Of a capital once the picture has the area of 256 x 256; small ones come more often."""
UNPLACED = 1000
"""`Mark.index` of a glyph that has no place in a word."""


def sheet(rng: np.random.Generator, split: Split) -> Picture:
    """Rows of characters from top to bottom, each row in a font, height, turn and ink of its own."""
    behind = layouts.ground(rng, split, max_long=450)
    canvas = layouts.backdrop(behind)
    unit = math.sqrt(behind.width * behind.height) / 256
    marks: list[Mark] = []
    bottom = unit * 4 * rng.random()
    while True:
        cap = unit * _CAP_PX[0] * (_CAP_PX[1] / _CAP_PX[0]) ** (rng.random() ** 1.5)
        line = _line(rng, split, behind, cap, bottom)
        if line is None:
            return layouts.develop(rng, canvas, behind, tuple(marks))
        printed, text = line
        printed.paint(canvas)
        marks += [
            Mark(kind="glyph", name=letter, colour=printed.colour, box=box, index=UNPLACED)
            for letter, box in zip(text, printed.boxes, strict=True)
        ]
        bottom = printed.box[3] + unit * (2 + 6 * rng.random())


def _line(
    rng: np.random.Generator, split: Split, behind: layouts.Ground, cap: float, top: float
) -> tuple[printing.Line, str] | None:
    """A row below `top` and its characters in capitals; None where no row fits any more."""
    count = max(1, int(behind.width / (0.95 * cap)))
    characters = pick(rng, _KINDS)
    text = "".join(pick(rng, characters) for _ in range(count))
    spacing = 0.12 * rng.random() if rng.random() < 0.3 else 0.0
    shown = pick(rng, _CASES)(text)
    row = printing.row(pick(rng, fonts.faces(split)), cap, spacing, shown)
    warp = printing.warp(rng, split)
    boxes = [printing.warped(warp, box) for box in row.boxes]
    while boxes and printing.hull(boxes)[2] - printing.hull(boxes)[0] > behind.width:
        boxes.pop()
    if not boxes:
        return None
    count = len(boxes)
    text, shown = text[:count], shown[:count]
    row = replace(row, pens=row.pens[:count], boxes=row.boxes[:count])
    left, upper, right, lower = printing.hull(boxes)
    if top + lower - upper > behind.height:
        return None
    x, y = round(rng.random() * (behind.width - (right - left)) - left), round(top - upper)
    corner = math.floor(left) - 2, math.floor(upper) - 2
    size = math.ceil(right) + 2 - corner[0], math.ceil(lower) + 2 - corner[1]
    colour, shade = printing.ink_for(rng, split, behind)
    line = printing.Line(
        ink=printing.drawn(row, shown, warp, corner, size),
        at=(corner[0] + x, corner[1] + y),
        boxes=tuple((box[0] + x, box[1] + y, box[2] + x, box[3] + y) for box in boxes),
        colour=colour,
        shade=shade,
    )
    return line, text
