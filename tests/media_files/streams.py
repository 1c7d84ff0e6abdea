"""Files that hold other streams than their name promises, and pictures that move."""

from __future__ import annotations

import io
from fractions import Fraction

import av
import numpy as np
from PIL import Image

from tests.media_files.encode import X264, Audio, Video, steady, write
from tests.media_files.files import VideoFile, tone, video_file
from tests.media_files.picture import picture
from tests.media_files.timing import clip


def jpeg(width: int = 300, height: int = 300) -> bytes:
    """A flat orange picture, as cover art is."""
    out = io.BytesIO()
    Image.new("RGB", (width, height), (250, 150, 0)).save(out, "JPEG")
    return out.getvalue()


def _with_cover(container: str, *tracks: Video | Audio) -> bytes:
    """The tracks' packets and a cover picture, which has more pixels than any video here."""
    out = io.BytesIO()
    with (
        av.open(io.BytesIO(write("mp4", *tracks))) as source,
        av.open(out, "w", format=container) as file,
    ):
        cover = file.add_stream("mjpeg", rate=1)
        cover.width, cover.height, cover.pix_fmt = 300, 300, "yuvj420p"
        cover.disposition = av.stream.Disposition.attached_pic
        targets = {stream.index: file.add_stream_from_template(stream) for stream in source.streams}
        packet = av.Packet(jpeg())
        packet.stream, packet.pts, packet.dts, packet.time_base = cover, 0, 0, Fraction(1, 1000)
        packet.is_keyframe = True
        file.mux(packet)
        for packet in source.demux():
            if packet.size:
                packet.stream = targets[packet.stream_index]
                file.mux(packet)
    return out.getvalue()


@video_file
def cover_art() -> VideoFile:
    """An MP4 with a cover picture, larger than the video."""
    frames = steady(60)
    return clip(_with_cover("mp4", Video(frames=frames)), frames)


@video_file
def two_videos() -> VideoFile:
    """A thumbnail track first; the second, larger one is flagged as the default."""
    small = Video(frames=steady(60, first=100), width=96, height=64)
    return clip(write("matroska", small, Video(frames=steady(60), disposition="default")), steady(60))


@video_file
def late_video() -> VideoFile:
    """Its sound starts at 0 and its pictures one second later."""
    frames = [(time + 1, number) for time, number in steady(30)]
    sound = Audio(samples=tone(2.0, 44_100)[None])
    return clip(write("matroska", Video(frames=frames), sound), frames)


def cover_art_only() -> bytes:
    """A song with a cover picture: sound, and no video."""
    return _with_cover("mp3", Audio(samples=tone(1.0, 44_100)[None], codec="libmp3lame"))


def sound_only() -> bytes:
    return write("mp4", Audio(samples=tone(1.0, 44_100)[None]))


def video_without_sound() -> bytes:
    return write("mp4", Video(frames=steady(30)))


def empty_sound_track() -> bytes:
    """A video of one second with an audio track that has no packet."""
    return write("matroska", Video(frames=steady(30)), Audio(samples=np.zeros((1, 0), np.float32)))


def video_with_sound(video_s: int, sound_s: float) -> bytes:
    """30 fps, and a steady tone of amplitude 0.5 at 1 kHz."""
    sound = Audio(samples=tone(sound_s, 44_100)[None])
    return write("mp4", Video(frames=steady(30 * video_s), options=X264), sound)


def _animation(kind: str) -> VideoFile:
    """Ten pictures; every third stays 300 ms and the others 100 ms."""
    lasts = [300 if i % 3 == 2 else 100 for i in range(10)]
    pictures = [Image.fromarray(picture(i)) for i in range(10)]
    out = io.BytesIO()
    options = {"lossless": True} if kind == "WEBP" else {}
    pictures[0].save(out, kind, save_all=True, append_images=pictures[1:], duration=lasts, loop=0, **options)
    starts = np.cumsum([0, *lasts[:-1]])
    return clip(out.getvalue(), [(Fraction(int(start), 1000), i) for i, start in enumerate(starts)])


@video_file
def animated_gif() -> VideoFile:
    return _animation("GIF")


@video_file
def animated_webp() -> VideoFile:
    return _animation("WEBP")


@video_file
def animated_png() -> VideoFile:
    return _animation("PNG")
