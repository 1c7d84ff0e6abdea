"""Waveform to log-mel frames, as MiMo's audio tokenizer takes them. Knows no files and no rate but its own.

Frame f is centred on sample f * hop; before the first and after the last sample the waveform is mirrored.

Shape letters: N samples, F frames, K = n_fft // 2 + 1 frequencies, M mel filters.
"""

from __future__ import annotations

import math
from functools import lru_cache

import torch

from mm_pipeline.audio.settings import AudioSettings

LOG_FLOOR = 1e-7

# Frames computed together. Every block is filled up to this many, so that the same frame goes through the same
# arithmetic however the waveform was cut; it is a cache-sized piece of work.
BLOCK_FRAMES = 500


def log_mel(waveform: torch.Tensor, settings: AudioSettings) -> torch.Tensor:
    """float32 [N], N > 0, at the settings' rate, to float32 [N // hop + 1, M]: ln(max(mel magnitude, 1e-7)).

    A waveform of up to n_fft // 2 samples is first filled up with silence, since it cannot be mirrored.
    Raises ValueError for another shape or dtype.
    """
    stream = LogMelStream(settings)
    return torch.cat([*stream.push(waveform), *stream.finish()])


class LogMelStream:
    """The frames of a waveform that arrives in pieces; the same numbers as for the whole at once.

    Holds at most the samples of one block of frames and the piece just pushed.
    """

    def __init__(self, settings: AudioSettings) -> None:
        self._settings = settings
        self._half = settings.n_fft // 2
        self._block_hop = BLOCK_FRAMES * settings.hop_length
        self._block_span = (BLOCK_FRAMES - 1) * settings.hop_length + settings.n_fft
        # The mirrored waveform from the first sample of the next block on; empty until mirroring is possible.
        self._pending = torch.zeros(0)
        self._started = False
        self._num_samples = 0
        self._num_frames = 0

    @property
    def num_samples(self) -> int:
        """Samples pushed so far."""
        return self._num_samples

    def push(self, piece: torch.Tensor) -> list[torch.Tensor]:
        """float32 [n], the next samples. Returns blocks of finished frames, float32 [BLOCK_FRAMES, M]."""
        if piece.ndim != 1 or piece.dtype != torch.float32:
            raise ValueError(
                f"the waveform is {piece.dtype} with shape {tuple(piece.shape)}; pass float32 with one dimension"
            )
        self._num_samples += piece.shape[0]
        self._pending = torch.cat([self._pending, piece])
        if not self._started and self._pending.shape[0] > self._half:
            self._pending = torch.cat([self._pending[1 : self._half + 1].flip(0), self._pending])
            self._started = True
        blocks = []
        begin = 0
        # Half a window and a sample must stay behind, or the end could not be mirrored.
        while self._started and self._pending.shape[0] - begin > self._block_span + self._half:
            blocks.append(log_mel_block(self._pending[begin : begin + self._block_span], self._settings))
            begin += self._block_hop
        self._pending = self._pending[begin:].clone()
        self._num_frames += len(blocks) * BLOCK_FRAMES
        return blocks

    def finish(self) -> list[torch.Tensor]:
        """The remaining blocks, the last one shorter. Raises ValueError when no sample was pushed."""
        if not self._num_samples:
            raise ValueError("the waveform is empty; pass at least one sample")
        total = self._num_samples // self._settings.hop_length + 1
        if not self._started:
            self.push(torch.zeros(self._half + 1 - self._pending.shape[0]))
        mirrored = self._pending[-self._half - 1 : -1].flip(0)
        rest = torch.cat([self._pending, mirrored, torch.zeros(self._block_span)])
        blocks = []
        while self._num_frames < total:
            count = min(BLOCK_FRAMES, total - self._num_frames)
            blocks.append(log_mel_block(rest[: self._block_span], self._settings)[:count])
            rest = rest[self._block_hop :]
            self._num_frames += count
        return blocks


def log_mel_block(samples: torch.Tensor, settings: AudioSettings) -> torch.Tensor:
    """float32 [(BLOCK_FRAMES - 1) * hop + n_fft] to float32 [BLOCK_FRAMES, M]; no mirroring."""
    frames_FN = samples.as_strided(
        (BLOCK_FRAMES, settings.n_fft), (settings.hop_length, 1), samples.storage_offset()
    )
    # Several times faster than abs() of complex numbers; what underflows here is far below the floor.
    squares_FK2 = torch.view_as_real(torch.fft.rfft(frames_FN * _window(settings))).square_()
    magnitude_FK = torch.add(squares_FK2[..., 0], squares_FK2[..., 1]).sqrt_()
    return (magnitude_FK @ mel_filters(settings)).clamp_(min=LOG_FLOOR).log_()


@lru_cache(maxsize=8)
def _window(settings: AudioSettings) -> torch.Tensor:
    """Periodic Hann window, float32 [n_fft], centred where it is shorter."""
    window = torch.hann_window(settings.window_size, periodic=True)
    left = (settings.n_fft - settings.window_size) // 2
    return torch.nn.functional.pad(window, (left, settings.n_fft - settings.window_size - left))


@lru_cache(maxsize=8)
def mel_filters(settings: AudioSettings) -> torch.Tensor:
    """float32 [K, M]: triangles between points equally spaced on the HTK mel scale, peak 1, no area
    normalisation. mel(f) = 2595 log10(1 + f / 700).
    """
    num_bins = settings.n_fft // 2 + 1
    frequencies_K = torch.linspace(0, settings.sample_rate / 2, num_bins)
    low, high = (2595 * math.log10(1 + f / 700) for f in (settings.f_min, settings.top_frequency))
    edges = 700 * (10 ** (torch.linspace(low, high, settings.n_mels + 2) / 2595) - 1)
    rising_KM = (frequencies_K[:, None] - edges[:-2]) / (edges[1:-1] - edges[:-2])
    falling_KM = (edges[2:] - frequencies_K[:, None]) / (edges[2:] - edges[1:-1])
    return torch.minimum(rising_KM, falling_KM).clamp(min=0)
