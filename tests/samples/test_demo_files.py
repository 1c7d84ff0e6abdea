"""Made-up scenes as files: other readers find the same pictures, keys and frames in them."""

from __future__ import annotations

from itertools import product
from pathlib import Path

import av
import numpy as np
import pytest
from PIL import Image, ImageOps

from mm_pipeline.audio import decode_audio
from samples.demo_training.scenes import clips, files, sounds, tones
from samples.demo_training.scenes.base import SAMPLE_RATE, Clip, Picture, Sound
from tests.samples import ear

KEYS = "415#"


@pytest.fixture(scope="module")
def sound() -> Sound:
    rng = np.random.default_rng(4)
    tape = tones.Tape(rng, "train")
    tape.rest(0.2)
    sounds.dial(rng, "train", tape, KEYS, tones.voice(rng, "train"), within_s=1.0)
    return tape.record(tape.now_s + 0.2)


@pytest.mark.parametrize(
    ("suffix", "rate"),
    # Lossless files differ by nothing but the resampler.
    [(".wav", 8000), (".wav", 22_050), (".wav", 44_100), (".flac", 16_000), (".flac", 48_000)]
    + [(suffix, rate) for suffix in (".mp3", ".ogg") for rate in files.SOUND_RATES[suffix]],
)
def test_keys_come_through_every_kind_of_file(tmp_path: Path, sound: Sound, suffix: str, rate: int) -> None:
    path = tmp_path / f"keys{suffix}"
    files.write_sound(path, sound, sample_rate=rate)
    with decode_audio(path.read_bytes(), sample_rate=SAMPLE_RATE) as stream:
        samples = np.concatenate(list(stream))
    # Lossy encoders may leave a part of their last block.
    assert len(samples) == pytest.approx(len(sound.samples), abs=0.06 * SAMPLE_RATE)
    assert ear.dialled(samples, SAMPLE_RATE) == KEYS


@pytest.mark.parametrize(
    ("suffix", "orientation"), [*product((".png", ".jpg"), range(1, 9)), (".webp", 1), (".webp", 6)]
)
def test_pictures_are_upright_whatever_their_orientation(
    tmp_path: Path, suffix: str, orientation: int
) -> None:
    # Smooth, so that JPEG and WebP keep it; all four corners differ.
    across, down = np.linspace(0, 250, 48), np.linspace(0, 250, 64)
    pixels = np.stack(np.broadcast_arrays(across[None], down[:, None], 128.0), axis=2).astype(np.uint8)
    path = tmp_path / f"picture{suffix}"
    files.write_picture(path, Picture(pixels=pixels), exif_orientation=orientation)
    with Image.open(path) as image:
        assert (image.size == (48, 64)) == (orientation <= 4)
        upright = np.asarray(ImageOps.exif_transpose(image).convert("RGB")).astype(float)
    assert np.abs(upright - pixels).mean() <= (0 if suffix == ".png" else 3)


@pytest.mark.parametrize("fps", [10, 25])
def test_clips_show_and_sound_as_drawn(tmp_path: Path, fps: int) -> None:
    (clip,) = clips.sample(np.random.default_rng(3), "test", 1, "dialled").media
    assert isinstance(clip, Clip)
    assert clip.sound is not None
    path = tmp_path / "clip.mp4"
    files.write_clip(path, clip, fps=fps)
    with av.open(str(path)) as file:
        frames = [(frame.time, frame.to_ndarray(format="rgb24")) for frame in file.decode(video=0)]
        video = file.streams.video[0]
        assert video.codec_context.pix_fmt == "yuv420p"
    assert len(frames) == clip.duration_s * fps
    for seconds, pixels in frames[:: fps // 2]:
        assert seconds is not None
        drawn = clip.draw(seconds)
        assert np.abs(pixels.astype(float) - drawn).mean() < 4
    with decode_audio(path.read_bytes(), sample_rate=SAMPLE_RATE) as stream:
        samples = np.concatenate(list(stream))
    told = "".join(tone.name for tone in clip.sound.tones)
    assert told
    assert ear.dialled(samples, SAMPLE_RATE) == told


def test_a_clip_without_sound_has_no_sound_track(tmp_path: Path) -> None:
    clip = Clip(duration_s=1.0, draw=lambda seconds: np.full((96, 128, 3), 200, np.uint8))
    path = tmp_path / "clip.mp4"
    files.write_clip(path, clip)
    with av.open(str(path)) as file:
        assert len(file.streams.video) == 1
        assert not file.streams.audio


def test_callers_mistakes_are_named(tmp_path: Path, sound: Sound) -> None:
    picture = Picture(pixels=np.zeros((4, 4, 3), np.uint8))
    with pytest.raises(ValueError, match=r"no picture format for a.gif; use .png"):
        files.write_picture(tmp_path / "a.gif", picture)
    with pytest.raises(ValueError, match="exif_orientation is 9; EXIF has 1 to 8"):
        files.write_picture(tmp_path / "a.png", picture, exif_orientation=9)
    with pytest.raises(ValueError, match=r"no sound format for a.aiff; use .wav"):
        files.write_sound(tmp_path / "a.aiff", sound)
    with pytest.raises(ValueError, match=r"no .ogg with 44100 Hz; use 8000"):
        files.write_sound(tmp_path / "a.ogg", sound, sample_rate=44_100)
    odd = Clip(duration_s=1.0, draw=lambda seconds: np.zeros((95, 128, 3), np.uint8))
    with pytest.raises(ValueError, match=r"frames of 128 x 95 pixels; H.264 in yuv420p needs even sides"):
        files.write_clip(tmp_path / "a.mp4", odd)
    with pytest.raises(ValueError, match=r"no clip format for a.webm; use .mp4"):
        files.write_clip(tmp_path / "a.webm", odd)
