"""The committed sound and video are what the committed script makes, and hold what they claim to hold."""

from __future__ import annotations

import wave
from pathlib import Path

import av
import numpy as np
import pytest

from samples import make_clips

CLIPS = Path(__file__).parents[2] / "samples" / "clips"
NAMES = sorted(path.name for path in CLIPS.iterdir())

# Encoders of other builds round differently; a changed drawing or tune is far outside this.
MAX_MEAN_DIFFERENCE = 2.0


@pytest.fixture(scope="module")
def remade(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("clips")
    make_clips.make_all(folder)
    return folder


def samples_of(path: Path) -> np.ndarray:
    with wave.open(str(path)) as file:
        return np.frombuffer(file.readframes(file.getnframes()), "<i2").astype(np.float64)


def video_of(path: Path) -> tuple[np.ndarray, np.ndarray]:
    """Frames [n, H, W, 3] and sound [samples]."""
    with av.open(str(path)) as file:
        frames = np.stack([frame.to_ndarray(format="rgb24") for frame in file.decode(video=0)])
    with av.open(str(path)) as file:
        sound = np.concatenate([frame.to_ndarray()[0] for frame in file.decode(audio=0)])
    return frames, sound


def test_no_clip_is_missing_or_left_over(remade: Path) -> None:
    assert sorted(path.name for path in remade.iterdir()) == NAMES
    assert sum(path.stat().st_size for path in CLIPS.iterdir()) < 300_000


def test_the_sound_is_the_committed_one(remade: Path) -> None:
    ours, theirs = samples_of(remade / "phone_number.wav"), samples_of(CLIPS / "phone_number.wav")
    assert ours.shape == theirs.shape
    assert np.abs(ours - theirs).max() <= 1


def test_the_dialled_number_can_be_heard() -> None:
    sound, rate = samples_of(CLIPS / "phone_number.wav"), make_clips.SOUND_RATE
    heard = ""
    period = make_clips.TONE_S + make_clips.PAUSE_S
    for number in range(len(make_clips.PHONE_NUMBER)):
        begin = round((make_clips.PAUSE_S + number * period) * rate)
        tone = sound[begin : begin + round(make_clips.TONE_S * rate)]
        spectrum = np.abs(np.fft.rfft(tone * np.hanning(len(tone))))
        loudness = [
            [spectrum[round(hz * make_clips.TONE_S)] for hz in group]
            for group in ((697, 770, 852, 941), (1209, 1336, 1477))
        ]
        row, column = (int(np.argmax(values)) for values in loudness)
        heard += "123456789*0#"[3 * row + column]
    assert heard == make_clips.PHONE_NUMBER


def test_the_video_is_the_committed_one(remade: Path) -> None:
    ours, theirs = video_of(remade / "traffic_light.mp4"), video_of(CLIPS / "traffic_light.mp4")
    assert ours[0].shape == theirs[0].shape == (80, 320, 240, 3)
    assert np.abs(ours[0].astype(np.int16) - theirs[0]).mean() <= MAX_MEAN_DIFFERENCE
    assert abs(len(ours[1]) - len(theirs[1])) <= 1024


def test_lamps_and_ticks_are_where_the_script_says() -> None:
    frames, sound = video_of(CLIPS / "traffic_light.mp4")
    lamps = frames[:, [62, 130, 198], 120].astype(int).max(axis=-1) > 120
    assert [tuple(lamps[second * make_clips.FPS + 5]) for second in (0, 2, 3, 4, 7)] == [
        (True, False, False),
        (True, False, False),
        (True, True, False),
        (False, False, True),
        (False, False, True),
    ]
    loud = [np.abs(part).max() > 0.2 for part in np.array_split(sound[: 8 * make_clips.VIDEO_RATE], 64)]
    assert sum(loud[:32]) == 4
    assert sum(loud[32:]) == 32
