"""Clips for the video benchmark: a short encode, looped packet by packet to the wanted length.

Knows encoders and containers; times nothing. Looping costs no encoding and changes no decoding work: every
repetition starts with a keyframe.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Any

import av
import numpy as np
import numpy.typing as npt
from av.video.stream import VideoStream

WIDTH, HEIGHT, FPS = 1280, 720, 30
_TEXTURE_SCALES = (256, 64, 16, 4)
_NUM_GRAINS = 8


@dataclass(frozen=True, kw_only=True)
class Clip:
    """One codec setting. gop: frames between keyframes. num_frames: length of the encode that is looped."""

    encoder: str
    gop: int
    num_frames: int
    suffix: str
    options: dict[str, str]


CLIPS = {
    "h264-gop250": Clip(
        encoder="libx264", gop=250, num_frames=1500, suffix="mp4",
        options={"preset": "veryfast", "crf": "25", "x264-params": "scenecut=0"},
    ),
    "h264-gop30": Clip(
        encoder="libx264", gop=30, num_frames=600, suffix="mp4",
        options={"preset": "veryfast", "crf": "25", "x264-params": "scenecut=0"},
    ),
    "hevc": Clip(
        encoder="libx265", gop=250, num_frames=500, suffix="mp4",
        options={
            "preset": "ultrafast", "crf": "28",
            "x265-params": "keyint=250:min-keyint=250:scenecut=0:bframes=3:b-adapt=0:open-gop=0:log-level=none",
        },
    ),
    "vp9": Clip(
        encoder="libvpx-vp9", gop=128, num_frames=512, suffix="webm",
        options={"deadline": "realtime", "cpu-used": "8", "row-mt": "1", "b": "1500k", "lag-in-frames": "0"},
    ),
}  # fmt: skip


def make_clip(name: str, seconds: int, folder: Path) -> Path:
    """The path of a file of that many seconds; kept in `folder` and made only once."""
    clip = CLIPS[name]
    path = folder / f"{name}-{seconds}s.{clip.suffix}"
    if path.exists():
        return path
    short = folder / f"{name}-short.{clip.suffix}"
    if not short.exists():
        _finish(short, lambda unfinished: _encode(clip, unfinished))
    _finish(path, lambda unfinished: _loop(short, unfinished, seconds))
    return path


def _finish(path: Path, write: Any) -> None:
    """Writes under another name first: an interrupted run leaves no half file behind."""
    unfinished = path.with_stem(path.stem + ".part")
    write(unfinished)
    unfinished.rename(path)


def _encode(clip: Clip, path: Path) -> None:
    with av.open(str(path), "w") as container:
        stream = container.add_stream(clip.encoder, rate=FPS, options=clip.options)
        assert isinstance(stream, VideoStream), "every encoder here makes video"
        stream.width, stream.height, stream.pix_fmt = WIDTH, HEIGHT, "yuv420p"
        stream.gop_size = clip.gop
        stream.thread_count = 0
        for frame in _frames(clip.num_frames):
            container.mux(stream.encode(frame))
        container.mux(stream.encode(None))


def _frames(num_frames: int) -> Iterator[av.VideoFrame]:
    """A camera that pans over a texture with detail at every scale, under a little grain."""
    random = np.random.default_rng(0)
    planes = [_texture(random, 2 * HEIGHT, 2 * WIDTH)] + [
        _texture(random, HEIGHT, WIDTH) // 2 + 64 for _ in range(2)
    ]
    grains = [random.integers(-2, 3, (HEIGHT, WIDTH), dtype=np.int16) for _ in range(_NUM_GRAINS)]
    for number in range(num_frames):
        frame = av.VideoFrame(WIDTH, HEIGHT, "yuv420p")
        y = round(HEIGHT / 2 * (1 + np.sin(number / 170))) // 2 * 2
        x = round(WIDTH / 2 * (1 + np.sin(number / 230))) // 2 * 2
        luma = planes[0][y : y + HEIGHT, x : x + WIDTH] + grains[number % _NUM_GRAINS]
        # A square that moves against the camera.
        left = (7 * number) % (WIDTH - 200)
        luma[260:460, left : left + 200] = 255 - luma[260:460, left : left + 200]
        frame.planes[0].update(np.clip(luma, 0, 255).astype(np.uint8).tobytes())
        for plane, values in zip(frame.planes[1:], planes[1:], strict=True):
            window = values[y // 2 : y // 2 + HEIGHT // 2, x // 2 : x // 2 + WIDTH // 2]
            plane.update(window.astype(np.uint8).tobytes())
        frame.pts, frame.time_base = number, Fraction(1, FPS)
        yield frame


def _texture(random: np.random.Generator, height: int, width: int) -> npt.NDArray[np.int16]:
    total = np.zeros((height, width))
    for scale in _TEXTURE_SCALES:
        cells = random.normal(0, scale**0.5, (height // scale + 2, width // scale + 2))
        rows, columns = np.arange(height) / scale, np.arange(width) / scale
        top, left = rows.astype(int), columns.astype(int)
        down, right = (rows - top)[:, None], (columns - left)[None]
        upper = cells[top][:, left] * (1 - right) + cells[top][:, left + 1] * right
        lower = cells[top + 1][:, left] * (1 - right) + cells[top + 1][:, left + 1] * right
        total += upper * (1 - down) + lower * down
    return np.clip(128 + 4 * total, 0, 255).astype(np.int16)


def _loop(source: Path, path: Path, seconds: int) -> None:
    """Copies the packets again and again, each round later by the clip's length, `seconds` x FPS packets in all."""
    with av.open(str(source)) as container, av.open(str(path), "w") as output:
        stream = container.streams.video[0]
        assert stream.time_base is not None
        target = output.add_stream_from_template(stream)
        packets = [packet for packet in container.demux(stream) if packet.size]
        step = round(len(packets) / FPS / stream.time_base)
        starts = [(packet.pts or 0, packet.dts or 0) for packet in packets]
        for number in range(seconds * FPS):
            loop, position = divmod(number, len(packets))
            packet = packets[position]
            packet.stream = target
            packet.time_base = stream.time_base
            packet.pts, packet.dts = (value + loop * step for value in starts[position])
            output.mux(packet)
