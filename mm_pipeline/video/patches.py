"""Frames to the patches an encoder takes. Knows sizes and order, no files and no encoder."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from mm_pipeline.image.preprocess import ImageInput
from mm_pipeline.image.resize import flatten_patches
from mm_pipeline.image.settings import ImageSettings
from mm_pipeline.video.settings import VideoSettings


def video_patches(frames: torch.Tensor, settings: VideoSettings) -> ImageInput:
    """uint8 [n, 3, H, W] to patches, float32 [t * h * w, 3 * T * P * P], with t = ceil(n / T).

    An incomplete last unit repeats its last frame. Frames whose sides are already multiples of the factor within
    the area bounds stay as they are, others are resized as the processor does (bilinear, no antialias).
    Raises ValueError for another shape or dtype, InvalidMediaError for sides the model cannot take.
    """
    if frames.dtype != torch.uint8 or frames.dim() != 4 or frames.shape[1] != 3 or not len(frames):
        raise ValueError(f"frames are {frames.dtype} {tuple(frames.shape)}; need uint8 [n, 3, height, width]")
    height, width = settings.frame_size(frames.shape[2], frames.shape[3], len(frames))
    missing = -len(frames) % settings.temporal_patch_size
    if missing:
        frames = torch.cat([frames, frames[-1:].expand(missing, -1, -1, -1)])
    values = frames.to(torch.float32)
    if values.shape[2:] != (height, width):
        values = F.interpolate(
            values, size=(height, width), mode="bilinear", align_corners=False, antialias=False
        )
    mean, std = (255 * torch.tensor(numbers).view(1, 3, 1, 1) for numbers in (settings.mean, settings.std))
    values.sub_(mean).div_(std)
    patch_settings = ImageSettings(
        patch_size=settings.patch_size,
        merge_size=settings.merge_size,
        temporal_patch_size=settings.temporal_patch_size,
        min_pixels=settings.min_pixels,
        max_pixels=settings.max_pixels,
    )
    patches = flatten_patches(values, patch_settings)
    grid = (
        len(values) // settings.temporal_patch_size,
        height // settings.patch_size,
        width // settings.patch_size,
    )
    return ImageInput(patches=patches, grid_thw=grid, num_tokens=patches.shape[0] // settings.merge_size**2)
