"""Target size, bilinear resize without antialias, normalisation and patch order.

The definition, in plain torch. Knows nothing of files or limits.

Shape letters: H, W source size; h, w resized size; N = (h/P) * (w/P) patches of side P; M patches per token side;
T time slices.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F

from mm_pipeline.errors import InvalidMediaError
from mm_pipeline.image.settings import ImageSettings

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


def flatten_patches(frames: torch.Tensor, settings: ImageSettings) -> torch.Tensor:
    """[T * t, 3, h, w] to [t * N, 3 * T * P * P].

    Rows: frame group, then blocks of M x M patches in row-major order, then the patches of a block in row-major
    order. A row is in (channel, time, y, x) order.
    """
    num_frames, channels, height, width = frames.shape
    patch, merge, slices = settings.patch_size, settings.merge_size, settings.temporal_patch_size
    blocks = frames.reshape(
        num_frames // slices, slices, channels, height // (patch * merge), merge, patch,
        width // (patch * merge), merge, patch,
    )  # fmt: skip
    ordered = blocks.permute(0, 3, 6, 4, 7, 2, 1, 5, 8)
    return ordered.reshape(-1, channels * slices * patch * patch)


def patches_reference(pixels: torch.Tensor, height: int, width: int, settings: ImageSettings) -> torch.Tensor:
    """uint8 [3, H, W] to float32 [N, 3 * T * P * P] at the given size. The definition."""
    resized = F.interpolate(
        pixels[None].to(torch.float32),
        size=(height, width),
        mode="bilinear",
        align_corners=False,
        antialias=False,
    )
    mean = 255 * torch.tensor(settings.mean).view(1, 3, 1, 1)
    std = 255 * torch.tensor(settings.std).view(1, 3, 1, 1)
    normalised = (resized - mean) / std
    return flatten_patches(normalised.expand(settings.temporal_patch_size, -1, -1, -1), settings)
