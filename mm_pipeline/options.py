"""What a request may ask about its media. Knows names and plain bounds; the limits are checked elsewhere."""

from __future__ import annotations

import math
from dataclasses import dataclass

from mm_pipeline.errors import InvalidMediaError


@dataclass(frozen=True, kw_only=True)
class MediaOptions:
    """Wishes of one request; None leaves the server's setting. None of them can raise a limit.

    fps: sampled frames per second of video. min_frames, max_frames: bounds on the sampled frames of one video.
    max_pixels: area of a picture or a video frame after resizing. total_pixels: area of all frames of a video.
    start_s, end_s: the part of a video or a sound to use, in seconds from its start.
    use_audio_in_video: whether a video's sound is heard too.
    """

    fps: float | None = None
    min_frames: int | None = None
    max_frames: int | None = None
    max_pixels: int | None = None
    total_pixels: int | None = None
    start_s: float | None = None
    end_s: float | None = None
    use_audio_in_video: bool = True

    def __post_init__(self) -> None:
        for name in ("fps", "min_frames", "max_frames", "max_pixels", "total_pixels", "end_s"):
            value = getattr(self, name)
            if value is not None and not (math.isfinite(value) and value > 0):
                raise InvalidMediaError(f"{name} is {value}; it must be greater than 0", param=name)
        if self.start_s is not None and not (math.isfinite(self.start_s) and self.start_s >= 0):
            raise InvalidMediaError(f"start_s is {self.start_s}; it must be 0 or more", param="start_s")
        if self.start_s is not None and self.end_s is not None and self.start_s >= self.end_s:
            raise InvalidMediaError(
                f"start_s is {self.start_s} and end_s {self.end_s}; the end must come after the start",
                param="end_s",
            )
        if self.min_frames is not None and self.max_frames is not None and self.min_frames > self.max_frames:
            raise InvalidMediaError(
                f"min_frames is {self.min_frames} and max_frames {self.max_frames}; "
                "min_frames must not be the larger",
                param="min_frames",
            )
