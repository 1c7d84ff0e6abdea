"""Log-mel and resampling against the golden fixtures, torchaudio, and themselves in pieces."""

import numpy as np
import pytest
import torch
import torchaudio
from hypothesis import given, settings
from hypothesis import strategies as st

from mm_pipeline.audio import AudioSettings, LogMelStream, audio_tokens, log_mel, num_mel_frames
from mm_pipeline.audio.mel import BLOCK_FRAMES, mel_filters
from mm_pipeline.audio.reference import log_mel_reference, mel_filters_reference
from mm_pipeline.audio.resample import Resampler
from tests.golden import load_golden

SETTINGS = AudioSettings()
BLOCK = BLOCK_FRAMES * SETTINGS.hop_length


@pytest.fixture(scope="module")
def golden():
    tensors = load_golden("golden_audio_mel", "golden_audio")
    return {name: tensor.numpy() for name, tensor in tensors.items()}


def resample(waveform, from_rate, to_rate, pieces=None):
    resampler = Resampler(from_rate, to_rate)
    size = pieces or max(1, len(waveform))
    out = [resampler.push(waveform[begin : begin + size]) for begin in range(0, len(waveform), size)]
    return np.concatenate([*out, resampler.flush()])


def noise(num_samples, seed=0):
    return np.random.default_rng(seed).standard_normal(num_samples, np.float32)


def logs(mel):
    """torchaudio's magnitudes to frames like ours."""
    return mel.clamp(min=1e-7).log().T.numpy()


def test_the_reference_is_golden_to_its_rounding(golden):
    filters = mel_filters_reference(SETTINGS).numpy()
    np.testing.assert_allclose(filters, golden["mel.filterbank"], atol=1e-6, rtol=0)
    for waveform, wanted in (("mel.waveform", "mel.log_mel"), ("mel48.resampled_mono", "mel48.log_mel")):
        made = log_mel_reference(torch.from_numpy(golden[waveform]), SETTINGS).numpy()
        np.testing.assert_allclose(made, golden[wanted], atol=1e-4, rtol=0)


@pytest.mark.parametrize("num_samples", [2400, 24_000, BLOCK + 777])
def test_log_mel_is_the_references(num_samples):
    waveform = noise(num_samples, seed=1)
    wanted = log_mel_reference(torch.from_numpy(waveform), SETTINGS).numpy()
    np.testing.assert_allclose(log_mel(waveform, SETTINGS), wanted, atol=1e-4, rtol=0)


def test_log_mel_is_the_golden_one(golden):
    # Ours are computed in double precision, the golden ones were in single.
    np.testing.assert_allclose(mel_filters(SETTINGS), golden["mel.filterbank"], atol=2e-5, rtol=0)
    np.testing.assert_allclose(
        log_mel(golden["mel.waveform"], SETTINGS), golden["mel.log_mel"], atol=1e-4, rtol=0
    )


def test_48_khz_stereo_is_the_golden_one(golden):
    waveform = resample(golden["mel48.waveform_stereo"].mean(0), 48_000, 24_000)
    np.testing.assert_allclose(waveform, golden["mel48.resampled_mono"], atol=1e-6, rtol=0)
    wanted = golden["mel48.log_mel"]
    for made in (log_mel(waveform, SETTINGS), log_mel(golden["mel48.resampled_mono"], SETTINGS)):
        np.testing.assert_allclose(np.exp(made), np.exp(wanted), atol=1e-4, rtol=1e-4)
        # Bands almost silent beside loud ones hold single-precision rounding, in the golden frames as in ours:
        # their logarithms are 0.1 away from those of a transform in double precision.
        heard = wanted > np.log(0.02)
        np.testing.assert_allclose(made[heard], wanted[heard], atol=1e-4, rtol=0)


def test_tokens_are_the_golden_ones(golden):
    for frames, tokens in golden["mel.token_len_table"].tolist():
        assert audio_tokens(frames, SETTINGS) == tokens
    assert num_mel_frames(len(golden["mel.waveform"]), SETTINGS) == len(golden["mel.log_mel"])
    assert audio_tokens(len(golden["mel.log_mel"]), SETTINGS) == golden["mel.n_audio_tokens"].item()


def test_an_hour_is_six_and_a_quarter_tokens_per_second():
    frames = num_mel_frames(3600 * 24_000, SETTINGS)
    assert audio_tokens(frames - 1, SETTINGS) == 22_500
    assert audio_tokens(frames, SETTINGS) == 22_501


def test_tokens_count_segments_apart():
    # Segments of 3 frames give 1 code row each where 6 frames in one piece would give 2.
    odd = AudioSettings(segment_frames=3, group_size=1)
    assert [audio_tokens(n, odd) for n in (1, 3, 4, 6, 7)] == [1, 1, 2, 2, 3]


@pytest.mark.parametrize("num_samples", [481, 2400, 24_000, BLOCK, 3 * BLOCK + 777])
def test_log_mel_is_torchaudios(num_samples):
    waveform = noise(num_samples) * np.float32(0.1)
    oracle = torchaudio.transforms.MelSpectrogram(24_000, n_fft=960, hop_length=240, n_mels=128, power=1.0)(
        torch.from_numpy(waveform)
    )
    np.testing.assert_allclose(log_mel(waveform, SETTINGS), logs(oracle), atol=1e-4, rtol=0)


def test_other_numbers_too():
    odd = AudioSettings(
        sample_rate=16_000, n_fft=512, window_size=400, hop_length=160, n_mels=40, f_min=80.0, f_max=7000.0
    )
    oracle = torchaudio.transforms.MelSpectrogram(
        16_000, n_fft=512, win_length=400, hop_length=160, n_mels=40, f_min=80.0, f_max=7000.0, power=1.0
    )
    waveform = noise(20_000)
    np.testing.assert_allclose(
        log_mel(waveform, odd), logs(oracle(torch.from_numpy(waveform))), atol=1e-4, rtol=0
    )


@settings(max_examples=12, deadline=None)
@given(
    num_samples=st.sampled_from([1, 480, 481, 960, BLOCK - 1, BLOCK, BLOCK + 960, 2 * BLOCK + 480])
    | st.integers(1, 3 * BLOCK),
    pieces=st.lists(st.integers(0, 2 * BLOCK), max_size=6),
)
def test_pieces_make_no_difference(num_samples, pieces):
    waveform = noise(num_samples, seed=num_samples)
    stream, blocks, begin = LogMelStream(SETTINGS), [], 0
    for size in pieces:
        blocks += stream.push(waveform[begin : begin + size])
        begin += size
    blocks += stream.push(waveform[begin:])
    made = np.concatenate([*blocks, *stream.finish()])
    assert np.array_equal(made, log_mel(waveform, SETTINGS))
    assert made.shape == (num_mel_frames(num_samples, SETTINGS), 128)


def test_a_few_samples_are_filled_up_with_silence():
    short = noise(100)
    filled = log_mel(np.concatenate([short, np.zeros(381, np.float32)]), SETTINGS)
    assert np.array_equal(log_mel(short, SETTINGS), filled[:1])


def test_silence_is_the_floor():
    assert np.allclose(log_mel(np.zeros(24_000, np.float32), SETTINGS), np.log(1e-7))


def test_a_waveform_of_another_kind_is_refused():
    for waveform in (np.zeros((2, 100), np.float32), np.zeros(100)):
        with pytest.raises(ValueError, match="float32 with one dimension"):
            log_mel(waveform, SETTINGS)
    with pytest.raises(ValueError, match="empty"):
        log_mel(np.zeros(0, np.float32), SETTINGS)


@pytest.mark.parametrize("rate", [8000, 11_025, 16_000, 22_050, 32_000, 44_100, 48_000, 96_000])
def test_resampling_is_torchaudios(rate):
    waveform = noise(30_001)
    oracle = torchaudio.functional.resample(torch.from_numpy(waveform).double(), rate, 24_000).float().numpy()
    made = resample(waveform, rate, 24_000)
    assert made.shape == oracle.shape
    np.testing.assert_allclose(made, oracle, atol=2e-6, rtol=0)


@settings(max_examples=12, deadline=None)
@given(
    rate=st.sampled_from([8000, 24_000, 44_100, 48_000, 44_099]),
    num_samples=st.integers(0, 150_000),
    piece=st.integers(1, 200_000),
)
def test_resampling_in_pieces_makes_no_difference(rate, num_samples, piece):
    waveform = noise(num_samples, seed=num_samples)
    made = resample(waveform, rate, 24_000, max(piece, num_samples // 50 + 1))
    assert np.array_equal(made, resample(waveform, rate, 24_000))
    assert made.shape[0] == -(-num_samples * 24_000 // rate)


def test_odd_rates_are_resampled_as_well_as_common_ones():
    """44,099 Hz has no short period; a tone must still come out as that tone."""
    t = np.arange(44_099) / 44_099
    made = resample(np.sin(2 * np.pi * 1000 * t).astype(np.float32), 44_099, 24_000)
    wanted = np.sin(2 * np.pi * 1000 * np.arange(24_000) / 24_000)
    assert np.abs(made - wanted)[100:-100].max() < 2e-3


def test_settings_come_from_the_config():
    made = AudioSettings.from_config(
        {
            "processor_config": {"audio_sampling_rate": 16_000, "audio_fmax": 7000, "audio_group_size": 2},
            "audio_config": {"audio_segment_size": 100, "group_size": 4},
        }
    )
    assert (made.sample_rate, made.f_max, made.group_size, made.segment_frames) == (16_000, 7000.0, 2, 100)
    assert AudioSettings.from_config({}) == SETTINGS
    assert made.key_settings() != SETTINGS.key_settings()


def test_impossible_settings_are_refused():
    with pytest.raises(ValueError, match="hop_length is 0"):
        AudioSettings(hop_length=0)
    with pytest.raises(ValueError, match="window_size 1000"):
        AudioSettings(window_size=1000)
    with pytest.raises(ValueError, match="f_max 13000"):
        AudioSettings(f_max=13_000.0)
