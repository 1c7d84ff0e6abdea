"""What pictures and video frames share: their target size and how their pixels are normalised. Pure numbers."""

from __future__ import annotations

import math

from mm_pipeline.errors import InvalidMediaError

CLIP_MEAN = (0.48145466, 0.4578275, 0.40821073)
CLIP_STD = (0.26862954, 0.26130258, 0.27577711)

MAX_ASPECT_RATIO = 200


def smart_resize(
    height: int, width: int, *, factor: int, min_pixels: int, max_pixels: int
) -> tuple[int, int]:
    """(height, width) after resizing: multiples of `factor`, area in [min_pixels, max_pixels] where possible.

    Halves round to even. An image thinner than `factor` is first scaled up to it. The area bounds hold except where
    a side would fall under `factor`, which is the least a side can have.
    Raises InvalidMediaError when one side is over 200 times the other.
    """
    if height <= 0 or width <= 0:
        raise InvalidMediaError(f"image is {width} x {height} pixels; both sides must be at least 1")
    if max(height, width) > MAX_ASPECT_RATIO * min(height, width):
        raise InvalidMediaError(
            f"image is {width} x {height} pixels; one side may be at most {MAX_ASPECT_RATIO} times the other. "
            "Crop or split it."
        )
    if min(height, width) < factor:
        scale = factor / min(height, width)
        height, width = round(height * scale), round(width * scale)
    new_height, new_width = round(height / factor) * factor, round(width / factor) * factor
    if new_height * new_width > max_pixels:
        shrink = math.sqrt(height * width / max_pixels)
        new_height = max(factor, math.floor(height / shrink / factor) * factor)
        new_width = max(factor, math.floor(width / shrink / factor) * factor)
    elif new_height * new_width < min_pixels:
        grow = math.sqrt(min_pixels / (height * width))
        new_height = math.ceil(height * grow / factor) * factor
        new_width = math.ceil(width * grow / factor) * factor
    return new_height, new_width
