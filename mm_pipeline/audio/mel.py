"""Waveform to log-mel frames, as MiMo's audio tokenizer takes them. Knows no files and no rate but its own.

Frame f is centred on sample f * hop; before the first and after the last sample the waveform is mirrored.

Shape letters: N samples, F frames, K = n_fft // 2 + 1 frequencies, M mel filters.
"""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np

from mm_pipeline.audio.products import even_rows_together
from mm_pipeline.audio.settings import AudioSettings
from mm_pipeline.audio.spectrum import BlockSpectrum

LOG_FLOOR = 1e-7

# Frames computed together. Every block is filled up to this many, so that the same frame goes through the same
# arithmetic however the waveform was cut; it is a cache-sized piece of work.
BLOCK_FRAMES = 500
# Parts of the spectrum that meet only the filters they reach.
_NUM_BANDS = 5


def log_mel(waveform: np.ndarray, settings: AudioSettings) -> np.ndarray:
    """float32 [N], N > 0, at the settings' rate, to float32 [N // hop + 1, M]: ln(max(mel magnitude, 1e-7)).

    A waveform of up to n_fft // 2 samples is first filled up with silence, since it cannot be mirrored.
    Raises ValueError for another shape or dtype.
    """
    stream = LogMelStream(settings)
    return np.concatenate([*stream.push(waveform), *stream.finish()])


class LogMelStream:
    """The frames of a waveform that arrives in pieces; the same numbers as for the whole at once.

    Holds at most the samples of one block of frames and the piece just pushed.
    """

    def __init__(self, settings: AudioSettings) -> None:
        self._settings = settings
        self._block = _MelBlock(settings)
        self._half = settings.n_fft // 2
        self._block_hop = BLOCK_FRAMES * settings.hop_length
        self._block_span = (BLOCK_FRAMES - 1) * settings.hop_length + settings.n_fft
        # The mirrored waveform from the first sample of the next block on; empty until mirroring is possible.
        self._pending = np.zeros(0, np.float32)
        self._started = False
        self._num_samples = 0
        self._num_frames = 0

    @property
    def num_samples(self) -> int:
        """Samples pushed so far."""
        return self._num_samples

    def push(self, piece: np.ndarray) -> list[np.ndarray]:
        """float32 [n], the next samples. Returns blocks of finished frames, float32 [BLOCK_FRAMES, M]."""
        if piece.ndim != 1 or piece.dtype != np.float32:
            raise ValueError(
                f"the waveform is {piece.dtype} with shape {tuple(piece.shape)}; pass float32 with one dimension"
            )
        self._num_samples += piece.shape[0]
        self._pending = np.concatenate([self._pending, piece])
        if not self._started and self._pending.shape[0] > self._half:
            self._pending = np.concatenate([self._pending[1 : self._half + 1][::-1], self._pending])
            self._started = True
        blocks = []
        begin = 0
        # Half a window and a sample must stay behind, or the end could not be mirrored.
        while self._started and self._pending.shape[0] - begin > self._block_span + self._half:
            blocks.append(self._block(self._pending[begin : begin + self._block_span]))
            begin += self._block_hop
        self._pending = self._pending[begin:].copy()
        self._num_frames += len(blocks) * BLOCK_FRAMES
        return blocks

    def finish(self) -> list[np.ndarray]:
        """The remaining blocks, the last one shorter. Raises ValueError when no sample was pushed."""
        if not self._num_samples:
            raise ValueError("the waveform is empty; pass at least one sample")
        total = self._num_samples // self._settings.hop_length + 1
        if not self._started:
            self.push(np.zeros(self._half + 1 - self._pending.shape[0], np.float32))
        mirrored = self._pending[-self._half - 1 : -1][::-1]
        rest = np.concatenate([self._pending, mirrored, np.zeros(self._block_span, np.float32)])
        blocks = []
        while self._num_frames < total:
            count = min(BLOCK_FRAMES, total - self._num_frames)
            blocks.append(self._block(rest[: self._block_span])[:count])
            rest = rest[self._block_hop :]
            self._num_frames += count
        return blocks


class _MelBlock:
    """Frames of one block; no mirroring. Its spectra are its own, so it belongs to one thread."""

    def __init__(self, settings: AudioSettings) -> None:
        self._spectrum = BlockSpectrum(
            n_fft=settings.n_fft,
            window_size=settings.window_size,
            hop_length=settings.hop_length,
            num_frames=BLOCK_FRAMES,
        )
        self._n_mels = settings.n_mels
        self._bands = _bands(settings, self._spectrum.bins)

    def __call__(self, samples: np.ndarray) -> np.ndarray:
        """float32 [(BLOCK_FRAMES - 1) * hop + n_fft] to float32 [BLOCK_FRAMES, M]."""
        magnitudes = self._spectrum(samples).reshape(BLOCK_FRAMES, -1)
        mel_FM = np.zeros((BLOCK_FRAMES, self._n_mels), np.float32)
        for columns, mels, weights in self._bands:
            group = even_rows_together(BLOCK_FRAMES, weights.size)
            part = magnitudes[:, columns].reshape(-1, group, weights.shape[0]) @ weights
            mel_FM[:, mels] += part.reshape(BLOCK_FRAMES, -1)
        np.maximum(mel_FM, LOG_FLOOR, out=mel_FM)
        return np.log(mel_FM, out=mel_FM)


def _bands(settings: AudioSettings, bins: np.ndarray) -> tuple[tuple[slice, slice, np.ndarray], ...]:
    """The filters cut along the frequencies, since a filter reaches few of them: magnitudes, filters, weights."""
    ordered = bins.reshape(-1)
    weights = np.zeros((len(ordered), settings.n_mels), np.float32)
    # A frequency that comes twice counts once.
    _, firsts = np.unique(ordered, return_index=True)
    weights[firsts] = mel_filters(settings)[ordered[firsts]]
    size = -(-len(bins) // _NUM_BANDS) * bins.shape[1]
    bands = []
    for begin in range(0, len(ordered), size):
        columns = slice(begin, min(begin + size, len(ordered)))
        used = np.flatnonzero(weights[columns].any(axis=0))
        if len(used):
            mels = slice(int(used[0]), int(used[-1]) + 1)
            bands.append((columns, mels, np.ascontiguousarray(weights[columns, mels])))
    return tuple(bands)


@lru_cache(maxsize=8)
def mel_filters(settings: AudioSettings) -> np.ndarray:
    """float32 [K, M]: triangles between points equally spaced on the HTK mel scale, peak 1, no area
    normalisation. mel(f) = 2595 log10(1 + f / 700).
    """
    num_bins = settings.n_fft // 2 + 1
    frequencies_K = np.linspace(0, settings.sample_rate / 2, num_bins)
    low, high = (2595 * math.log10(1 + f / 700) for f in (settings.f_min, settings.top_frequency))
    edges = 700 * (10 ** (np.linspace(low, high, settings.n_mels + 2) / 2595) - 1)
    rising_KM = (frequencies_K[:, None] - edges[:-2]) / (edges[1:-1] - edges[:-2])
    falling_KM = (edges[2:] - frequencies_K[:, None]) / (edges[2:] - edges[1:-1])
    return np.minimum(rising_KM, falling_KM).clip(min=0).astype(np.float32)
