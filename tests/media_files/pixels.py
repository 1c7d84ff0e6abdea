"""Files whose pixels are easily read wrongly: turned, stretched, interlaced, in unusual colours or sizes."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction

import av
import numpy as np

from tests.media_files.encode import X264, FrameSink, Video, steady, write
from tests.media_files.files import VideoFile, video_file
from tests.media_files.picture import MATRICES, fill_plane, picture, video_frame
from tests.media_files.timing import VP9, X265, clip

SHARP = X264 | {"crf": "4"}


def _turned(degrees: int) -> VideoFile:
    """Coded lying on its side or head; the display matrix says how to turn it back."""
    video = Video(
        frames=steady(30),
        width=128 if degrees % 180 else 192,
        height=192 if degrees % 180 else 128,
        # Players turn the coded picture by -degrees counter-clockwise: these pixels are turned the other way.
        transform=lambda rgb: np.rot90(rgb, -degrees // 90),
        rotation=degrees,
    )
    return clip(write("mp4", video), steady(30), height=video.height, width=video.width, rotation=degrees)


@video_file
def rotated_90() -> VideoFile:
    return _turned(90)


@video_file
def rotated_180() -> VideoFile:
    return _turned(180)


@video_file
def rotated_270() -> VideoFile:
    return _turned(270)


@video_file
def phone_portrait() -> VideoFile:
    """What a phone records upright: lying pixels, a rotation, a clock that is never steady."""
    ticks = np.cumsum([0] + [2950 + (i * 7919) % 120 + (30_000 if i % 37 == 36 else 0) for i in range(149)])
    frames = [(Fraction(int(tick), 90_000), i) for i, tick in enumerate(ticks)]
    video = Video(frames=frames, width=144, height=256, transform=lambda rgb: np.rot90(rgb, 1), rotation=-90)
    return clip(write("mp4", video), frames, height=256, width=144, rotation=270)


@video_file
def wide_pixels() -> VideoFile:
    """Coded 192 x 128 with pixels 4:3, shown 256 x 128."""
    return clip(write("mp4", Video(frames=steady(20), sar=Fraction(4, 3))), steady(20), width=256)


@video_file
def nearly_square_pixels() -> VideoFile:
    """Within one percent of square: shown as coded."""
    return clip(write("mp4", Video(frames=steady(20), sar=Fraction(200, 199))), steady(20))


@video_file
def odd_size() -> VideoFile:
    video = Video(frames=steady(20), width=193, height=129, codec="libvpx-vp9", options=VP9)
    return clip(write("webm", video), steady(20), width=193, height=129)


def _coloured(
    matrix: str, full_range: bool, width: int = 192, height: int = 128, tagged: bool = True
) -> VideoFile:
    video = Video(
        frames=steady(4, 2), width=width, height=height, matrix=matrix, full_range=full_range, tagged=tagged,
        options=SHARP,
    )  # fmt: skip
    return clip(
        write("mp4", video), steady(4, 2), width=width, height=height, matrix=matrix, full_range=full_range
    )


def _enter_colours() -> None:
    def builder(matrix: str, full_range: bool) -> Callable[[], VideoFile]:
        def build() -> VideoFile:
            return _coloured(matrix, full_range)

        build.__name__ = f"{matrix}_{'full' if full_range else 'limited'}"
        return build

    for matrix in MATRICES:
        for full_range in (False, True):
            video_file(builder(matrix, full_range))


_enter_colours()


@video_file
def untagged_small() -> VideoFile:
    """No colour tags below 720 lines: BT.601."""
    return _coloured("bt601", False, tagged=False)


@video_file
def untagged_720p() -> VideoFile:
    """No colour tags from 720 lines up: BT.709."""
    return _coloured("bt709", False, width=1280, height=720, tagged=False)


@video_file
def ten_bit() -> VideoFile:
    video = Video(
        frames=steady(8, 4),
        codec="libx265",
        options=X265 | {"crf": "4"},
        bits=10,
        matrix="bt709",
        tagged=True,
    )
    return clip(write("mp4", video), steady(8, 4), bits=10, matrix="bt709")


@video_file
def resolution_change() -> VideoFile:
    """A transport stream whose second half has larger pictures."""
    first = [(time, number) for time, number in steady(30)]
    second = [(time + 1, number) for time, number in steady(30, first=30)]
    # Without B-frames, which would move one half's timestamps by their delay.
    options = X264 | {"bf": "0"}
    data = write("mpegts", Video(frames=first, options=options))
    data += write("mpegts", Video(frames=second, width=288, height=192, options=options))
    return clip(data, [*first, *second])


@video_file
def huge_8k() -> VideoFile:
    """Two frames of 7680 x 4320."""
    with FrameSink("libx264", {"preset": "ultrafast", "crf": "30"}, 7680, 4320) as sink:
        for i in range(2):
            small = video_frame(picture(i, 192, 108), "bt709")
            frame = av.VideoFrame(7680, 4320, "yuv420p")
            for large, plane in zip(frame.planes, small.planes, strict=True):
                values = np.frombuffer(plane, np.uint8).reshape(-1, plane.line_size)[:, : plane.width]
                fill_plane(large, values.repeat(40, 0).repeat(40, 1))
            sink.add(frame, i)
    return clip(sink.data, steady(2), width=7680, height=4320, matrix="bt709")


def hdr(transfer: str) -> bytes:
    """HEVC, 10 bits, BT.2020; transfer "pq" (SMPTE ST 2084) or "hlg" (ARIB STD-B67). 8 frames at 4 fps.

    The codes are those of an ordinary picture, so that tone mapping shows as other levels of the same hues."""
    code = {"pq": 16, "hlg": 18}[transfer]
    params = f"{X265['x265-params']}:colorprim=9:transfer={code}:colormatrix=9"
    video = Video(
        frames=steady(8, 4), codec="libx265", options=X265 | {"x265-params": params}, bits=10, matrix="bt2020",
        tagged=True, transfer=code,
    )  # fmt: skip
    return write("mp4", video)


def interlaced() -> bytes:
    """H.264, top field first, 25 frames a second: frame i shows number 2 i in its even lines and 2 i + 1 in the odd
    ones (the picture of 1/50 s later). 40 frames."""
    options = SHARP | {"flags": "+ildct+ilme", "x264-params": "tff=1"}
    with FrameSink("libx264", options, 192, 128, rate=25) as sink:
        for i in range(40):
            rgb = picture(2 * i)
            rgb[1::2] = picture(2 * i + 1)[1::2]
            frame = _interlaced_frame(rgb)
            sink.add(frame, i)
    return sink.data


def _interlaced_frame(rgb: np.ndarray) -> av.VideoFrame:
    # Chroma lines alternate between the fields as luma lines do.
    frame = av.VideoFrame(rgb.shape[1], rgb.shape[0], "yuv420p")
    fields = [video_frame(rgb[parity::2]) for parity in (0, 1)]
    for target, *sources in zip(frame.planes, *(field.planes for field in fields), strict=True):
        lines = [np.frombuffer(s, np.uint8).reshape(-1, s.line_size)[:, : s.width] for s in sources]
        woven = np.stack(lines, axis=1).reshape(-1, lines[0].shape[1])
        fill_plane(target, woven)
    return frame


def alpha() -> bytes:
    """VP9 with an alpha plane, 10 frames: the right half is transparent, and green where a decoder forgets that."""
    with FrameSink(
        "libvpx-vp9", VP9 | {"auto-alt-ref": "0"}, 192, 128, container="webm", pix_fmt="yuva420p"
    ) as sink:
        for i in range(10):
            rgb = picture(0)
            rgb[:] = (200, 40, 48)
            rgb[:, 96:] = (40, 180, 60)
            opaque = video_frame(rgb)
            frame = av.VideoFrame(192, 128, "yuva420p")
            for target, plane in zip(frame.planes, opaque.planes, strict=False):
                target.update(bytes(plane))
            fill_plane(frame.planes[3], np.where(np.arange(192) < 96, 255, 0)[None].repeat(128, 0))
            sink.add(frame, i)
    return sink.data
