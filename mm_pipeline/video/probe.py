"""What is in a video file. Reads headers, packets and one frame; plans nothing."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import av.error
import numpy as np
from av.container import InputContainer
from av.stream import Disposition
from av.video.codeccontext import VideoCodecContext
from av.video.frame import VideoFrame
from av.video.stream import VideoStream

from mm_pipeline.container import MediaSource, open_container
from mm_pipeline.errors import MediaTooLargeError, UnsupportedMediaError
from mm_pipeline.limits import MediaLimits
from mm_pipeline.video.animation import is_animation, probe_animation
from mm_pipeline.video.colour import Colour, frame_colour
from mm_pipeline.video.index import FrameIndex, build_index, read_packets, video_stream
from mm_pipeline.video.info import VideoInfo
from mm_pipeline.video.scale import Orientation

# Pixels whose sides differ by less are square: encoders round.
_SQUARE_WITHIN = 0.01
# A file whose first packets are damaged is looked through this far for a frame.
_NUM_TRIED_PACKETS = 2000
_NOT_A_VIDEO = Disposition.attached_pic | Disposition.timed_thumbnails | Disposition.still_image


@dataclass(frozen=True, kw_only=True)
class _FirstFrame:
    """What only a decoded frame tells."""

    width: int
    height: int
    sar: Fraction
    orientation: Orientation
    rotation: int
    colour: Colour
    interlaced: bool
    has_alpha: bool


def probe_video(source: MediaSource, limits: MediaLimits | None = None) -> VideoInfo:
    """Facts about the file's video stream and the display time of all its frames.

    Of several streams the one marked as default wins, then the one with the most pixels, then the first; cover art
    never does. Raises UnsupportedMediaError when there is no video that decodes, MediaTooLargeError over a limit.
    """
    limits = limits or MediaLimits()
    if is_animation(source):
        info = probe_animation(source, limits)
        check_limits(info, limits)
        return info
    with open_container(source) as container:
        stream = video_stream(container, _choose(container))
        codec = stream.codec_context
        # With a damaged header some formats tell the size only with the first frame.
        _check_pixels(codec.width, codec.height, limits)
        rate = stream.average_rate or stream.guessed_rate
        has_audio = any(other.type == "audio" for other in container.streams)
        facts = (codec.name, stream.index, container.format.name, stream.metadata.get("alpha_mode") == "1")
        sar = stream.sample_aspect_ratio
        first = _first_frame(container, stream, sar, limits)
    codec_name, number, format_name, has_alpha = facts
    _check_pixels(first.width, first.height, limits)
    index = build_index(source, number)
    width, height = _displayed(first)
    info = VideoInfo(
        codec=codec_name,
        container=format_name,
        stream_number=number,
        coded_width=first.width,
        coded_height=first.height,
        width=width,
        height=height,
        rotation=first.rotation,
        orientation=first.orientation,
        sar=first.sar,
        colour=first.colour,
        interlaced=first.interlaced,
        has_alpha=first.has_alpha or has_alpha,
        duration_s=index.duration_s,
        start_s=index.start_s,
        average_fps=_average_fps(index, rate),
        has_audio=has_audio,
        index=index,
        notes=_notes(index, first.colour),
    )
    check_limits(info, limits)
    return info


def check_limits(info: VideoInfo, limits: MediaLimits) -> None:
    """Raises MediaTooLargeError for a video with too many pixels per frame or too long."""
    _check_pixels(info.coded_width, info.coded_height, limits)
    if info.duration_s > limits.max_media_duration_s:
        raise MediaTooLargeError(
            f"the video is {info.duration_s:.0f} s long; max_media_duration_s is "
            f"{limits.max_media_duration_s:.0f}. Cut it first."
        )


def _check_pixels(width: int, height: int, limits: MediaLimits) -> None:
    if width * height > limits.max_video_pixels:
        raise MediaTooLargeError(
            f"the video is {width} x {height} = {width * height} pixels; max_video_pixels is "
            f"{limits.max_video_pixels}. Scale it down first."
        )


def _choose(container: InputContainer) -> int:
    videos = [stream for stream in container.streams.video if not stream.disposition & _NOT_A_VIDEO]
    if not videos:
        what = "only a cover picture" if container.streams.video else "no video stream"
        raise UnsupportedMediaError(f"the file has {what} in it; send a file with video, or send it as audio")
    # A stream of an unknown codec has no context.
    decodable = [stream for stream in videos if stream.codec_context is not None]
    if not decodable:
        raise UnsupportedMediaError(
            "the file's video is in a codec that cannot be decoded here; convert it to H.264, HEVC, VP9 or AV1"
        )
    return max(
        decodable,
        key=lambda stream: (
            bool(stream.disposition & Disposition.default),
            stream.codec_context.width * stream.codec_context.height,
            -stream.index,
        ),
    ).index


def _first_frame(
    container: InputContainer, stream: VideoStream, sar: Fraction | None, limits: MediaLimits
) -> _FirstFrame:
    codec = stream.codec_context
    prepare(codec, limits.max_video_pixels)
    try:
        for number, packet in enumerate(read_packets(container, stream)):
            frames: list[VideoFrame] = []
            try:
                frames = codec.decode(packet)
                if not frames and packet.is_keyframe and not packet.is_discard:
                    # Draining hands out the keyframe before the frames that reordering would wait for.
                    frames = codec.decode(None)
                    codec.flush_buffers()
            except av.error.FFmpegError:
                codec.flush_buffers()
            if frames:
                return _describe(frames[0], sar)
            if number >= _NUM_TRIED_PACKETS:
                break
        frames = codec.decode(None)
        if frames:
            return _describe(frames[0], sar)
    except (av.error.FFmpegError, ValueError) as error:
        raise _undecodable(codec) from error
    raise _undecodable(codec)


def _undecodable(codec: VideoCodecContext) -> UnsupportedMediaError:
    return UnsupportedMediaError(
        f"no frame of the {codec.name} video stream decodes; the file is damaged or of a kind not supported here"
    )


def prepare(codec: VideoCodecContext, max_pixels: int, num_threads: int = 1) -> None:
    """Settings of a decoder before its first packet: one thread or frame threads, and a bound on frame size."""
    codec.thread_type = "FRAME" if num_threads > 1 else "NONE"
    codec.thread_count = num_threads
    codec.options = {"max_pixels": str(max_pixels)}


def _describe(frame: VideoFrame, stream_sar: Fraction | None) -> _FirstFrame:
    matrix = _display_matrix(frame)
    return _FirstFrame(
        width=frame.width,
        height=frame.height,
        sar=stream_sar if stream_sar else Fraction(1),
        orientation=orientation_of(matrix),
        rotation=-round(frame.rotation) % 360,
        colour=frame_colour(frame),
        interlaced=frame.interlaced_frame,
        has_alpha=any(component.is_alpha for component in frame.format.components),
    )


def _display_matrix(frame: VideoFrame) -> tuple[int, ...] | None:
    side_data: Mapping[Any, Any] = frame.side_data
    if "DISPLAYMATRIX" not in side_data:
        return None
    return tuple(np.frombuffer(memoryview(side_data["DISPLAYMATRIX"]), dtype="<i4").tolist())


def orientation_of(matrix: Iterable[int] | None) -> Orientation:
    """From the nine numbers of a display matrix (ISO 14496-12, 8.2.2), of which the upper left 2 x 2 counts.

    Rotations are rounded to quarter turns.
    """
    if matrix is None:
        return Orientation()
    a, b, _, c, d, *_ = matrix
    is_mirrored = a * d - b * c < 0
    if is_mirrored:
        # A mirror image first: its horizontal axis points the other way.
        a, b = -a, -b
    if not (a or b):
        return Orientation()
    # The matrix maps (x, y) to (a x + c y, b x + d y), with y pointing down.
    clockwise = round(math.degrees(math.atan2(b, a)) / 90)
    return Orientation(quarter_turns=-clockwise % 4, is_mirrored=is_mirrored)


def _displayed(first: _FirstFrame) -> tuple[int, int]:
    """(width, height) upright with square pixels; the shorter-sampled side grows, none shrinks."""
    width, height = first.width, first.height
    if abs(first.sar - 1) > _SQUARE_WITHIN:
        if first.sar > 1:
            width = round(width * first.sar)
        else:
            height = round(height / first.sar)
    return (height, width) if first.orientation.quarter_turns % 2 else (width, height)


def _average_fps(index: FrameIndex, rate: Fraction | None) -> float:
    if index.is_ordinal or index.duration_s <= 0:
        return float(rate) if rate else 0.0
    return len(index.ticks) / index.duration_s


def _notes(index: FrameIndex, colour: Colour) -> tuple[str, ...]:
    notes = []
    if index.cut_share > 0:
        notes.append(
            f"the file is cut short: the last {100 * index.cut_share:.0f}% of its frames are missing"
        )
    if index.is_ordinal:
        notes.append("the frames carry no timestamps; their times follow from the frame rate")
    if colour.transfer != "sdr":
        notes.append(f"HDR ({colour.transfer.upper()}) was mapped to SDR")
    return tuple(notes)
