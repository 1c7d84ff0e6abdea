"""The definition of the log-mel frames, in plain torch. Nothing but tests imports it: decoding runs without torch.

It is the arithmetic of the model's own processor, to its single-precision rounding. `mel.log_mel` agrees with it to
1e-4 in magnitudes, and in logarithms wherever a band holds more than that rounding.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F

from mm_pipeline.audio.mel import LOG_FLOOR
from mm_pipeline.audio.settings import AudioSettings


def log_mel_reference(waveform: torch.Tensor, settings: AudioSettings) -> torch.Tensor:
    """float32 [N], N > n_fft // 2, to float32 [N // hop + 1, M]: ln(max(mel magnitude, 1e-7))."""
    window = torch.hann_window(settings.window_size, periodic=True)
    left = (settings.n_fft - settings.window_size) // 2
    spectrum_KF = torch.stft(
        waveform,
        settings.n_fft,
        settings.hop_length,
        window=F.pad(window, (left, settings.n_fft - settings.window_size - left)),
        center=True,
        pad_mode="reflect",
        return_complex=True,
    )
    mel_FM = spectrum_KF.abs().T @ mel_filters_reference(settings)
    return mel_FM.clamp(min=LOG_FLOOR).log()


def mel_filters_reference(settings: AudioSettings) -> torch.Tensor:
    """float32 [K, M]: triangles between points equally spaced on the HTK mel scale, peak 1, no area
    normalisation. mel(f) = 2595 log10(1 + f / 700).
    """
    frequencies_K = torch.linspace(0, settings.sample_rate / 2, settings.n_fft // 2 + 1)
    low, high = (2595 * math.log10(1 + f / 700) for f in (settings.f_min, settings.top_frequency))
    edges = 700 * (10 ** (torch.linspace(low, high, settings.n_mels + 2) / 2595) - 1)
    rising_KM = (frequencies_K[:, None] - edges[:-2]) / (edges[1:-1] - edges[:-2])
    falling_KM = (edges[2:] - frequencies_K[:, None]) / (edges[2:] - edges[1:-1])
    return torch.minimum(rising_KM, falling_KM).clamp(min=0)
