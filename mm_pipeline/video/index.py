"""When every frame of a stream is displayed, and where decoding may start. Decodes nothing.

Ticks count from an arbitrary zero in units of the stream's time base. Where a stream's own timestamps jump back
(two recordings in one transport stream) the later part is shifted behind the earlier: ticks = timestamp + shift.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction

import av.error
import numpy as np
import numpy.typing as npt
from av.container import InputContainer
from av.packet import Packet
from av.stream import Discard
from av.video.stream import VideoStream

from mm_pipeline.container import MediaSource, open_container
from mm_pipeline.errors import UnsupportedMediaError
from mm_pipeline.video.access import is_hidden, is_safe_start

Int64 = npt.NDArray[np.int64]

# A step back in decoding time by more than this is a new recording, less is a muxer's mistake.
_BACKWARD_S = 1
# Containers of broadcasts carry no timeline of their own: a leap like this is a cut, not a long still.
_LEAP_S = 60
_LEAPING_FORMATS = {"mpegts", "mpeg"}
# Keyframes looked at before an index without display times is believed.
_NUM_CHECKED_KEYS = 8
_NUM_FIRST_PACKETS = 64
_MOST_FPS = 480
_MAX_READ_ERRORS = 64


@dataclass(frozen=True, kw_only=True)
class KeyPoint:
    """A keyframe where decoding can start.

    ticks: its display time. packet: its place in decoding order. pts, dts, byte: as its packet says, if it does.
    shift: from timestamps to ticks.
    """

    ticks: int
    packet: int
    pts: int | None
    dts: int | None
    byte: int | None
    shift: int = 0


@dataclass(frozen=True, kw_only=True)
class FrameIndex:
    """ticks: display times, ascending. last_ticks: how long the last frame is displayed.
    keys: ascending in `ticks` and `packet`; the first is where the stream starts.
    num_packets: those before the end or the cut. is_ordinal: the stream has no display times; ticks count frames.
    is_derived: display times follow from a constant step; a time may turn out to have no frame.
    cut_share: share of the declared packets that the file lacks.
    """

    time_base: Fraction
    ticks: Int64
    last_ticks: int
    keys: tuple[KeyPoint, ...]
    num_packets: int
    is_ordinal: bool = False
    is_derived: bool = False
    cut_share: float = 0.0

    def seconds(self, ticks: int) -> float:
        """Time of a tick after the first frame."""
        return float((ticks - int(self.ticks[0])) * self.time_base)

    @property
    def duration_s(self) -> float:
        """From the first frame's display to the end of the last one's."""
        return self.seconds(int(self.ticks[-1]) + self.last_ticks)

    @property
    def start_s(self) -> float:
        """The first frame's own timestamp in seconds."""
        return 0.0 if self.is_ordinal else float((int(self.ticks[0]) - self.keys[0].shift) * self.time_base)


def build_index(source: MediaSource, stream_number: int) -> FrameIndex:
    """From the container's own index if it lists every packet at a constant rate, else from all packets.

    Raises UnsupportedMediaError when there is no frame that could be decoded.
    """
    num_bytes = len(source) if isinstance(source, bytes) else source.stat().st_size
    with open_container(source) as container:
        stream = video_stream(container, stream_number)
        if "mp4" not in container.format.name:
            return _from_packets(container, stream)
        index = _from_container(container, stream, num_bytes)
    if index is not None:
        return index
    with open_container(source) as container:
        return _from_packets(container, video_stream(container, stream_number))


def video_stream(container: InputContainer, number: int) -> VideoStream:
    """The stream of that number; the others' packets are not read from now on."""
    for other in container.streams:
        if other.index != number:
            other.discard = Discard.all
    stream = container.streams[number]
    assert isinstance(stream, VideoStream), "the probe chose a video stream"
    return stream


def read_packets(container: InputContainer, stream: VideoStream) -> Iterator[Packet[VideoStream]]:
    """Packets of the stream from where the container is. Damage between packets is skipped."""
    for _ in range(_MAX_READ_ERRORS):
        try:
            for packet in container.demux(stream):
                if packet.size:
                    yield packet
            return
        # PyAV raises IndexError where damage makes up a stream after the header.
        except (av.error.FFmpegError, IndexError):
            continue


def _from_container(container: InputContainer, stream: VideoStream, num_bytes: int) -> FrameIndex | None:
    entries = stream.index_entries
    if len(entries) < 2 or len(entries) != stream.frames:
        return None
    rows = [(entry.timestamp, entry.flags, entry.pos, entry.size) for entry in entries]
    stamps, flags, places, sizes = np.array(rows, dtype=np.int64).T
    steps = np.diff(stamps)
    # Flag 1 marks keyframes and flag 2 frames outside the edit list.
    if (steps != steps[0]).any() or steps[0] <= 0 or (flags & 2).any() or not flags[0] & 1:
        return None
    present = np.cumprod(places + sizes <= num_bytes)
    num_present = int(present.sum())
    if num_present < 2:
        return None
    first = _first_ticks(container, stream)
    if first is None:
        return None
    step = int(steps[0])
    ticks = first + step * np.arange(num_present, dtype=np.int64)
    keys = tuple(
        KeyPoint(
            ticks=int(ticks[number]),
            packet=int(number),
            pts=int(ticks[number]),
            dts=int(stamps[number]),
            byte=int(places[number]),
        )
        for number in np.flatnonzero(flags[:num_present] & 1)
    )
    if not _keys_hold(container, stream, keys) or not _tail_holds(container, stream, keys[-1], ticks):
        return None
    assert stream.time_base is not None, "streams of this container have a time base"
    return FrameIndex(
        time_base=stream.time_base,
        ticks=ticks,
        last_ticks=step,
        keys=keys,
        num_packets=num_present,
        is_derived=True,
        cut_share=1 - num_present / len(rows),
    )


def _first_ticks(container: InputContainer, stream: VideoStream) -> int | None:
    stamps = [packet.pts for packet in itertools.islice(read_packets(container, stream), _NUM_FIRST_PACKETS)]
    known = [stamp for stamp in stamps if stamp is not None]
    return min(known) if known and len(known) == len(stamps) else None


def _keys_hold(container: InputContainer, stream: VideoStream, keys: tuple[KeyPoint, ...]) -> bool:
    """Whether some of the keyframes, evenly spread, are displayed when they should be and are safe to start at."""
    codec = stream.codec_context
    checked = np.unique(np.linspace(0, len(keys) - 1, min(_NUM_CHECKED_KEYS, len(keys))).astype(int))
    for key in (keys[number] for number in checked):
        assert key.pts is not None, "derived above"
        try:
            container.seek(key.pts, stream=stream)
        except av.error.FFmpegError:
            return False
        packet = next(read_packets(container, stream), None)
        if packet is None or (packet.dts, packet.pts) != (key.dts, key.pts):
            return False
        if not is_safe_start(codec.name, memoryview(packet), codec.extradata):
            return False
    return True


def _tail_holds(container: InputContainer, stream: VideoStream, key: KeyPoint, ticks: Int64) -> bool:
    """Whether the packets from the last keyframe on are displayed when they should be. A copy that was cut without
    decoding ends in the middle of decoding order, which leaves gaps among the last display times."""
    assert key.pts is not None, "derived by the caller"
    try:
        container.seek(key.pts, stream=stream)
    except av.error.FFmpegError:
        return False
    rest = itertools.islice(read_packets(container, stream), len(ticks) - key.packet)
    stamps = sorted(packet.pts for packet in rest if packet.pts is not None)
    return bool(stamps == ticks[key.packet :].tolist())


@dataclass(kw_only=True)
class _Scanned:
    """Columns over the packets in decoding order; None stands for an absent timestamp."""

    pts: list[int | None]
    dts: list[int | None]
    durations: list[int]
    shown: list[bool]
    keys: list[tuple[int, int | None]]


def _from_packets(container: InputContainer, stream: VideoStream) -> FrameIndex:
    codec = stream.codec_context
    name, extradata = codec.name, codec.extradata
    pts: list[int | None] = []
    dts: list[int | None] = []
    durations: list[int] = []
    shown: list[bool] = []
    keys: list[tuple[int, int | None]] = []
    unsafe: list[tuple[int, int | None]] = []
    checks_hidden = name == "vp8"
    for packet in read_packets(container, stream):
        if packet.is_keyframe:
            point = (len(pts), packet.pos)
            (keys if is_safe_start(name, memoryview(packet), extradata) else unsafe).append(point)
        pts.append(packet.pts)
        dts.append(packet.dts)
        durations.append(packet.duration or 0)
        shown.append(not (packet.is_discard or (checks_hidden and is_hidden(name, memoryview(packet)))))
    if not any(shown):
        raise UnsupportedMediaError("the video stream has no frames in it; send the whole file")
    # A stream without any safe keyframe is decoded from its first one, or from its first packet.
    scanned = _Scanned(
        pts=pts, dts=dts, durations=durations, shown=shown, keys=keys or unsafe[:1] or [(0, None)]
    )
    assert stream.time_base is not None, "streams that were read have a time base"
    if any(stamp is None for stamp, visible in zip(pts, shown, strict=True) if visible):
        return _ordinal(scanned, stream)
    return _timed(scanned, stream.time_base, container.format.name)


def _ordinal(scanned: _Scanned, stream: VideoStream) -> FrameIndex:
    # A raw stream's demuxer assumes 25; the stream itself may know better.
    rates = (stream.codec_context.framerate, stream.average_rate, stream.guessed_rate)
    rate = next((rate for rate in rates if rate and 1 <= rate <= _MOST_FPS), Fraction(25))
    num_frames = sum(scanned.shown)
    return FrameIndex(
        time_base=1 / rate,
        ticks=np.arange(num_frames, dtype=np.int64),
        last_ticks=1,
        keys=(KeyPoint(ticks=0, packet=0, pts=None, dts=None, byte=None),),
        num_packets=len(scanned.pts),
        is_ordinal=True,
    )


def _timed(scanned: _Scanned, time_base: Fraction, format_name: str) -> FrameIndex:
    shifts = _shifts(scanned, time_base, bool(_LEAPING_FORMATS & set(format_name.split(","))))
    ticks = np.array([stamp or 0 for stamp in scanned.pts], dtype=np.int64) + shifts
    keys = [
        KeyPoint(
            ticks=int(ticks[number]),
            packet=number,
            pts=scanned.pts[number],
            dts=scanned.dts[number],
            byte=place,
            shift=int(shifts[number]),
        )
        for number, place in scanned.keys
        if scanned.pts[number] is not None or not scanned.shown[number]
    ]
    # Display and decoding order of keyframes agree, but for damage.
    ascending = [keys[0]]
    for key in keys[1:]:
        if key.ticks > ascending[-1].ticks:
            ascending.append(key)
    is_shown = np.array(scanned.shown)
    # What would be displayed before the first keyframe lacks the frames it refers to.
    displayable = is_shown & (ticks >= ascending[0].ticks)
    if not displayable.any():
        displayable = is_shown
    order = np.flatnonzero(displayable)[np.argsort(ticks[displayable], kind="stable")]
    frame_ticks = ticks[order]
    last = scanned.durations[order[-1]]
    if last <= 0 and len(frame_ticks) > 1:
        last = int(np.median(np.diff(frame_ticks)))
    return FrameIndex(
        time_base=time_base,
        ticks=frame_ticks,
        last_ticks=max(last, 0),
        keys=tuple(ascending),
        num_packets=len(scanned.pts),
    )


def _shifts(scanned: _Scanned, time_base: Fraction, leaps: bool) -> Int64:
    """Per packet, what to add to its timestamps so that they go on where a jump breaks them."""
    stamps = [dts if dts is not None else pts for dts, pts in zip(scanned.dts, scanned.pts, strict=True)]
    backward, leap = int(_BACKWARD_S / time_base), int(_LEAP_S / time_base)
    known = np.array([stamp for stamp in stamps if stamp is not None], dtype=np.int64)
    gaps = np.diff(known)
    usual_gap = int(np.median(gaps[gaps > 0])) if (gaps > 0).any() else 1
    shifts = np.zeros(len(stamps), dtype=np.int64)
    shift, previous, latest = 0, None, 0
    for number, stamp in enumerate(stamps):
        if stamp is not None:
            pts = scanned.pts[number]
            shown_at = stamp if pts is None else pts
            if previous is not None and (stamp < previous - backward or (leaps and stamp > previous + leap)):
                shift = latest + (scanned.durations[number - 1] or usual_gap) - shown_at
            previous = stamp
            latest = max(latest, shown_at + shift)
        shifts[number] = shift
    return shifts
