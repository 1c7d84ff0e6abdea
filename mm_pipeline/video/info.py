"""What is known about a video before it is decoded. Holds facts only."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

from mm_pipeline.video.colour import Colour
from mm_pipeline.video.index import FrameIndex, KeyPoint
from mm_pipeline.video.scale import Orientation


@dataclass(frozen=True, kw_only=True)
class VideoInfo:
    """codec, container: FFmpeg's names. stream_number: the stream's place among all streams.
    coded_width, coded_height: of a decoded frame. width, height: as displayed, upright and with square pixels.
    rotation: degrees clockwise that bring a decoded frame upright; orientation: the same with mirroring.
    sar: width of a pixel over its height. interlaced: whether the first frame is. duration_s: from the first frame
    to the end of the last. start_s: timestamp of the first frame. has_audio: whether there is an audio stream at
    all. notes: what a user should know, in plain words.
    """

    codec: str
    container: str
    stream_number: int
    coded_width: int
    coded_height: int
    width: int
    height: int
    rotation: int
    orientation: Orientation
    sar: Fraction
    colour: Colour
    interlaced: bool
    has_alpha: bool
    duration_s: float
    start_s: float
    average_fps: float
    has_audio: bool
    index: FrameIndex
    notes: tuple[str, ...] = ()

    @property
    def num_frames(self) -> int:
        """Frames that are displayed."""
        return len(self.index.ticks)

    @property
    def keyframes(self) -> tuple[KeyPoint, ...]:
        """Where decoding can start."""
        return self.index.keys
