"""Animated GIF, WebP and PNG as video. Knows these formats through Pillow, which composes their partial frames."""

from __future__ import annotations

import io
from collections.abc import Iterator
from fractions import Fraction

import numpy as np
import numpy.typing as npt
from av.video.frame import VideoFrame
from PIL import Image, ImageSequence

from mm_pipeline.container import MediaSource
from mm_pipeline.errors import MediaTooLargeError, UnsupportedMediaError
from mm_pipeline.limits import MediaLimits
from mm_pipeline.video.colour import Colour
from mm_pipeline.video.index import FrameIndex, KeyPoint
from mm_pipeline.video.info import VideoInfo
from mm_pipeline.video.scale import Orientation

CONTAINER = "animated image"
_HEAD_BYTES = 16
_FORMATS = ("GIF", "WEBP", "PNG")
# Browsers show frames of 10 ms and less for 100 ms.
_LEAST_MS, _INSTEAD_MS = 11, 100
_DAMAGE = (OSError, SyntaxError, ValueError, EOFError, IndexError, KeyError, TypeError, RuntimeError)


def is_animation(source: MediaSource) -> bool:
    """Whether the bytes begin like a GIF, WebP or PNG file, still or moving."""
    if isinstance(source, bytes):
        head = source[:_HEAD_BYTES]
    else:
        with source.open("rb") as file:
            head = file.read(_HEAD_BYTES)
    is_webp = head[:4] == b"RIFF" and head[8:12] == b"WEBP"
    return is_webp or head.startswith((b"GIF87a", b"GIF89a", b"\x89PNG\r\n\x1a\n"))


def probe_animation(source: MediaSource, limits: MediaLimits) -> VideoInfo:
    """As `probe_video`. A still picture is a video of one frame; damage after a first frame ends the video."""
    ticks: list[int] = []
    at, cut = 0, 0.0
    image = _open(source)
    if image.width * image.height > limits.max_video_pixels:
        raise MediaTooLargeError(
            f"the animation is {image.width} x {image.height} pixels; max_video_pixels is {limits.max_video_pixels}"
        )
    try:
        num_declared = getattr(image, "n_frames", 1)
        for frame in ImageSequence.Iterator(image):
            frame.load()
            shown_ms = round(frame.info.get("duration", 0))
            ticks.append(at)
            at += shown_ms if shown_ms >= _LEAST_MS else _INSTEAD_MS
        cut = max(1 - len(ticks) / num_declared, 0.0)
    except _DAMAGE as error:
        if not ticks:
            raise UnsupportedMediaError("no frame of the animation decodes; the file is damaged") from error
        cut = 0.01
    index = FrameIndex(
        time_base=Fraction(1, 1000),
        ticks=np.array(ticks, dtype=np.int64),
        last_ticks=at - ticks[-1],
        keys=(KeyPoint(ticks=0, packet=0, pts=0, dts=0, byte=None),),
        num_packets=len(ticks),
        cut_share=cut,
    )
    colour = Colour(matrix="rgb", full_range=True, transfer="sdr", wide_gamut=False, bits=8, is_guessed=False)
    return VideoInfo(
        codec=(image.format or "").lower(),
        container=CONTAINER,
        stream_number=0,
        coded_width=image.width,
        coded_height=image.height,
        width=image.width,
        height=image.height,
        rotation=0,
        orientation=Orientation(),
        sar=Fraction(1),
        colour=colour,
        interlaced=False,
        has_alpha=image.has_transparency_data,
        duration_s=index.duration_s,
        start_s=0.0,
        average_fps=len(ticks) / index.duration_s,
        has_audio=False,
        index=index,
        notes=("the animation is damaged or cut short",) if cut else (),
    )


def animation_frames(source: MediaSource) -> Iterator[VideoFrame]:
    """Whole frames over white, in order, as rgb24. Ends early at damage."""
    try:
        for frame in ImageSequence.Iterator(_open(source)):
            rgba: npt.NDArray[np.uint8] = np.asarray(frame.convert("RGBA"))
            alpha = rgba[..., 3:].astype(np.uint16)
            over_white = (rgba[..., :3] * alpha + 255 * (255 - alpha) + 127) // 255
            yield VideoFrame.from_ndarray(over_white.astype(np.uint8), format="rgb24")
    except _DAMAGE:
        return


def _open(source: MediaSource) -> Image.Image:
    try:
        return Image.open(io.BytesIO(source) if isinstance(source, bytes) else source, formats=_FORMATS)
    except (*_DAMAGE, Image.DecompressionBombError) as error:
        raise UnsupportedMediaError(
            "the animated image's header is damaged or of an unsupported kind"
        ) from error
