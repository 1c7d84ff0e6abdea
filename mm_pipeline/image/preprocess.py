"""Bytes or pixels to the patches an encoder takes. Knows sizes and order, no encoder."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch

from mm_pipeline.image.decode import open_image
from mm_pipeline.image.fast import empty_patches, patches_fast, touch_pages
from mm_pipeline.image.resize import patches_reference
from mm_pipeline.image.settings import ImageSettings
from mm_pipeline.limits import MediaLimits
from mm_pipeline.pixels import smart_resize


@dataclass(frozen=True, kw_only=True)
class ImageInput:
    """patches: float32 [t * h * w, 3 * T * P * P]. grid_thw: frame groups, patch rows, patch columns.
    num_tokens: embeddings the encoder makes of it."""

    patches: torch.Tensor
    grid_thw: tuple[int, int, int]
    num_tokens: int


def preprocess_image(
    source: bytes | torch.Tensor,
    settings: ImageSettings,
    limits: MediaLimits,
    *,
    backend: Literal["fast", "reference"] = "fast",
) -> ImageInput:
    """An encoded image, or uint8 pixels [3, H, W], to patches.

    `backend="reference"` decodes with Pillow and resizes with plain torch.
    Raises MediaError subclasses as `decode_image` and `smart_resize` do, ValueError for another backend.
    """
    if backend not in ("fast", "reference"):
        raise ValueError(f"image backend {backend!r} is unknown; use 'fast' or 'reference'")
    if isinstance(source, torch.Tensor):
        if source.dtype != torch.uint8 or source.dim() != 3 or source.shape[0] != 3:
            raise ValueError(
                f"pixels are {source.dtype} {tuple(source.shape)}; need uint8 [3, height, width]"
            )
        height, width = _target_size(source.shape[1], source.shape[2], settings)
        resize = patches_fast if backend == "fast" else patches_reference
        return _image_input(resize(source, height, width, settings), height, width, settings)

    encoded = open_image(source, limits)
    height, width = _target_size(*encoded.size, settings)
    if backend == "reference":
        patches = patches_reference(encoded.decode("pillow"), height, width, settings)
    else:
        out = empty_patches(height, width, settings)
        touching = touch_pages(out)
        try:
            pixels = encoded.decode()
        finally:
            if touching is not None:
                touching.join()
        patches = patches_fast(pixels, height, width, settings, out)
    return _image_input(patches, height, width, settings)


def _target_size(height: int, width: int, settings: ImageSettings) -> tuple[int, int]:
    return smart_resize(
        height,
        width,
        factor=settings.factor,
        min_pixels=settings.min_pixels,
        max_pixels=settings.max_pixels,
    )


def _image_input(patches: torch.Tensor, height: int, width: int, settings: ImageSettings) -> ImageInput:
    grid = (1, height // settings.patch_size, width // settings.patch_size)
    return ImageInput(patches=patches, grid_thw=grid, num_tokens=patches.shape[0] // settings.merge_size**2)
