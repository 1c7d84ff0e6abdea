"""How an image becomes patches. Holds numbers only; reads them from a checkpoint's config."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from mm_pipeline.content_key import SettingValue
from mm_pipeline.errors import InvalidMediaError
from mm_pipeline.pixels import CLIP_MEAN, CLIP_STD

# Part of every image key: raise it when decoding or resizing starts to give other pixels.
PIXELS_VERSION = 1


@dataclass(frozen=True, kw_only=True)
class ImageSettings:
    """patch_size: pixels per patch side. merge_size: patches per token side. temporal_patch_size: time slices
    per patch, a still image repeats itself. min_pixels, max_pixels: area after resizing. mean, std: per channel,
    for values in 0..1.
    """

    patch_size: int = 16
    merge_size: int = 2
    temporal_patch_size: int = 2
    min_pixels: int = 8192
    max_pixels: int = 8_388_608
    mean: tuple[float, float, float] = CLIP_MEAN
    std: tuple[float, float, float] = CLIP_STD

    def __post_init__(self) -> None:
        if not self.factor**2 <= self.max_pixels or not 0 < self.min_pixels <= self.max_pixels:
            raise ValueError(
                f"min_pixels {self.min_pixels}, max_pixels {self.max_pixels}: need "
                f"0 < min_pixels <= max_pixels and max_pixels >= {self.factor**2} (one token)"
            )

    @property
    def factor(self) -> int:
        """Both sides of a resized image are multiples of this many pixels."""
        return self.patch_size * self.merge_size

    @property
    def patch_values(self) -> int:
        """Numbers in one flattened patch: 3 x temporal_patch_size x patch_size x patch_size."""
        return 3 * self.temporal_patch_size * self.patch_size**2

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> ImageSettings:
        """From `config.json` as a dict: its `processor_config`, with `vision_config` for missing patch sizes."""
        processor: Mapping[str, Any] = config.get("processor_config", {})
        vision: Mapping[str, Any] = config.get("vision_config", {})
        defaults = cls()
        return cls(
            patch_size=processor.get("patch_size", vision.get("patch_size", defaults.patch_size)),
            merge_size=processor.get("merge_size", vision.get("spatial_merge_size", defaults.merge_size)),
            temporal_patch_size=processor.get(
                "temporal_patch_size", vision.get("temporal_patch_size", defaults.temporal_patch_size)
            ),
            min_pixels=processor.get("image_min_pixels", defaults.min_pixels),
            max_pixels=processor.get("image_max_pixels", defaults.max_pixels),
        )

    def lowered(self, max_pixels: int) -> ImageSettings:
        """The same settings with a request's smaller area. Raises InvalidMediaError for a larger one."""
        if not self.factor**2 <= max_pixels <= self.max_pixels:
            raise InvalidMediaError(
                f"max_pixels is {max_pixels}; this server takes {self.factor**2} to {self.max_pixels}",
                param="max_pixels",
            )
        return replace(self, max_pixels=max_pixels, min_pixels=min(self.min_pixels, max_pixels))

    def key_settings(self) -> dict[str, SettingValue]:
        """Everything here that changes the patches, for `content_key`."""
        return {
            "pixels_version": PIXELS_VERSION,
            "patch_size": self.patch_size,
            "merge_size": self.merge_size,
            "temporal_patch_size": self.temporal_patch_size,
            "min_pixels": self.min_pixels,
            "max_pixels": self.max_pixels,
            "mean": self.mean,
            "std": self.std,
        }
