"""Log-mel and resampling against the golden fixtures, torchaudio, and themselves in pieces."""

import pytest
import torch
import torchaudio
from hypothesis import given, settings
from hypothesis import strategies as st

from mm_pipeline.audio import AudioSettings, LogMelStream, audio_tokens, log_mel, num_mel_frames
from mm_pipeline.audio.mel import BLOCK_FRAMES, mel_filters
from mm_pipeline.audio.resample import Resampler
from tests.golden import load_golden

SETTINGS = AudioSettings()
BLOCK = BLOCK_FRAMES * SETTINGS.hop_length


@pytest.fixture(scope="module")
def golden():
    return load_golden("golden_audio_mel", "golden_audio")


def resample(waveform, from_rate, to_rate, pieces=None):
    resampler = Resampler(from_rate, to_rate)
    out = [resampler.push(piece) for piece in (waveform.split(pieces) if pieces else [waveform])]
    return torch.cat([*out, resampler.flush()])


def test_log_mel_is_the_golden_one(golden):
    assert torch.allclose(mel_filters(SETTINGS), golden["mel.filterbank"], atol=1e-6)
    torch.testing.assert_close(
        log_mel(golden["mel.waveform"], SETTINGS), golden["mel.log_mel"], atol=1e-4, rtol=0
    )


def test_48_khz_stereo_is_the_golden_one(golden):
    waveform = resample(golden["mel48.waveform_stereo"].mean(0), 48_000, 24_000)
    torch.testing.assert_close(waveform, golden["mel48.resampled_mono"], atol=1e-6, rtol=0)
    # In logarithms, rounding of 1e-7 in the waveform shows where a band is almost silent.
    made, wanted = log_mel(waveform, SETTINGS), golden["mel48.log_mel"]
    torch.testing.assert_close(made.exp(), wanted.exp(), atol=1e-4, rtol=1e-4)
    from_golden = log_mel(golden["mel48.resampled_mono"], SETTINGS)
    torch.testing.assert_close(from_golden, wanted, atol=1e-4, rtol=0)


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
    waveform = torch.randn(num_samples) * 0.1
    oracle = torchaudio.transforms.MelSpectrogram(24_000, n_fft=960, hop_length=240, n_mels=128, power=1.0)(
        waveform
    )
    torch.testing.assert_close(log_mel(waveform, SETTINGS), oracle.clamp(min=1e-7).log().T, atol=1e-4, rtol=0)


def test_other_numbers_too():
    odd = AudioSettings(
        sample_rate=16_000, n_fft=512, window_size=400, hop_length=160, n_mels=40, f_min=80.0, f_max=7000.0
    )
    oracle = torchaudio.transforms.MelSpectrogram(
        16_000, n_fft=512, win_length=400, hop_length=160, n_mels=40, f_min=80.0, f_max=7000.0, power=1.0
    )
    waveform = torch.randn(20_000)
    torch.testing.assert_close(
        log_mel(waveform, odd), oracle(waveform).clamp(min=1e-7).log().T, atol=1e-4, rtol=0
    )


@settings(max_examples=12, deadline=None)
@given(
    num_samples=st.sampled_from([1, 480, 481, 960, BLOCK - 1, BLOCK, BLOCK + 960, 2 * BLOCK + 480])
    | st.integers(1, 3 * BLOCK),
    pieces=st.lists(st.integers(0, 2 * BLOCK), max_size=6),
)
def test_pieces_make_no_difference(num_samples, pieces):
    waveform = torch.randn(num_samples, generator=torch.Generator().manual_seed(num_samples))
    stream, blocks, begin = LogMelStream(SETTINGS), [], 0
    for size in pieces:
        blocks += stream.push(waveform[begin : begin + size])
        begin += size
    blocks += stream.push(waveform[begin:])
    made = torch.cat([*blocks, *stream.finish()])
    assert torch.equal(made, log_mel(waveform, SETTINGS))
    assert made.shape == (num_mel_frames(num_samples, SETTINGS), 128)


def test_a_few_samples_are_filled_up_with_silence():
    short = torch.randn(100)
    filled = log_mel(torch.cat([short, torch.zeros(381)]), SETTINGS)
    assert torch.equal(log_mel(short, SETTINGS), filled[:1])


def test_silence_is_the_floor():
    assert torch.allclose(log_mel(torch.zeros(24_000), SETTINGS), torch.tensor(1e-7).log())


def test_a_waveform_of_another_kind_is_refused():
    for waveform in (torch.zeros(2, 100), torch.zeros(100, dtype=torch.float64)):
        with pytest.raises(ValueError, match="float32 with one dimension"):
            log_mel(waveform, SETTINGS)
    with pytest.raises(ValueError, match="empty"):
        log_mel(torch.zeros(0), SETTINGS)


@pytest.mark.parametrize("rate", [8000, 11_025, 16_000, 22_050, 32_000, 44_100, 48_000, 96_000])
def test_resampling_is_torchaudios(rate):
    waveform = torch.randn(30_001, dtype=torch.float64)
    oracle = torchaudio.functional.resample(waveform, rate, 24_000).float()
    made = resample(waveform.float(), rate, 24_000)
    assert made.shape == oracle.shape
    torch.testing.assert_close(made, oracle, atol=2e-6, rtol=0)


@settings(max_examples=12, deadline=None)
@given(
    rate=st.sampled_from([8000, 24_000, 44_100, 48_000, 44_099]),
    num_samples=st.integers(0, 150_000),
    piece=st.integers(1, 200_000),
)
def test_resampling_in_pieces_makes_no_difference(rate, num_samples, piece):
    waveform = torch.randn(num_samples, generator=torch.Generator().manual_seed(num_samples))
    made = resample(waveform, rate, 24_000, max(piece, num_samples // 50 + 1))
    assert torch.equal(made, resample(waveform, rate, 24_000))
    assert made.shape[0] == -(-num_samples * 24_000 // rate)


def test_odd_rates_are_resampled_as_well_as_common_ones():
    """44,099 Hz has no short period; a tone must still come out as that tone."""
    t = torch.arange(44_099, dtype=torch.float64) / 44_099
    made = resample(torch.sin(2 * torch.pi * 1000 * t).float(), 44_099, 24_000)
    wanted = torch.sin(2 * torch.pi * 1000 * torch.arange(24_000, dtype=torch.float64) / 24_000).float()
    assert (made - wanted)[100:-100].abs().max() < 2e-3


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
