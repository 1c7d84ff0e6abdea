"""Bilinear resize without antialias, normalisation and patch order.

The definition, in plain torch. Knows nothing of files or limits.

Shape letters: H, W source size; h, w resized size; N = (h/P) * (w/P) patches of side P; M patches per token side;
T time slices.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F

from mm_pipeline.image.settings import ImageSettings


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
