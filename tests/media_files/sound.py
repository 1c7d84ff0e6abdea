"""Sound files whose length, level, start or rate is easily got wrong."""

from __future__ import annotations

import io
import wave

import numpy as np

from tests.media_files.encode import X264, Audio, Video, steady, write
from tests.media_files.files import SoundFile, bursts, sound_file, tone

BURSTS = (0.25, 1.0, 1.75)
_RMS = 0.5 / np.sqrt(2)


def _coded(container: str, codec: str, rate: int, seconds: float = 2.0) -> SoundFile:
    samples = bursts(seconds, rate, BURSTS)
    data = write(container, Audio(samples=samples[None], rate=rate, codec=codec))
    return SoundFile(data=data, num_samples=len(samples), rate=rate, burst_times_s=BURSTS, level=_RMS)


@sound_file
def wav_44k() -> SoundFile:
    return _coded("wav", "pcm_s16le", 44_100)


@sound_file
def wav_11k() -> SoundFile:
    return _coded("wav", "pcm_s16le", 11_025)


@sound_file
def wav_24_bit_96k() -> SoundFile:
    return _coded("wav", "pcm_s24le", 96_000)


@sound_file
def flac_48k() -> SoundFile:
    return _coded("flac", "flac", 48_000)


@sound_file
def aac_mp4() -> SoundFile:
    """1,024 samples of priming, taken off by the edit list."""
    return _coded("mp4", "aac", 44_100)


@sound_file
def opus_ogg() -> SoundFile:
    """312 samples of pre-skip, and an end that the last page's position cuts."""
    return _coded("ogg", "libopus", 48_000)


@sound_file
def opus_webm() -> SoundFile:
    return _coded("webm", "libopus", 48_000)


@sound_file
def mp3_lame() -> SoundFile:
    """1,105 samples of delay, told by the LAME header."""
    return _coded("mp3", "libmp3lame", 44_100)


@sound_file
def aac_adts() -> SoundFile:
    """Raw AAC: nothing tells the priming; bursts come 1,024 samples late, the length is whole frames."""
    made = _coded("adts", "aac", 44_100)
    late = 1024 / 44_100
    return SoundFile(
        data=made.data,
        num_samples=-(-(made.num_samples + 1024) // 1024) * 1024,
        rate=44_100,
        burst_times_s=tuple(time + late for time in BURSTS),
        level=_RMS,
    )


@sound_file
def stereo_in_phase() -> SoundFile:
    """Both sides the same: the mono mix has their level, not 1.41 times it."""
    samples = np.stack([bursts(2.0, 44_100, BURSTS)] * 2)
    data = write("wav", Audio(samples=samples, codec="pcm_s16le", layout="stereo"))
    return SoundFile(data=data, num_samples=samples.shape[1], rate=44_100, burst_times_s=BURSTS, level=_RMS)


@sound_file
def stereo_one_side() -> SoundFile:
    """Only the left side sounds: half its level."""
    left = bursts(2.0, 44_100, BURSTS)
    samples = np.stack([left, np.zeros_like(left)])
    data = write("wav", Audio(samples=samples, codec="pcm_s16le", layout="stereo"))
    return SoundFile(data=data, num_samples=len(left), rate=44_100, burst_times_s=BURSTS, level=_RMS / 2)


def surround(channels: tuple[int, ...], level: float = 0.9) -> bytes:
    """One second of 5.1 (FL FR FC LFE BL BR), 48 kHz FLAC: a 1 kHz tone in the given channels."""
    samples = np.zeros((6, 48_000), np.float32)
    for channel in channels:
        samples[channel] = tone(1.0, 48_000, level=level)
    return write("flac", Audio(samples=samples, rate=48_000, codec="flac", layout="5.1"))


def rate_change() -> SoundFile:
    """Two MP3 recordings in one file: a second at 44.1 kHz, then a second at 22.05 kHz.

    Samples counted at 44.1 kHz, without each half's padding to whole frames (at most 3,500 of its own samples)."""
    parts = [
        write(
            "mp3",
            Audio(samples=bursts(1.0, rate, (0.5,))[None], rate=rate, codec="libmp3lame"),
            options={"write_xing": "0", "id3v2_version": "0"},
        )
        for rate in (44_100, 22_050)
    ]
    return SoundFile(data=b"".join(parts), num_samples=88_200, rate=44_100, burst_times_s=(0.5, 1.5))


def late_sound(delay_s: float) -> bytes:
    """A video of two seconds whose sound starts later (or, for a negative delay, earlier) than its pictures: one
    burst per file, 0.5 s after the sound's start."""
    sound = Audio(
        samples=bursts(1.0, 48_000, (0.5,))[None], rate=48_000, codec="pcm_s16le", start_s=max(delay_s, 0)
    )
    frames = [(time + max(-delay_s, 0), number) for time, number in steady(60)]
    return write("matroska", Video(frames=frames, options=X264), sound)


def no_samples() -> bytes:
    """A WAV file with a header and nothing after it."""
    out = io.BytesIO()
    with wave.open(out, "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(24_000)
    return out.getvalue()
