"""Magnitudes of the spectra of windowed frames, by matrix products. Knows no mel.

A transform of N = P * Q samples in two steps (Cooley and Tukey): Q of length P over every Qth sample, then P of
length Q over their results. numpy's own transform takes four times as long as these products.

Shape letters: F frames, N n_fft, P * Q = N, H = P // 2 + 1; the other half of the P is conjugate to it.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np
from numpy.lib.stride_tricks import as_strided

from mm_pipeline.audio.products import even_rows_together


class BlockSpectrum:
    """Spectra of blocks of `num_frames` frames, each `hop_length` samples after the one before. Its results stay
    valid until the next call; it belongs to one thread.

    bins: int64 [Q, H], the frequency, 0 to N // 2, of each magnitude. Some come twice.
    """

    def __init__(self, *, n_fft: int, window_size: int, hop_length: int, num_frames: int) -> None:
        self._hop_length, self._num_frames = hop_length, num_frames
        self._first_Q2PH, self._second, self.bins = _matrices(n_fft, window_size)
        q, _, p, h = self._first_Q2PH.shape
        self._first_group = even_rows_together(num_frames, p * h)
        self._second_group = even_rows_together(num_frames, 4 * q * q * h)
        self._frames_QFP = np.empty((q, num_frames, p), np.float32)
        self._half_done_Q2FH = np.empty((q, 2, num_frames, h), np.float32)
        self._spectra_2QFH = np.empty((2, q, num_frames, h), np.float32)
        self._magnitudes_FQH = np.empty((num_frames, q, h), np.float32)

    def __call__(self, samples: np.ndarray) -> np.ndarray:
        """float32 [(num_frames - 1) * hop_length + N] to float32 [F, Q, H]."""
        q, num_frames, p = self._frames_QFP.shape
        step = samples.strides[0]
        shape, strides = (q, num_frames, p), (step, self._hop_length * step, q * step)
        np.copyto(self._frames_QFP, as_strided(samples, shape, strides))
        half_done, spectra_2QFH = self._half_done_Q2FH, self._spectra_2QFH
        h, group = half_done.shape[-1], self._first_group
        np.matmul(
            self._frames_QFP.reshape(q, 1, -1, group, p),
            self._first_Q2PH[:, :, None],
            out=half_done.reshape(q, 2, -1, group, h),
        )
        # Groups of frames side by side in the columns.
        columns = (2 * q, -1, self._second_group * h)
        np.matmul(
            self._second,
            half_done.reshape(columns).swapaxes(0, 1),
            out=spectra_2QFH.reshape(columns).swapaxes(0, 1),
        )
        # Twice as fast as abs() of complex numbers; what underflows here is far below any floor.
        np.square(spectra_2QFH, out=spectra_2QFH)
        power_QFH = np.add(spectra_2QFH[0], spectra_2QFH[1], out=spectra_2QFH[0])
        np.sqrt(power_QFH.swapaxes(0, 1), out=self._magnitudes_FQH)
        return self._magnitudes_FQH


def _factors(n_fft: int) -> tuple[int, int]:
    """P and Q with the least work: the first products cost P per sample, the second ones 2 Q."""
    pairs = [(n_fft // q, q) for q in range(1, n_fft + 1) if n_fft % q == 0]
    return min(pairs, key=lambda pair: pair[0] + 2 * pair[1])


@lru_cache(maxsize=8)
def _matrices(n_fft: int, window_size: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """float32 [Q, 2, P, H]: window, transforms of length P, and the turns between the steps; for the real and the
    imaginary part. float32 [2 Q, 2 Q]: the transform of length Q, from (q, part) to (part, q). The bins.
    """
    p, q = _factors(n_fft)
    in_p, in_q, out_p = np.arange(p), np.arange(q), np.arange(p // 2 + 1)
    bins = out_p + p * in_q[:, None]
    bins = np.minimum(bins, n_fft - bins)
    # From low to high, so that neighbouring frequencies lie side by side.
    out_q = np.argsort(bins.min(axis=1), kind="stable")
    indices = q * in_p + in_q[:, None]
    first = hann_window(n_fft, window_size)[indices][..., None] * _turn(indices[..., None] * out_p, n_fft)
    second = _turn(out_q[:, None] * in_q, q)
    real = np.stack([second.real, -second.imag], axis=2).reshape(q, 2 * q)
    imaginary = np.stack([second.imag, second.real], axis=2).reshape(q, 2 * q)
    return (
        np.stack([first.real, first.imag], axis=1).astype(np.float32),
        np.concatenate([real, imaginary]).astype(np.float32),
        bins[out_q],
    )


def _turn(steps: np.ndarray, of: int) -> np.ndarray:
    """exp(-2 pi i steps / of), complex128."""
    return np.exp(-2j * np.pi / of * (steps % of))


def hann_window(n_fft: int, window_size: int) -> np.ndarray:
    """Periodic, float64 [n_fft], centred where `window_size` is shorter."""
    window = 0.5 - 0.5 * np.cos(2 * np.pi * np.arange(window_size) / window_size)
    left = (n_fft - window_size) // 2
    return np.pad(window, (left, n_fft - window_size - left))
