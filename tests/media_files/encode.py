"""Tracks to files in memory, with PyAV's encoders and muxers. Knows nothing of what the tests ask of the files."""

from __future__ import annotations

import io
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from functools import lru_cache
from pathlib import Path

import av
import numpy as np
from av.bitstream import BitStreamFilterContext

from tests.media_files.picture import picture, video_frame

CLOCK = 90_000
# Encoders that take only coarse clocks.
_CLOCKS = {"mpeg4": 1000, "gif": 100, "mpeg2video": 30}
X264 = {"preset": "veryfast", "crf": "12", "g": "30", "bf": "3"}
QUIET_X265 = "log-level=none:pools=1:frame-threads=1"
# Codec tags by name: ITU-T H.273.
_PRIMARIES = {"bt601": 6, "bt709": 1, "bt2020": 9}
_COLORSPACES = {"bt601": 6, "bt709": 1, "bt2020": 9}


@dataclass(frozen=True, kw_only=True)
class Video:
    """frames: (seconds, number to paint) in display order. transform: what happens to the upright picture's pixels
    before coding. matrix: what the pixels are coded with; tagged: whether the file says so."""

    frames: Sequence[tuple[Fraction | float, int]]
    width: int = 192
    height: int = 128
    codec: str = "libx264"
    options: Mapping[str, str] = field(default_factory=lambda: X264)
    matrix: str = "bt601"
    full_range: bool = False
    bits: int = 8
    tagged: bool = False
    transfer: int | None = None
    sar: Fraction | None = None
    rotation: int = 0
    disposition: str | None = None
    transform: Callable[[np.ndarray], np.ndarray] | None = None


@dataclass(frozen=True, kw_only=True)
class Audio:
    """samples: float32 [channels, n] in -1..1. start_s: presentation time of the first sample."""

    samples: np.ndarray
    rate: int = 44_100
    codec: str = "aac"
    layout: str = "mono"
    start_s: float = 0.0
    options: Mapping[str, str] = field(default_factory=dict)


def steady(count: int, fps: int = 30, first: int = 0) -> list[tuple[Fraction, int]]:
    """Frames at a constant rate, from time 0, numbered from `first`."""
    return [(Fraction(i, fps), first + i) for i in range(count)]


def write(
    container: str, *tracks: Video | Audio, options: Mapping[str, str] | None = None, seekable: bool = True
) -> bytes:
    """The whole file. `seekable=False` keeps the muxer from going back to write index and length."""
    if options is not None and "faststart" in options.get("movflags", ""):
        # The muxer opens its own output a second time, by name.
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "movie"
            _write(str(path), container, tracks, options)
            return path.read_bytes()
    out = io.BytesIO() if seekable else _Pipe()
    _write(out, container, tracks, options or {})
    return out.getvalue()


def _write(out: object, container: str, tracks: Sequence[Video | Audio], options: Mapping[str, str]) -> None:
    with av.open(out, "w", format=container, options=dict(options)) as file:
        streams = [_add_video(file, t) if isinstance(t, Video) else _add_audio(file, t) for t in tracks]
        file.start_encoding()
        packets = []
        for track, stream in zip(tracks, streams, strict=True):
            frames = _video_frames(track) if isinstance(track, Video) else _audio_frames(track, stream)
            for frame in [*frames, None]:
                packets += stream.encode(frame)
        packets.sort(key=lambda packet: packet.dts * packet.time_base)
        for packet in packets:
            file.mux(packet)


def remux(
    data: bytes,
    container: str,
    edit: Callable[[int, av.Packet], av.Packet | None] | None = None,
    *,
    options: Mapping[str, str] | None = None,
    filters: str | None = None,
) -> bytes:
    """The same packets in another container.

    The source must tell decode times, as MP4 does and Matroska does not. `edit` sees (index within its stream,
    packet); None drops it. `filters`: a bitstream filter for the video packets.
    """
    out = io.BytesIO()
    with (
        av.open(io.BytesIO(data)) as source,
        av.open(out, "w", format=container, options=dict(options or {})) as file,
    ):
        targets = {stream.index: file.add_stream_from_template(stream) for stream in source.streams}
        counts = dict.fromkeys(targets, 0)
        # Once per file and on the input side: the filter may rewrite the stream's headers.
        video = source.streams.video[0] if source.streams.video else None
        bitstream = (
            BitStreamFilterContext(filters, video, targets[video.index]) if filters and video else None
        )
        for packet in source.demux():
            # Demuxing ends with an empty packet for each stream.
            if not packet.size:
                continue
            index = packet.stream_index
            kept = packet if edit is None else edit(counts[index], packet)
            counts[index] += 1
            if kept is None:
                continue
            through = bitstream is not None and video is not None and index == video.index
            for ready in bitstream.filter(kept) if through and bitstream is not None else [kept]:
                ready.stream = targets[index]
                file.mux(ready)
    return out.getvalue()


def shift(seconds: Fraction) -> Callable[[int, av.Packet], av.Packet]:
    """For `remux`: every packet later by this much (earlier if negative)."""

    def edit(_: int, packet: av.Packet) -> av.Packet:
        ticks = round(seconds / packet.time_base)
        packet.pts += ticks
        packet.dts += ticks
        return packet

    return edit


class _Pipe:
    """A file that can only be appended to."""

    def __init__(self) -> None:
        self._parts: list[bytes] = []

    def write(self, data: bytes) -> int:
        self._parts.append(bytes(data))
        return len(data)

    def getvalue(self) -> bytes:
        return b"".join(self._parts)


def _add_video(file: av.container.OutputContainer, track: Video) -> av.video.stream.VideoStream:
    stream = file.add_stream(track.codec, rate=30, options=dict(track.options))
    context = stream.codec_context
    first = next(iter(_video_frames(track)))
    context.width, context.height = first.width, first.height
    context.pix_fmt = first.format.name
    stream.time_base = context.time_base = Fraction(1, _CLOCKS.get(track.codec, CLOCK))
    # One thread: files are the same on every machine.
    context.thread_count = 1
    if track.tagged:
        context.colorspace = _COLORSPACES[track.matrix]
        context.color_primaries = _PRIMARIES[track.matrix]
        context.color_trc = track.transfer or 1
        context.color_range = 2 if track.full_range else 1
    if track.sar is not None:
        stream.sample_aspect_ratio = context.sample_aspect_ratio = track.sar
    if track.rotation:
        stream.set_display_rotation(track.rotation)
    if track.disposition is not None:
        stream.disposition = av.stream.Disposition[track.disposition]
    return stream


def _video_frames(track: Video) -> Iterable[av.VideoFrame]:
    ticks = _CLOCKS.get(track.codec, CLOCK)
    for seconds, number in track.frames:
        rgb = picture(number, track.width, track.height)
        if track.transform is not None:
            frame = video_frame(track.transform(rgb), track.matrix, track.full_range, track.bits)
        else:
            frame = _painted(
                number % 256, track.width, track.height, track.matrix, track.full_range, track.bits
            )
        frame.pts, frame.time_base = round(seconds * ticks), Fraction(1, ticks)
        if track.tagged:
            frame.colorspace = _COLORSPACES[track.matrix]
            frame.color_primaries = _PRIMARIES[track.matrix]
            frame.color_trc = track.transfer or 1
            frame.color_range = 2 if track.full_range else 1
        yield frame


@lru_cache(maxsize=512)
def _codes(
    number: int, width: int, height: int, matrix: str, full_range: bool, bits: int
) -> tuple[bytes, ...]:
    frame = video_frame(picture(number, width, height), matrix, full_range, bits)
    return tuple(bytes(plane) for plane in frame.planes)


def _painted(number: int, width: int, height: int, matrix: str, full_range: bool, bits: int) -> av.VideoFrame:
    frame = av.VideoFrame(width, height, "yuv420p" if bits == 8 else f"yuv420p{bits}le")
    for plane, codes in zip(
        frame.planes, _codes(number, width, height, matrix, full_range, bits), strict=True
    ):
        plane.update(codes)
    return frame


def _add_audio(file: av.container.OutputContainer, track: Audio) -> av.audio.stream.AudioStream:
    stream = file.add_stream(track.codec, rate=track.rate, layout=track.layout, options=dict(track.options))
    stream.time_base = Fraction(1, track.rate)
    return stream


def _audio_frames(track: Audio, stream: av.audio.stream.AudioStream) -> Iterable[av.AudioFrame]:
    # Formats differ by codec; the resampler only changes the format here, never rate or layout.
    wanted = stream.codec_context.format.name
    size = stream.codec_context.frame_size or 1024
    resampler = av.AudioResampler(format=wanted, layout=track.layout, rate=track.rate, frame_size=size)
    start = round(track.start_s * track.rate)
    for begin in range(0, track.samples.shape[1], 65_536):
        block = np.ascontiguousarray(track.samples[:, begin : begin + 65_536], np.float32)
        frame = av.AudioFrame.from_ndarray(block, format="fltp", layout=track.layout)
        frame.sample_rate, frame.pts, frame.time_base = track.rate, start + begin, Fraction(1, track.rate)
        yield from resampler.resample(frame)
    yield from resampler.resample(None)


class FrameSink:
    """A file of one video stream whose frames the caller builds; `data` is whole after the `with` block."""

    def __init__(
        self,
        codec: str,
        options: Mapping[str, str],
        width: int,
        height: int,
        *,
        rate: int = 30,
        container: str = "mp4",
        pix_fmt: str = "yuv420p",
    ) -> None:
        self._out, self._rate = io.BytesIO(), rate
        self._file = av.open(self._out, "w", format=container)
        self._stream = self._file.add_stream(codec, rate=rate, options=dict(options))
        context = self._stream.codec_context
        context.width, context.height, context.pix_fmt, context.thread_count = width, height, pix_fmt, 1
        self.data = b""

    def __enter__(self) -> FrameSink:
        return self

    def add(self, frame: av.VideoFrame, index: int) -> None:
        """The frame of time index / rate."""
        frame.pts, frame.time_base = index, Fraction(1, self._rate)
        self._file.mux(self._stream.encode(frame))

    def __exit__(self, *_: object) -> None:
        self._file.mux(self._stream.encode(None))
        self._file.close()
        self.data = self._out.getvalue()
