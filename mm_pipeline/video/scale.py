"""Decoded frames to upright RGB of the final size. Knows pixel formats, rotation and interlacing; no files.

swscale goes from YUV straight to the final size. Planar output with bicubic taps is both faster and closer to full
chroma resolution than packed RGB.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from av.video.frame import VideoFrame
from av.video.plane import VideoPlane
from av.video.reformatter import ColorRange, Interpolation, VideoReformatter

from mm_pipeline.video.colour import frame_colour, frame_matrix, frame_range
from mm_pipeline.video.tone import to_sdr

Pixels = npt.NDArray[np.uint8]

# Planes of FFmpeg's gbr formats in the order red, green, blue.
_RED_GREEN_BLUE = (2, 0, 1)


@dataclass(frozen=True, kw_only=True)
class Orientation:
    """How a decoded frame is brought upright: mirrored left to right if `is_mirrored`, then turned
    counter-clockwise by `quarter_turns` x 90 degrees."""

    quarter_turns: int = 0
    is_mirrored: bool = False


class FrameScaler:
    """Scales frames of one video. One per thread: it owns swscale's buffers."""

    def __init__(self, height: int, width: int, orientation: Orientation) -> None:
        """height, width: of the upright result."""
        self._orientation = orientation
        is_turned = orientation.quarter_turns % 2 == 1
        self._height, self._width = (width, height) if is_turned else (height, width)
        self._reformatter = VideoReformatter()
        # A conversion at the source's own size would throw away the other one's buffers.
        self._flattener = VideoReformatter()

    def scale(self, frame: VideoFrame) -> Pixels:
        """uint8 [3, height, width], red, green, blue; may be a view of the frame swscale made."""
        if any(component.is_alpha for component in frame.format.components) or frame.format.has_palette:
            frame = self._flatten(frame)
        elif frame.interlaced_frame:
            frame = first_field(frame)
        colour = frame_colour(frame)
        if colour.transfer != "sdr" or (colour.wide_gamut and colour.bits > 8):
            deep = _planes(self._reformat(frame, "gbrp16le")).view(np.dtype("<u2"))
            pixels = to_sdr(deep[:, :, : self._width], colour.transfer, wide_gamut=colour.wide_gamut)
        else:
            pixels = _planes(self._reformat(frame, "gbrp"))[:, :, : self._width]
        if self._orientation.is_mirrored:
            pixels = pixels[:, :, ::-1]
        return np.rot90(pixels, self._orientation.quarter_turns, axes=(1, 2))

    def _reformat(self, frame: VideoFrame, pixel_format: str) -> VideoFrame:
        return self._reformatter.reformat(
            frame,
            width=self._width,
            height=self._height,
            format=pixel_format,
            src_colorspace=frame_matrix(frame),
            src_color_range=frame_range(frame),
            dst_color_range=ColorRange.JPEG,
            # Without the rounding flag pictures that keep their size take a path that is a level too dark.
            interpolation=Interpolation.BICUBIC | Interpolation.ACCURATE_RND,
            threads=1,
        )

    def _flatten(self, frame: VideoFrame) -> VideoFrame:
        """Over white, like still images: the colour under transparent parts is not meant to be seen."""
        shown = self._flattener.reformat(
            frame,
            format="rgba",
            src_colorspace=frame_matrix(frame),
            src_color_range=frame_range(frame),
            threads=1,
        )
        rgba = _rows(shown.planes[0])[:, : 4 * frame.width].reshape(frame.height, frame.width, 4)
        alpha = rgba[..., 3:].astype(np.uint16)
        over_white = (rgba[..., :3] * alpha + 255 * (255 - alpha) + 127) // 255
        return VideoFrame.from_ndarray(over_white.astype(np.uint8), format="rgb24")


def first_field(frame: VideoFrame) -> VideoFrame:
    """The upper field as a frame of half the height: one moment, where the whole frame shows two of them combed."""
    height = frame.height // 2
    field = VideoFrame(frame.width, height, frame.format.name)
    for source, target in zip(frame.planes, field.planes, strict=True):
        rows, kept = _rows(source), _rows(target)
        width = min(rows.shape[1], kept.shape[1])
        kept[:, :width] = rows[::2][: len(kept), :width]
    field.colorspace, field.color_range = frame.colorspace, frame.color_range
    field.color_trc, field.color_primaries = frame.color_trc, frame.color_primaries
    return field


def _planes(frame: VideoFrame) -> Pixels:
    """[3, height, bytes per line] of a gbr frame."""
    return np.stack([_rows(frame.planes[number]) for number in _RED_GREEN_BLUE])


def _rows(plane: VideoPlane) -> Pixels:
    """[height, bytes per line] of the plane, padding included; writes go through."""
    line_bytes = plane.line_size
    values = np.frombuffer(memoryview(plane), dtype=np.uint8)
    return values[: plane.height * line_bytes].reshape(plane.height, line_bytes)
