"""Decodes one chunk of packets to mono pieces. Knows codec contexts; knows no files, no target rate, no threads."""

from __future__ import annotations

import threading
from concurrent.futures import CancelledError
from dataclasses import dataclass

import av.error
import numpy as np
from av.audio.codeccontext import AudioCodecContext
from av.audio.fifo import AudioFifo
from av.audio.frame import AudioFrame
from av.audio.resampler import AudioResampler
from av.audio.stream import AudioStream
from av.codec.context import CodecContext

from mm_pipeline.audio.downmix import needs_conversion, to_mono
from mm_pipeline.audio.packets import AudioPacket, PacketChunk, tick_s
from mm_pipeline.audio.timeline import Piece

# Decoded values, over all channels, that are collected before they are mixed.
_COLLECTED_VALUES = 1 << 18
# A damaged FLAC frame otherwise decodes to noise at full loudness, although its checksum tells.
_OPTIONS = {"flac": {"err_detect": "crccheck+explode"}}
# A frame belongs to the piece before it when its timestamp is off by no more than this and two ticks.
_ROUNDING_S = 0.0005


@dataclass(frozen=True, kw_only=True)
class DecodedChunk:
    """pieces: in order. num_damaged: packets that did not decode; silence stands in their place."""

    pieces: tuple[Piece, ...]
    num_damaged: int


class ChunkDecoder:
    """Decodes chunks of one track; `stop` ends it within one packet, with CancelledError.

    fresh: a decoder of its own for every chunk, which may then be decoded in any order and on any thread. Else the
    track's own decoder goes through all of them, one after another. trims_end: whether the last packet's duration
    is the true end of the sound.
    """

    def __init__(self, track: AudioStream, *, fresh: bool, trims_end: bool, stop: threading.Event) -> None:
        context = track.codec_context
        self._name = context.codec.name
        self._extradata = context.extradata
        self._rate = context.sample_rate
        self._layout = context.layout
        self._num_channels = len(context.layout.channels)
        self._context: AudioCodecContext = context
        self._is_fresh = fresh
        self._trims_end = trims_end
        self._stop = stop
        self._tick_s = tick_s(track)
        self._prepare(context)

    def __call__(self, chunk: PacketChunk) -> DecodedChunk:
        # The first chunk carries the encoder's delay, and only the track's own decoder knows the unit of timestamps
        # that cutting it off takes.
        own = self._is_fresh and not chunk.is_first
        context = self._new_context() if own else self._context
        for packet in chunk.warm_up:
            if self._stop.is_set():
                raise CancelledError
            _decode(context, packet)
        pieces = _PieceMaker(self._tick_s)
        num_damaged = 0
        for packet in chunk.packets:
            if self._stop.is_set():
                raise CancelledError
            frames = _decode(context, packet)
            if frames is None:
                num_damaged += 1
                pieces.add_lost(packet)
                continue
            for frame in frames:
                pieces.add(frame)
        if chunk.is_last:
            for frame in _decode(context, None) or []:
                pieces.add(frame)
            if self._trims_end:
                pieces.trim(chunk.packets[-1])
        return DecodedChunk(pieces=tuple(pieces.finish()), num_damaged=num_damaged)

    def _new_context(self) -> AudioCodecContext:
        context = CodecContext.create(self._name, "r")
        assert isinstance(context, AudioCodecContext)
        context.extradata = self._extradata
        context.sample_rate = self._rate
        if self._num_channels:
            context.layout = self._layout
        self._prepare(context)
        return context

    def _prepare(self, context: AudioCodecContext) -> None:
        context.thread_count = 1
        context.options = dict(_OPTIONS.get(self._name, {}))


def _decode(context: AudioCodecContext, packet: AudioPacket | None) -> list[AudioFrame] | None:
    """Frames of the packet, or None when it does not decode."""
    try:
        return context.decode(packet)
    except EOFError:
        return []
    except (av.error.FFmpegError, ValueError):
        return None


class _PieceMaker:
    """Joins frames that follow each other without a break."""

    def __init__(self, tick_s: float) -> None:
        self._tick_s = tick_s
        self._done: list[Piece] = []
        self._fifo: AudioFifo | None = None
        self._converter: AudioResampler | None = None
        self._parts: list[np.ndarray] = []
        self._kind: tuple[int, str, str] | None = None
        self._channels: tuple[str, ...] = ()
        self._time_s: float | None = None
        self._count = 0
        self._last_samples = 0
        self._max_fifo = _COLLECTED_VALUES

    def add(self, frame: AudioFrame) -> None:
        samples = frame.samples
        if not samples:
            return
        time_s = None if frame.pts is None else frame.pts * self._tick_s
        kind = (frame.sample_rate, frame.format.name, frame.layout.name)
        if kind != self._kind or not self._continues(time_s, frame):
            self._begin(kind, frame, time_s)
        if self._converter is not None:
            for converted in self._converter.resample(frame):
                converted.pts = None
                self._write(converted)
        else:
            # A fifo checks timestamps itself, and more strictly than files keep them.
            frame.pts = None
            self._write(frame)
        self._count += samples
        self._last_samples = samples

    def _write(self, frame: AudioFrame) -> None:
        assert self._fifo is not None
        self._fifo.write(frame)
        if self._fifo.samples >= self._max_fifo:
            self._drain()

    def add_lost(self, packet: AudioPacket) -> None:
        """Silence for a packet that did not decode; before the first frame nobody knows for how much."""
        if self._kind is None:
            return
        self._drain()
        count = self._last_samples
        if packet.duration:
            count = round(packet.duration * self._tick_s * self._kind[0])
        self._parts.append(np.zeros(count, np.float32))
        self._count += count

    def trim(self, packet: AudioPacket) -> None:
        """Cuts the last frame, that of `packet`, down to the packet's duration."""
        if self._kind is None or not packet.duration:
            return
        surplus = self._last_samples - round(packet.duration * self._tick_s * self._kind[0])
        if 0 < surplus < min(self._last_samples, self._count):
            self._drain()
            joined = np.concatenate(self._parts)
            self._count -= surplus
            self._parts = [joined[: self._count]]

    def finish(self) -> list[Piece]:
        self._end()
        return self._done

    def _continues(self, time_s: float | None, frame: AudioFrame) -> bool:
        if time_s is None or self._time_s is None:
            return time_s is None
        expected_s = self._time_s + self._count / frame.sample_rate
        return abs(time_s - expected_s) <= _ROUNDING_S + 2 * self._tick_s

    def _begin(self, kind: tuple[int, str, str], frame: AudioFrame, time_s: float | None) -> None:
        self._end()
        self._kind = kind
        self._channels = tuple(channel.name for channel in frame.layout.channels)
        self._max_fifo = _COLLECTED_VALUES // max(1, len(self._channels))
        self._time_s = time_s
        convert = needs_conversion(kind[1], len(self._channels))
        self._converter = AudioResampler(format="flt") if convert else None

    def _drain(self) -> None:
        if self._fifo is None or not self._fifo.samples:
            return
        assert self._kind is not None
        whole = self._fifo.read()
        assert whole is not None
        self._parts.append(to_mono(whole.to_ndarray(), whole.format.name, self._channels))

    def _end(self) -> None:
        self._drain()
        if self._kind is not None and self._count:
            self._done.append(
                Piece(
                    samples=np.concatenate(self._parts),
                    rate=self._kind[0],
                    time_s=self._time_s,
                )
            )
        self._fifo = AudioFifo()
        self._parts, self._count = [], 0
