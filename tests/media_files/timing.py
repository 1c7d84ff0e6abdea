"""Files whose timestamps, index or group structure mislead. The pictures in them are plain."""

from __future__ import annotations

import io
import struct
from collections.abc import Mapping, Sequence
from fractions import Fraction

import av

from tests.media_files.encode import QUIET_X265, X264, Video, remux, shift, steady, write
from tests.media_files.files import VideoFile, video_file

X265 = {"x265-params": QUIET_X265, "preset": "ultrafast", "crf": "12"}
MPEG4 = {"bf": "0", "flags": "+qscale", "global_quality": "236"}
VP9 = {"cpu-used": "8", "deadline": "realtime", "crf": "10"}


def clip(data: bytes, frames: Sequence[tuple[Fraction | float, int]], **truth: object) -> VideoFile:
    """The truth of frames as they were written, counted from the first."""
    first = frames[0][0]
    return VideoFile(
        data=data,
        times_s=tuple(float(time - first) for time, _ in frames),
        numbers=tuple(number for _, number in frames),
        **truth,  # type: ignore[arg-type]
    )


@video_file
def plain() -> VideoFile:
    """Nothing wrong with it: 2 s at 30 fps, three B-frames in a row."""
    return clip(write("mp4", Video(frames=steady(60))), steady(60))


@video_file
def webm_vp9() -> VideoFile:
    frames = steady(60)
    return clip(write("webm", Video(frames=frames, codec="libvpx-vp9", options=VP9 | {"g": "20"})), frames)


@video_file
def vfr_phone() -> VideoFile:
    """A phone's clock: no two gaps alike, and a pause of most of a second."""
    ticks = [0]
    for i in range(79):
        ticks.append(ticks[-1] + 2900 + (i * 7919) % 400 + (70_000 if i == 39 else 0))
    frames = [(Fraction(tick, 90_000), i) for i, tick in enumerate(ticks)]
    return clip(write("mp4", Video(frames=frames)), frames)


@video_file
def vfr_screen() -> VideoFile:
    """A screen recording: 15 frames in half a second, then nothing for a second and a half, again and again."""
    frames = [(time, number) for time, number in steady(180) if number % 60 < 15]
    return clip(write("matroska", Video(frames=frames)), frames)


@video_file
def slides() -> VideoFile:
    """Three pictures in five minutes."""
    frames = [(Fraction(0), 1), (Fraction(100), 2), (Fraction(300), 3)]
    return clip(write("mp4", Video(frames=frames)), frames)


@video_file
def fps_240() -> VideoFile:
    return clip(write("mp4", Video(frames=steady(240, 240))), steady(240, 240))


@video_file
def start_offset() -> VideoFile:
    data = remux(plain().data, "matroska", shift(Fraction(8333, 1000)))
    return clip(data, steady(60))


@video_file
def edit_list() -> VideoFile:
    """Cut without re-encoding: 60 frames in the track, 27 of them shown, and the cut is not on a keyframe."""
    return clip(remux(plain().data, "mp4", shift(Fraction(-33, 30))), steady(27, first=33))


@video_file
def edit_list_delay() -> VideoFile:
    """The edit list of a file that begins with a gap: the first frame comes half a second late."""
    data = remux(plain().data, "mp4", shift(Fraction(1, 2)), options={"avoid_negative_ts": "disabled"})
    return clip(data, steady(60))


@video_file
def open_gop_h264() -> VideoFile:
    options = {**X264, "x264-params": "open-gop=1:keyint=12:bframes=3:scenecut=0"}
    return clip(write("mp4", Video(frames=steady(72), options=options)), steady(72))


@video_file
def open_gop_hevc() -> VideoFile:
    """Leading pictures (RASL) refer across the keyframe and cannot be decoded after a seek to it."""
    params = f"{QUIET_X265}:open-gop=1:keyint=12:bframes=3:scenecut=0"
    options = {"x265-params": params, "preset": "veryfast", "crf": "12"}
    return clip(write("mp4", Video(frames=steady(72), codec="libx265", options=options)), steady(72))


@video_file
def open_gop_mpeg2() -> VideoFile:
    """Program stream of a camcorder's kind, open groups of 12."""
    options = MPEG4 | {"g": "12", "bf": "2"}
    return clip(write("mpegts", Video(frames=steady(72), codec="mpeg2video", options=options)), steady(72))


@video_file
def intra_refresh() -> VideoFile:
    """One real keyframe; later entry points only say where recovery begins."""
    options = {**X264, "bf": "0", "x264-params": "intra-refresh=1:keyint=20"}
    return clip(write("mp4", Video(frames=steady(90), options=options)), steady(90))


@video_file
def intra_refresh_ts() -> VideoFile:
    """The same in a transport stream, where recovery points are flagged as keyframes."""
    options = {**X264, "bf": "0", "x264-params": "intra-refresh=1:keyint=20:repeat-headers=1"}
    return clip(write("mpegts", Video(frames=steady(90), options=options)), steady(90))


@video_file
def one_gop() -> VideoFile:
    options = {**X264, "g": "9999", "sc_threshold": "0"}
    return clip(write("mp4", Video(frames=steady(120), options=options)), steady(120))


@video_file
def raw_h264() -> VideoFile:
    """No container: no timestamps, no length, only the rate in the stream's own header."""
    # With a constant rate the encoder writes it into the header.
    options = X264 | {"x264-params": "force-cfr=1"}
    made = write("mp4", Video(frames=steady(60), options=options))
    return clip(remux(made, "h264", filters="h264_mp4toannexb"), steady(60))


@video_file
def live_matroska() -> VideoFile:
    """Written to a pipe: no index, no duration."""
    return clip(write("matroska", Video(frames=steady(60)), seekable=False), steady(60))


@video_file
def fragmented() -> VideoFile:
    options = {"movflags": "frag_keyframe+empty_moov+default_base_moof"}
    return clip(write("mp4", Video(frames=steady(60)), options=options), steady(60))


@video_file
def wrong_frame_count() -> VideoFile:
    """An AVI whose headers promise 100,000 frames."""
    options = MPEG4 | {"g": "12"}
    data = bytearray(write("avi", Video(frames=steady(60), codec="mpeg4", options=options)))
    struct.pack_into("<I", data, data.index(b"avih") + 8 + 16, 100_000)
    struct.pack_into("<I", data, data.index(b"strh") + 8 + 32, 100_000)
    return clip(bytes(data), steady(60))


@video_file
def declared_12_hours() -> VideoFile:
    """Ten seconds in a Matroska file that says 12 hours."""
    frames = steady(100, 10)
    data = bytearray(write("matroska", Video(frames=frames)))
    # EBML id 0x4489, length 8, a float of milliseconds.
    struct.pack_into(">d", data, data.index(b"\x44\x89\x88") + 3, 12 * 3600 * 1000.0)
    return clip(bytes(data), frames)


@video_file
def declared_12_hours_mp4() -> VideoFile:
    """Ten seconds in an MP4 whose movie, track and media headers say 12 hours."""
    frames = steady(100, 10)
    data = bytearray(write("mp4", Video(frames=frames)))
    for box, timescale_at in ((b"mvhd", 16), (b"mdhd", 16)):
        at = data.index(box)
        (timescale,) = struct.unpack_from(">I", data, at + timescale_at)
        struct.pack_into(">I", data, at + timescale_at + 4, min(12 * 3600 * timescale, 2**32 - 1))
    return clip(bytes(data), frames)


@video_file
def transport_stream() -> VideoFile:
    return clip(write("mpegts", Video(frames=steady(60))), steady(60))


@video_file
def ts_wrap() -> VideoFile:
    """The 33-bit clock of a transport stream passes zero half way."""
    data = remux(transport_stream().data, "mpegts", shift(Fraction(95_441)), options={"mpegts_copyts": "1"})
    return clip(data, steady(60))


@video_file
def ts_twice() -> VideoFile:
    """Two recordings in one file: the clock starts again half way, so every timestamp comes twice."""
    first, second = steady(60), steady(60, first=100)
    data = write("mpegts", Video(frames=first)) + write("mpegts", Video(frames=second))
    return clip(data, [*first, *((time + 2, number) for time, number in second)])


@video_file
def one_frame() -> VideoFile:
    return clip(write("mp4", Video(frames=steady(1, first=77))), steady(1, first=77))


def duplicate_timestamps() -> bytes:
    """Matroska, 40 intra frames at 20 fps; frames 10 to 13 share one time."""
    return _retimed(dict.fromkeys(range(10, 14), 500))


def backward_timestamps() -> bytes:
    """Matroska, 40 intra frames at 20 fps; frames 20 to 24 say that they come a second earlier."""
    return _retimed({i: 50 * i - 1000 for i in range(20, 25)})


def _retimed(milliseconds: Mapping[int, int]) -> bytes:
    """Block timestamps of a Matroska file written over, by frame number; muxers refuse such times."""
    options = MPEG4 | {"g": "1"}
    data = bytearray(write("matroska", Video(frames=steady(40, 20), codec="mpeg4", options=options)))
    with av.open(io.BytesIO(bytes(data))) as file:
        payloads = [bytes(packet) for packet in file.demux(video=0) if packet.size]
    for i, wanted in milliseconds.items():
        # Before the payload of a SimpleBlock: track number, time from the cluster's in 16 bits, flags.
        at = data.index(payloads[i]) - 3
        assert data[at - 1] == 0x81
        struct.pack_into(">h", data, at, struct.unpack_from(">h", data, at)[0] + wanted - 50 * i)
    return bytes(data)
