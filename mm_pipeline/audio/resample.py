"""Changes the rate of a mono waveform that arrives in pieces. Knows numbers, no files.

Windowed-sinc interpolation with a Hann window, 6 zero crossings on each side and a cutoff at 0.99 of the lower
Nyquist frequency: the filter the model's own processor resamples with (torchaudio's default).
"""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np
from numpy.lib.stride_tricks import as_strided

from mm_pipeline.audio.products import rows_together

_ZERO_CROSSINGS = 6
_ROLLOFF = 0.99

# Outputs of one row of the filter matrix; short periods are repeated up to it, so that the product is worth it.
_MIN_ROW_OUTPUTS = 64
# Samples that go through one matrix product; always filled up, so that pieces do not change the arithmetic.
_BATCH_SAMPLES = 1 << 16
# Beyond this matrix (odd rates such as 44099 Hz) weights are computed per output sample.
_MAX_FILTER_VALUES = 1 << 21
_DIRECT_OUTPUTS = 1 << 14


class Resampler:
    """From one rate to another, both in Hz. The pieces' results, joined, are ceil(n * to / from) samples for n
    and do not depend on how the input was cut.
    """

    def __init__(self, from_rate: int, to_rate: int) -> None:
        if min(from_rate, to_rate) < 1:
            raise ValueError(f"rates {from_rate} Hz and {to_rate} Hz; both must be at least 1 Hz")
        divisor = math.gcd(from_rate, to_rate)
        self._from, self._to = from_rate // divisor, to_rate // divisor
        self._width = _half_width(self._from, self._to)
        repeat = -(-_MIN_ROW_OUTPUTS // self._to)
        self._direct = (self._from * repeat + 2 * self._width) * self._to * repeat > _MAX_FILTER_VALUES
        if self._direct:
            repeat = 1
        self._row_inputs, self._row_outputs = self._from * repeat, self._to * repeat
        self._num_rows = max(1, _BATCH_SAMPLES // self._row_inputs)
        self._group = 1
        if not self._direct:
            row_cost = (self._row_inputs + 2 * self._width) * self._row_outputs
            self._group = min(self._num_rows, rows_together(row_cost))
            self._num_rows -= self._num_rows % self._group
        # Samples from `width` before the next row's first one on.
        self._pending = np.zeros(self._width, np.float32)
        self._num_in = 0
        self._num_out = 0

    def push(self, piece: np.ndarray) -> np.ndarray:
        """float32 [n], the next samples. Returns float32 [m], what can be computed of the result so far."""
        self._num_in += piece.shape[0]
        if self._from == self._to:
            return piece
        self._pending = np.concatenate([self._pending, piece])
        made = []
        batch, span = self._num_rows * self._row_inputs, self._num_rows * self._row_inputs + 2 * self._width
        start = 0
        while self._pending.shape[0] - start >= span:
            made.append(self._convert(self._pending[start : start + span]))
            start += batch
        self._pending = self._pending[start:].copy()
        out = np.concatenate(made) if made else np.zeros(0, np.float32)
        self._num_out += out.shape[0]
        return out

    def flush(self) -> np.ndarray:
        """The rest, float32 [m]: after the last sample comes silence. The resampler is then used up."""
        if self._from == self._to:
            return np.zeros(0, np.float32)
        total = -(-self._num_in * self._to // self._from)
        missing = total - self._num_out
        silence = np.zeros(self._num_rows * self._row_inputs + 2 * self._width, np.float32)
        self._pending = np.concatenate([self._pending, silence])
        return self.push(silence[:0])[:missing]

    def _convert(self, samples: np.ndarray) -> np.ndarray:
        """One batch: float32 [rows * row_inputs + 2 * width] to [rows * row_outputs]."""
        if self._direct:
            return _convert_directly(samples, self._num_rows, self._from, self._to)
        span = self._row_inputs + 2 * self._width
        step = samples.strides[0]
        row_step = self._row_inputs * step
        shape = (self._num_rows // self._group, self._group, span)
        rows = as_strided(samples, shape, (self._group * row_step, row_step, step))
        # A product of overlapping rows would not go through the fast path.
        filters = _filter_matrix(self._from, self._to, self._row_outputs)
        made: np.ndarray = np.ascontiguousarray(rows) @ filters
        return made.reshape(-1)


def _half_width(from_rate: int, to_rate: int) -> int:
    """Input samples on each side that an output depends on."""
    return math.ceil(_ZERO_CROSSINGS * from_rate / (min(from_rate, to_rate) * _ROLLOFF))


def _weights(inputs: np.ndarray, outputs: np.ndarray, from_rate: int, to_rate: int) -> np.ndarray:
    """float32 weight of the input sample at each index for the output sample at each index.

    inputs, outputs: int64, broadcast against each other, counted from a moment where both rates have a sample.
    """
    cutoff = min(from_rate, to_rate) * _ROLLOFF
    # The difference of the two times as one fraction of integers, which is exact.
    distance = (inputs * to_rate - outputs * from_rate) * (cutoff / (from_rate * to_rate))
    distance = distance.clip(-_ZERO_CROSSINGS, _ZERO_CROSSINGS)
    window = np.cos(distance * (math.pi / (2 * _ZERO_CROSSINGS))) ** 2
    weights: np.ndarray = np.sinc(distance) * window * (cutoff / from_rate)
    return weights.astype(np.float32)


@lru_cache(maxsize=8)
def _filter_matrix(from_rate: int, to_rate: int, row_outputs: int) -> np.ndarray:
    """float32 [row inputs + 2 * width, row_outputs]."""
    width = _half_width(from_rate, to_rate)
    row_inputs = row_outputs * from_rate // to_rate
    inputs = np.arange(-width, row_inputs + width)
    return _weights(inputs[:, None], np.arange(row_outputs), from_rate, to_rate)


def _convert_directly(samples: np.ndarray, num_rows: int, from_rate: int, to_rate: int) -> np.ndarray:
    width = _half_width(from_rate, to_rate)
    taps = np.arange(-width, width + 2)
    pieces = []
    total = num_rows * to_rate
    for begin in range(0, total, _DIRECT_OUTPUTS):
        outputs = np.arange(begin, min(total, begin + _DIRECT_OUTPUTS))
        inputs = (outputs * from_rate // to_rate)[:, None] + taps
        # An index one past the end has weight 0.
        values = samples[np.minimum(inputs + width, samples.shape[0] - 1)]
        pieces.append((values * _weights(inputs, outputs[:, None], from_rate, to_rate)).sum(axis=1))
    return np.concatenate(pieces)
