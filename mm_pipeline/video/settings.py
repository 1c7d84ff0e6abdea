"""How a video becomes frames and patches. Holds numbers only; reads them from a checkpoint's config."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from mm_pipeline.content_key import SettingValue
from mm_pipeline.errors import InvalidMediaError, MediaTooLargeError
from mm_pipeline.limits import MediaLimits
from mm_pipeline.options import MediaOptions
from mm_pipeline.pixels import CLIP_MEAN, CLIP_STD, smart_resize

# Part of every video key: raise it when sampling, decoding or scaling starts to give other pixels.
FRAMES_VERSION = 1


@dataclass(frozen=True, kw_only=True)
class VideoSettings:
    """patch_size: pixels per patch side. merge_size: patches per token side. temporal_patch_size: frames per unit.
    fps: sampled frames per second. min_frames, max_frames: bounds on the sampled frames; a clip with fewer frames
    than min_frames gives all it has. min_pixels, max_pixels: area of one frame after resizing. total_pixels: area
    of all units of a video. mean, std: per channel, for values in 0..1. start_s, end_s: the part to use, in
    seconds from the video's first frame. exact: False takes the nearest keyframes instead, for previews.

    A checkpoint whose min_frames is null gets 8: the model was trained with that, so a clip under 8 s is sampled
    above 1 fps and neighbouring units share a timestamp.
    """

    patch_size: int = 16
    merge_size: int = 2
    temporal_patch_size: int = 2
    fps: float = 1.0
    min_frames: int = 8
    max_frames: int = 3600
    min_pixels: int = 8192
    max_pixels: int = 8_388_608
    total_pixels: int = 268_435_456
    mean: tuple[float, float, float] = CLIP_MEAN
    std: tuple[float, float, float] = CLIP_STD
    start_s: float | None = None
    end_s: float | None = None
    exact: bool = True

    def __post_init__(self) -> None:
        if not self.factor**2 <= self.max_pixels or not 0 < self.min_pixels <= self.max_pixels:
            raise ValueError(
                f"min_pixels {self.min_pixels}, max_pixels {self.max_pixels}: need "
                f"0 < min_pixels <= max_pixels and max_pixels >= {self.factor**2} (one token)"
            )
        if not self.temporal_patch_size <= self.max_frames or not 0 < self.min_frames <= self.max_frames:
            raise ValueError(
                f"min_frames {self.min_frames}, max_frames {self.max_frames}: need "
                f"0 < min_frames <= max_frames and max_frames >= {self.temporal_patch_size} (one unit)"
            )
        if not (math.isfinite(self.fps) and self.fps > 0) or self.total_pixels <= 0:
            raise ValueError(f"fps {self.fps}, total_pixels {self.total_pixels}: both must be above 0")

    @property
    def factor(self) -> int:
        """Both sides of a resized frame are multiples of this many pixels."""
        return self.patch_size * self.merge_size

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> VideoSettings:
        """From `config.json` as a dict: its `processor_config`, with `vision_config` for missing patch sizes."""
        processor: Mapping[str, Any] = config.get("processor_config", {})
        vision: Mapping[str, Any] = config.get("vision_config", {})
        defaults = cls()

        def read(name: str, default: Any, fallback: str | None = None) -> Any:
            value = processor.get(name)
            if value is None and fallback is not None:
                value = vision.get(fallback)
            return default if value is None else value

        return cls(
            patch_size=read("patch_size", defaults.patch_size, "patch_size"),
            merge_size=read("merge_size", defaults.merge_size, "spatial_merge_size"),
            temporal_patch_size=read(
                "temporal_patch_size", defaults.temporal_patch_size, "temporal_patch_size"
            ),
            fps=float(read("fps", defaults.fps)),
            min_frames=read("min_frames", defaults.min_frames),
            max_frames=read("max_frames", defaults.max_frames),
            min_pixels=read("video_min_pixels", defaults.min_pixels),
            max_pixels=read("video_max_pixels", defaults.max_pixels),
            total_pixels=read("video_total_max_pixels", defaults.total_pixels),
        )

    def lowered(self, options: MediaOptions, limits: MediaLimits) -> VideoSettings:
        """The same settings with a request's wishes, inside the server's limits.

        Raises MediaTooLargeError for more frames than allowed, InvalidMediaError for other wishes out of range.
        """
        most_frames = min(self.max_frames, limits.max_video_frames)
        for name in ("min_frames", "max_frames"):
            wish = getattr(options, name)
            if wish is not None and wish > most_frames:
                raise MediaTooLargeError(
                    f"{name} is {wish}; this server samples at most {most_frames} frames of a video",
                    param=name,
                )
        max_frames = most_frames if options.max_frames is None else options.max_frames
        if max_frames < self.temporal_patch_size:
            raise InvalidMediaError(
                f"max_frames is {max_frames}; a video needs at least {self.temporal_patch_size}",
                param="max_frames",
            )
        min_frames = self.min_frames if options.min_frames is None else options.min_frames
        max_pixels = self._within("max_pixels", options.max_pixels, self.factor**2, self.max_pixels)
        return replace(
            self,
            fps=self.fps if options.fps is None else options.fps,
            min_frames=min(min_frames, max_frames),
            max_frames=max_frames,
            max_pixels=max_pixels,
            min_pixels=min(self.min_pixels, max_pixels),
            total_pixels=self._within("total_pixels", options.total_pixels, 1, self.total_pixels),
            start_s=self.start_s if options.start_s is None else options.start_s,
            end_s=self.end_s if options.end_s is None else options.end_s,
        )

    def frame_size(self, height: int, width: int, num_frames: int) -> tuple[int, int]:
        """(height, width) after resizing when that many frames are sampled. Raises as `smart_resize` does.

        Formula: the processor's cap per frame, total_pixels x temporal_patch_size / num_frames.
        """
        share = self.total_pixels * self.temporal_patch_size // num_frames
        cap = max(self.min_pixels, min(share, self.max_pixels))
        return smart_resize(height, width, factor=self.factor, min_pixels=self.min_pixels, max_pixels=cap)

    def key_settings(self) -> dict[str, SettingValue]:
        """Everything here that changes the patches, for `content_key`."""
        return {
            "frames_version": FRAMES_VERSION,
            "patch_size": self.patch_size,
            "merge_size": self.merge_size,
            "temporal_patch_size": self.temporal_patch_size,
            "fps": self.fps,
            "min_frames": self.min_frames,
            "max_frames": self.max_frames,
            "min_pixels": self.min_pixels,
            "max_pixels": self.max_pixels,
            "total_pixels": self.total_pixels,
            "mean": self.mean,
            "std": self.std,
            "start_s": self.start_s,
            "end_s": self.end_s,
            "exact": self.exact,
        }

    def _within(self, name: str, wish: int | None, least: int, most: int) -> int:
        if wish is None:
            return most
        if not least <= wish <= most:
            raise InvalidMediaError(f"{name} is {wish}; this server takes {least} to {most}", param=name)
        return wish
