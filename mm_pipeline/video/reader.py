"""One container and one decoder that fetch wanted frames. Knows packets, seeking and damage; scales nothing.

Frames nobody wants and nobody refers to are not decoded: before each packet the decoder is told to skip it if it is
such a frame. The frames that are decoded are the same bits as in a decode of everything.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from types import TracebackType
from typing import Literal, Protocol

import av
import av.error
from av.packet import Packet
from av.video.codeccontext import VideoCodecContext
from av.video.frame import VideoFrame
from av.video.stream import VideoStream

from mm_pipeline.container import MediaSource, open_container
from mm_pipeline.video.access import has_layers, is_safe_start
from mm_pipeline.video.chunks import Run
from mm_pipeline.video.index import KeyPoint, read_packets, video_stream
from mm_pipeline.video.info import VideoInfo
from mm_pipeline.video.probe import prepare

# Decoders whose NONREF setting acts packet by packet. The AV1 decoder reads it only once, VP8 and VP9 have no
# frames it applies to.
_SKIPPING_CODECS = {"h264", "hevc", "mpeg4", "mpeg2video", "mpeg1video"}
# FFmpeg's own VP8 and VP9 decoders ignore the alpha layer.
_ALPHA_DECODERS = {"vp8": "libvpx", "vp9": "libvpx-vp9"}
# Transport streams seek late by time, raw streams not at all.
_SEEKS_BY_BYTE = {"mpegts", "mpeg", "h264", "hevc", "mpegvideo", "m4v"}
# Reading on is cheaper than a seek up to this many packets.
_NEAR_PACKETS = 64
# Keyframes to go back when a seek lands too late, before starting over from the beginning of the file.
_STEPS_BACK = (0, 1, 8)
# A frame is given up as lost when this many later wanted frames or frames in all have come out before it.
_LATE_TARGETS, _LATE_FRAMES = 4, 32
_BACKWARD_S = 1


class Deliver(Protocol):
    """Takes the frame for a wanted tick; None or `lost` when the frame itself is not to be had."""

    def __call__(self, tick: int, frame: VideoFrame | None, *, lost: bool) -> None: ...


class StreamReader:
    """Decodes runs of one video stream, on the calling thread. A context manager: leaving it frees everything.

    num_packets_damaged, num_frames_concealed: packets that did not decode; delivered frames the decoder patched.
    """

    def __init__(
        self,
        source: MediaSource,
        info: VideoInfo,
        *,
        max_pixels: int,
        num_threads: int = 1,
        stopped: Callable[[], bool] = lambda: False,
    ) -> None:
        """max_pixels: bound on a decoded frame. num_threads: of the decoder. stopped: asked before every packet;
        once it says yes, work ends without delivering the rest."""
        self._source, self._info, self._stopped = source, info, stopped
        self._max_pixels, self._num_threads = max_pixels, num_threads
        self._keys = info.index.keys
        self._has_shifts = any(key.shift != self._keys[0].shift for key in self._keys)
        formats = set(info.container.split(","))
        self._by_byte = bool(formats & _SEEKS_BY_BYTE)
        self._resources = ExitStack()
        self.num_packets_damaged = 0
        self.num_frames_concealed = 0

    def __enter__(self) -> StreamReader:
        self._open()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        del self._packets, self._codec, self._stream, self._container
        self._resources.close()

    def decode_run(self, run: Run, deliver: Deliver) -> None:
        """Delivers every target of the run once, in order but for damage."""
        start = self._start_for(run)
        if start is None:
            for tick in run.targets:
                deliver(tick, None, lost=True)
            return
        packet, shift = start
        targets = _Targets(run.targets, shift, deliver)
        try:
            for wanted_packet in self._until_fed(packet, targets):
                self._set_skip("DEFAULT" if targets.wants(wanted_packet) else "NONREF")
                self._take(self._decode(wanted_packet), targets)
                targets.fed(wanted_packet)
            self._take(self._decode(None), targets)
        finally:
            self._codec.flush_buffers()
        if not self._stopped():
            targets.give_up()

    def decode_counted(self, targets: tuple[int, ...], deliver: Deliver) -> None:
        """For streams without timestamps: decodes everything and counts the frames that come out."""
        wanted = iter(targets)
        target = next(wanted, None)
        number, latest = 0, None
        for packet in self._packets_then_drain():
            if target is None or self._stopped():
                return
            for frame in self._decode(packet):
                latest = frame
                if number == target:
                    self._note(frame)
                    deliver(target, frame, lost=False)
                    target = next(wanted, None)
                number += 1
        while target is not None and not self._stopped():
            deliver(target, latest, lost=True)
            target = next(wanted, None)

    def _packets_then_drain(self) -> Iterator[Packet[VideoStream] | None]:
        yield from self._packets
        yield None

    def _open(self) -> None:
        self._resources.close()
        self._container = self._resources.enter_context(open_container(self._source))
        self._stream = video_stream(self._container, self._info.stream_number)
        self._codec = self._create_codec()
        prepare(self._codec, self._max_pixels, self._num_threads)
        self._skip: Literal["DEFAULT", "NONREF"] = "DEFAULT"
        self._can_skip = self._codec.name in _SKIPPING_CODECS and not has_layers(
            self._codec.name, self._codec.extradata
        )
        self._packets: Iterator[Packet[VideoStream]] = read_packets(self._container, self._stream)
        self._position = 0

    def _create_codec(self) -> VideoCodecContext:
        own = self._stream.codec_context
        name = _ALPHA_DECODERS.get(own.name) if self._info.has_alpha else None
        if name is None or name not in av.codecs_available:
            return own
        codec = av.CodecContext.create(name, "r")
        assert isinstance(codec, VideoCodecContext), "the decoders listed here make video"
        codec.extradata = own.extradata
        return codec

    def _start_for(self, run: Run) -> tuple[Packet[VideoStream], int] | None:
        """The keyframe packet to decode from and its shift. Goes back where the index promised too much."""
        for number in range(run.key, -1, -1):
            if self._stopped():
                return None
            packet = self._key_packet(number)
            shift = self._keys[number].shift
            if packet is None or number == 0:
                return None if packet is None else (packet, shift)
            is_early = packet.pts is None or packet.pts + shift <= run.targets[0]
            if is_early and is_safe_start(self._codec.name, memoryview(packet), self._codec.extradata):
                return packet, shift
        return None

    def _key_packet(self, number: int) -> Packet[VideoStream] | None:
        key = self._keys[number]
        if self._position <= key.packet <= self._position + _NEAR_PACKETS:
            packet = self._read_to(key)
            if packet is not None:
                return packet
        for steps in _STEPS_BACK:
            if number >= steps and self._seek(self._keys[number - steps]):
                packet = self._read_to(key)
                if packet is not None:
                    return packet
        self._open()
        return self._read_to(key)

    def _seek(self, key: KeyPoint) -> bool:
        self._position = self._info.index.num_packets
        if self._by_byte:
            offset, options = key.byte, {"unsupported_byte_offset": True}
        else:
            offset, options = (key.dts if key.pts is None else key.pts), {}
        if offset is None:
            return False
        with suppress(av.error.FFmpegError):
            self._container.seek(offset, stream=self._stream, **options)
            self._packets = read_packets(self._container, self._stream)
            return True
        return False

    def _read_to(self, key: KeyPoint) -> Packet[VideoStream] | None:
        """Reads up to the keyframe's packet; None when the container is already behind it."""
        for packet in self._packets:
            if self._stopped():
                return None
            if _is_at(packet, key):
                self._position = key.packet + 1
                return packet
            is_behind = (
                packet.pos > key.byte
                if self._by_byte and packet.pos is not None and key.byte is not None
                else packet.dts is not None and key.dts is not None and packet.dts > key.dts
            )
            if is_behind:
                return None
        return None

    def _until_fed(self, packet: Packet[VideoStream], targets: _Targets) -> Iterator[Packet[VideoStream]]:
        """The packets to decode: up to the one that completes the targets, or to where none can come any more."""
        backward = int(_BACKWARD_S / self._info.index.time_base)
        latest = packet.dts
        while not self._stopped():
            yield packet
            if targets.all_fed:
                return
            following = next(self._packets, None)
            if following is None:
                return
            self._position += 1
            packet = following
            if packet.dts is not None:
                if packet.dts > targets.last:
                    return
                if self._has_shifts and latest is not None and packet.dts < latest - backward:
                    return
                latest = packet.dts

    def _set_skip(self, skip: Literal["DEFAULT", "NONREF"]) -> None:
        if self._can_skip and skip != self._skip:
            self._codec.skip_frame = self._skip = skip

    def _decode(self, packet: Packet[VideoStream] | None) -> list[VideoFrame]:
        try:
            return self._codec.decode(packet)
        except av.error.FFmpegError:
            self.num_packets_damaged += 1
            return []

    def _take(self, frames: list[VideoFrame], targets: _Targets) -> None:
        for frame in frames:
            if targets.take(frame):
                self._note(frame)

    def _note(self, frame: VideoFrame) -> None:
        self.num_frames_concealed += frame.is_corrupt


def _is_at(packet: Packet[VideoStream], key: KeyPoint) -> bool:
    """Whether it is the keyframe's packet, by all that both of them say."""
    # Display times come last: the index may have derived them from a constant rate.
    is_same_time = packet.pts == key.pts if packet.dts is None or key.dts is None else packet.dts == key.dts
    return is_same_time and (packet.pos is None or key.byte is None or packet.pos == key.byte)


class _Targets:
    """Wanted timestamps of a run: which are still to be fed as packets, and which to come out as frames."""

    def __init__(self, ticks: tuple[int, ...], shift: int, deliver: Deliver) -> None:
        self._shift, self._deliver = shift, deliver
        self._unfed = {tick - shift for tick in ticks}
        # Ascending; those before `_next` are delivered or late.
        self._stamps = [tick - shift for tick in ticks]
        self._next = 0
        self._late: dict[int, tuple[VideoFrame | None, int, int]] = {}
        self._num_frames = 0
        self._previous: VideoFrame | None = None
        self.last = self._stamps[-1]

    @property
    def all_fed(self) -> bool:
        return not self._unfed

    def wants(self, packet: Packet[VideoStream]) -> bool:
        return packet.pts is None or packet.pts in self._unfed

    def fed(self, packet: Packet[VideoStream]) -> None:
        if packet.pts is not None:
            self._unfed.discard(packet.pts)

    def take(self, frame: VideoFrame) -> bool:
        """Delivers a frame that came out, if it is wanted. Wanted ones that should have come before it are late."""
        stamp = frame.pts
        self._num_frames += 1
        if stamp is None:
            return False
        while self._next < len(self._stamps) and self._stamps[self._next] < stamp:
            self._late[self._stamps[self._next]] = (self._previous, self._next, self._num_frames)
            self._next += 1
        is_due = self._next < len(self._stamps) and self._stamps[self._next] == stamp
        self._give_up_old()
        if is_due:
            self._next += 1
        elif stamp not in self._late:
            self._previous = frame
            return False
        self._late.pop(stamp, None)
        self._previous = frame
        self._deliver(stamp + self._shift, frame, lost=False)
        return True

    def give_up(self) -> None:
        """No more frames come: what is still wanted is replaced by the frame before it."""
        for stamp, (substitute, _, _) in self._late.items():
            self._deliver(stamp + self._shift, substitute, lost=True)
        for stamp in self._stamps[self._next :]:
            self._deliver(stamp + self._shift, self._previous, lost=True)

    def _give_up_old(self) -> None:
        for stamp, (substitute, place, seen) in list(self._late.items()):
            if self._next - place >= _LATE_TARGETS or self._num_frames - seen >= _LATE_FRAMES:
                del self._late[stamp]
                self._deliver(stamp + self._shift, substitute, lost=True)
