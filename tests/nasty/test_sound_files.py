"""Every sound file: how many samples come out, when the bursts begin, how loud the mono mix is."""

import numpy as np
import pytest

from mm_pipeline.audio import NoSoundError, decode_audio, probe_audio
from mm_pipeline.errors import UnsupportedMediaError
from tests.media_files import SOUND_FILES, sound, streams

RATE = 24_000
# A burst's start, found to a quarter of a millisecond; lossy codecs smear it a little.
ONSET_ERROR_S = 0.004


def decode(data, **options):
    """(waveform, report) of whole files."""
    with decode_audio(data, sample_rate=RATE, **options) as stream:
        blocks = list(stream)
        return np.concatenate(blocks), stream.report


def onsets(wave, level=0.15):
    """Seconds at which silence of at least 100 ms ends."""
    loud = np.flatnonzero(np.abs(wave) > level)
    starts = loud[np.diff(loud, prepend=-RATE) > RATE // 10]
    return [float(start) / RATE for start in starts]


@pytest.mark.parametrize("num_threads", [1, 3])
@pytest.mark.parametrize("name", sorted(SOUND_FILES))
def test_samples_times_and_level(name, num_threads):
    file = SOUND_FILES[name]()
    wave, report = decode(file.data, num_threads=num_threads)
    assert abs(len(wave) - file.num_samples * RATE / file.rate) <= 1
    assert report.damaged_packets == 0
    assert report.filled_s == report.dropped_s == 0
    level = 0.15 if file.level is None else file.level * 0.5
    assert onsets(wave, level) == pytest.approx(file.burst_times_s, abs=ONSET_ERROR_S)
    for time in file.burst_times_s:
        # The MP3 encoder itself takes 5 % off.
        middle = wave[round((time + 0.02) * RATE) : round((time + 0.08) * RATE)]
        assert float(np.sqrt(np.mean(middle**2))) == pytest.approx(file.level, rel=0.06)
    assert np.abs(wave).max() <= 1


@pytest.mark.parametrize("name", ["wav_44k", "flac_48k", "aac_mp4", "opus_ogg", "mp3_lame"])
def test_part_of_a_sound(name):
    """The samples of [start, end) are those of the whole, to the sample."""
    file = SOUND_FILES[name]()
    whole, _ = decode(file.data)
    part, _ = decode(file.data, start_s=0.9, end_s=1.6)
    assert len(part) == round(0.7 * RATE)
    assert np.abs(part - whole[round(0.9 * RATE) : round(1.6 * RATE)]).max() < 1e-3


@pytest.mark.parametrize("channels", [(0,), (1,), (2,), (4,), (5,), (0, 1, 2, 4, 5)])
def test_surround_is_heard_and_not_overdriven(channels):
    """Every channel but the low-frequency one is in the mix; all of them in phase at 0.9 stay within 1."""
    wave, _ = decode(sound.surround(channels))
    assert len(wave) == RATE
    peak = float(np.abs(wave[RATE // 4 : -RATE // 4]).max())
    assert 0.05 < peak <= 0.91
    if len(channels) == 5:
        assert peak > 0.7


def test_left_and_right_weigh_the_same():
    left, _ = decode(sound.surround((0,)))
    right, _ = decode(sound.surround((1,)))
    assert np.abs(left - right).max() < 1e-4


def test_rate_change():
    file = sound.rate_change()
    wave, _ = decode(file.data)
    first, second = onsets(wave)
    expected = file.num_samples * RATE / file.rate
    padding = 3500 * RATE / 44_100 + 3500 * RATE / 22_050
    assert expected <= len(wave) <= expected + padding
    # Without a header, nothing tells the encoder's delay: at most two frames of it in each half.
    assert 0.5 <= first <= 0.5 + 2304 / 44_100
    assert 1.5 <= second <= 1.5 + padding / RATE


@pytest.mark.parametrize("delay_s", [0.0, 0.3, -0.3])
def test_sound_is_on_the_clock_of_the_pictures(delay_s):
    """Time 0 of the sound is the video's first frame, whether the sound starts with it, later or earlier."""
    wave, _ = decode(sound.late_sound(delay_s))
    assert onsets(wave) == pytest.approx([0.5 + delay_s], abs=0.002)
    assert abs(len(wave) - (1.0 + delay_s) * RATE) <= RATE * 0.002


@pytest.mark.parametrize("sound_s", [1.0, 3.0])
def test_sound_shorter_and_longer_than_the_pictures(sound_s):
    wave, _ = decode(streams.video_with_sound(2, sound_s))
    assert abs(len(wave) - sound_s * RATE) <= 1


def test_edges_are_not_lost_in_the_resampler():
    """A tone to the very last sample, at a rate that needs resampling: it does not fade out early."""
    wave, _ = decode(
        streams.write("wav", streams.Audio(samples=streams.tone(1.0, 44_100)[None], codec="pcm_s16le"))
    )
    assert len(wave) == RATE
    assert float(np.sqrt(np.mean(wave[-480:] ** 2))) == pytest.approx(0.5 / np.sqrt(2), rel=0.1)


@pytest.mark.parametrize("build", [streams.video_without_sound, streams.empty_sound_track, sound.no_samples])
def test_no_sound(build):
    with pytest.raises(NoSoundError, match="sound"):
        decode(build())


def test_cover_art_does_not_disturb():
    data = streams.cover_art_only()
    assert probe_audio(data).video_start_s is None
    wave, _ = decode(data)
    # This muxing has no header that tells the encoder's padding: up to a frame of 1,152 samples at the end.
    assert 0 <= len(wave) - RATE <= 1152 * RATE / 44_100


def test_no_media():
    for data in (b"", b"hello", b"\0" * 5000, bytes(range(256)) * 40):
        with pytest.raises(UnsupportedMediaError):
            decode(data)
