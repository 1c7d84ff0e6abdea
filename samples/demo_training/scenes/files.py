"""Pictures, sounds and clips to files, as other people's tools would have made them. Knows no questions."""

from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction
from pathlib import Path

import av
import numpy as np
from av.audio.stream import AudioStream
from av.container import OutputContainer
from PIL import Image

from samples.demo_training.scenes.base import SAMPLE_RATE, Clip, Picture, Sound

PICTURE_SUFFIXES = (".png", ".jpg", ".jpeg", ".webp")
# Encoder, and bits per second where it is lossy.
_SOUND_CODECS: dict[str, tuple[str, int | None]] = {
    ".wav": ("pcm_s16le", None),
    ".flac": ("flac", None),
    ".mp3": ("libmp3lame", 64_000),
    ".ogg": ("libopus", 64_000),
}
_RATES = (8000, 11_025, 12_000, 16_000, 22_050, 24_000, 32_000, 44_100, 48_000)
SOUND_RATES: dict[str, tuple[int, ...]] = {
    ".wav": _RATES,
    ".flac": _RATES,
    ".mp3": _RATES,
    # Opus has no others (RFC 6716).
    ".ogg": (8000, 12_000, 16_000, 24_000, 48_000),
}
"""Sample rates that each kind of file is written with."""

CLIP_SOUND_RATE = 44_100

# What to do to an upright picture so that a reader who follows the EXIF orientation sees it upright again.
_STORED = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_90,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_270,
}
_ORIENTATION_TAG = 0x0112


def write_picture(path: Path, picture: Picture, *, exif_orientation: int = 1, quality: int = 90) -> None:
    """PNG, JPEG or WebP by the suffix. quality: of the last two.

    Pixels are stored turned, so that following the orientation (1..8) shows them upright. Raises ValueError for
    another suffix or orientation.
    """
    if path.suffix not in PICTURE_SUFFIXES:
        raise ValueError(f"no picture format for {path.name}; use {', '.join(PICTURE_SUFFIXES)}")
    if not 1 <= exif_orientation <= 8:
        raise ValueError(f"exif_orientation is {exif_orientation}; EXIF has 1 to 8")
    image = Image.fromarray(picture.pixels)
    exif = Image.Exif()
    if exif_orientation != 1:
        image = image.transpose(_STORED[exif_orientation])
        exif[_ORIENTATION_TAG] = exif_orientation
    if path.suffix == ".png":
        image.save(path, exif=exif)
    else:
        image.save(path, exif=exif, quality=quality)


def write_sound(path: Path, sound: Sound, *, sample_rate: int = SAMPLE_RATE) -> None:
    """WAV, FLAC, MP3 or Ogg Opus by the suffix, one channel, resampled to `sample_rate`.

    Raises ValueError for a suffix or a rate that is not in `SOUND_RATES`.
    """
    if path.suffix not in SOUND_RATES:
        raise ValueError(f"no sound format for {path.name}; use {', '.join(SOUND_RATES)}")
    if sample_rate not in SOUND_RATES[path.suffix]:
        rates = ", ".join(str(rate) for rate in SOUND_RATES[path.suffix])
        raise ValueError(f"no {path.suffix} with {sample_rate} Hz; use {rates}")
    codec, bit_rate = _SOUND_CODECS[path.suffix]
    with av.open(str(path), "w") as file:
        _encode_sound(file, _sound_stream(file, codec, bit_rate, sample_rate), sound, sample_rate)


def write_clip(path: Path, clip: Clip, *, fps: int = 10, crf: int = 20) -> None:
    """MP4 with H.264 (yuv420p) and, when the clip has a sound, AAC. crf: x264's quality, lower is better.

    Raises ValueError when the frames have an odd side or the suffix is not .mp4.
    """
    if path.suffix != ".mp4":
        raise ValueError(f"no clip format for {path.name}; use .mp4")
    height, width = clip.draw(0.0).shape[:2]
    if height % 2 or width % 2:
        raise ValueError(f"frames of {width} x {height} pixels; H.264 in yuv420p needs even sides")
    with av.open(str(path), "w", options={"movflags": "+faststart"}) as file:
        video = file.add_stream("libx264", rate=fps, options={"preset": "veryfast", "crf": str(crf)})
        video.width, video.height, video.pix_fmt = width, height, "yuv420p"
        # One thread: the same file on every machine.
        video.codec_context.thread_count = 1
        audio = None
        if clip.sound is not None:
            audio = _sound_stream(file, "aac", 64_000, CLIP_SOUND_RATE)
        for number in range(round(clip.duration_s * fps)):
            pixels = np.ascontiguousarray(clip.draw(number / fps))
            frame = av.VideoFrame.from_ndarray(pixels, format="rgb24")
            frame.pts, frame.time_base = number, Fraction(1, fps)
            file.mux(video.encode(frame))
        file.mux(video.encode(None))
        if audio is not None and clip.sound is not None:
            _encode_sound(file, audio, clip.sound, CLIP_SOUND_RATE)


def _sound_stream(file: OutputContainer, codec: str, bit_rate: int | None, sample_rate: int) -> AudioStream:
    stream = file.add_stream(codec, rate=sample_rate, layout="mono")
    assert isinstance(stream, AudioStream)
    if bit_rate is not None:
        # Low rates have room for fewer bits.
        stream.bit_rate = bit_rate if sample_rate >= 16_000 else bit_rate // 2
    return stream


def _encode_sound(file: OutputContainer, stream: AudioStream, sound: Sound, sample_rate: int) -> None:
    for frame in _frames(sound, stream, sample_rate):
        file.mux(stream.encode(frame))
    file.mux(stream.encode(None))


def _frames(sound: Sound, stream: AudioStream, sample_rate: int) -> Iterator[av.AudioFrame]:
    """The sound in the stream's format and rate, cut as its encoder wants it."""
    size = stream.codec_context.frame_size or 1024
    resampler = av.AudioResampler(
        format=stream.codec_context.format, layout="mono", rate=sample_rate, frame_size=size
    )
    frame = av.AudioFrame.from_ndarray(
        np.ascontiguousarray(sound.samples[None], np.float32), format="fltp", layout="mono"
    )
    frame.sample_rate, frame.pts, frame.time_base = SAMPLE_RATE, 0, Fraction(1, SAMPLE_RATE)
    yield from resampler.resample(frame)
    yield from resampler.resample(None)
