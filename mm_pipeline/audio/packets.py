"""Packets of one audio track, in chunks that can be decoded apart. Knows which codecs allow it, decodes nothing."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TypeAlias

import av.error
from av.audio.stream import AudioStream
from av.container import InputContainer
from av.packet import Packet

AudioPacket: TypeAlias = "Packet[AudioStream]"

# A chunk ends with the first of these; they follow from the file alone, so that its samples do too.
_CHUNK_S = 30.0
_CHUNK_PACKETS = 4096
_CHUNK_BYTES = 8 << 20

# Errors of the demuxer in a row after which the rest of the file is given up.
_MAX_READ_ERRORS = 64

# Packets decoded before a chunk and thrown away, so that the decoder is where it would be after all before them:
# the bit reservoir of MPEG audio, the overlap of transform codecs, Opus's predictors.
_PRE_ROLL = {
    "aac": 4,
    "alac": 0,
    "flac": 0,
    "mp1float": 4,
    "mp2float": 4,
    "mp3float": 32,
    "opus": 100,
    "vorbis": 2,
}


def tick_s(track: AudioStream) -> float:
    """Seconds of one unit of the track's timestamps. As a float: fractions cost more per packet than decoding."""
    return float(track.time_base or 0)


def pre_roll_packets(codec_name: str, profile: str | None) -> int | None:
    """Packets a fresh decoder of this codec needs before its samples are right; None where it never catches up or
    nobody knows, so that the track has to be decoded from its beginning by one decoder.
    """
    if codec_name.startswith("pcm_"):
        return 0
    # Spectral band replication and prediction carry state over any number of packets.
    if codec_name == "aac" and profile != "LC":
        return None
    return _PRE_ROLL.get(codec_name)


@dataclass(frozen=True, kw_only=True)
class PacketChunk:
    """warm_up: packets to decode first and forget. packets: those whose samples count. end_s: where the last one
    ends, by its timestamp; None without one. is_first: whether the track begins with it. is_last: whether the
    decoder has to give out what it holds.
    """

    warm_up: tuple[AudioPacket, ...]
    packets: tuple[AudioPacket, ...]
    end_s: float | None
    is_first: bool = False
    is_last: bool = False


class PacketReader:
    """Chunks of a track in order. num_errors counts the places where the file could not be read on."""

    def __init__(self, container: InputContainer, track: AudioStream, pre_roll: int | None) -> None:
        self._container = container
        self._track = track
        self._pre_roll = pre_roll or 0
        self._tick_s = tick_s(track)
        self.num_errors = 0

    def __iter__(self) -> Iterator[PacketChunk]:
        tail: deque[AudioPacket] = deque(maxlen=self._pre_roll)
        warm_up: tuple[AudioPacket, ...] = ()
        packets: list[AudioPacket] = []
        duration_s, num_bytes = 0.0, 0
        is_first = True
        for packet in self._read():
            if packets and (
                duration_s >= _CHUNK_S or len(packets) >= _CHUNK_PACKETS or num_bytes >= _CHUNK_BYTES
            ):
                yield PacketChunk(
                    warm_up=warm_up,
                    packets=tuple(packets),
                    end_s=self._end_s(packets[-1]),
                    is_first=is_first,
                )
                is_first = False
                tail.extend(packets)
                warm_up, packets, duration_s, num_bytes = tuple(tail), [], 0.0, 0
            packets.append(packet)
            duration_s += (packet.duration or 0) * self._tick_s
            num_bytes += packet.size
        if packets:
            yield PacketChunk(
                warm_up=warm_up,
                packets=tuple(packets),
                end_s=self._end_s(packets[-1]),
                is_first=is_first,
                is_last=True,
            )

    def _read(self) -> Iterator[AudioPacket]:
        errors_in_a_row = 0
        while errors_in_a_row < _MAX_READ_ERRORS:
            try:
                for packet in self._container.demux(self._track):
                    # The empty packet at the end is PyAV's sign to flush.
                    if packet.size:
                        errors_in_a_row = 0
                        yield packet
            # At the end of a file in which a stream turned up late, PyAV 18 looks for that stream in vain.
            except (EOFError, IndexError):
                return
            except av.error.FFmpegError:
                self.num_errors += 1
                errors_in_a_row += 1
            else:
                return

    def _end_s(self, packet: AudioPacket) -> float | None:
        return None if packet.pts is None else (packet.pts + (packet.duration or 0)) * self._tick_s
