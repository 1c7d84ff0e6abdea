"""Puts decoded pieces where their timestamps say: gaps become silence, overlaps are dropped. Knows no codecs.

A timestamp is not believed alone. It has to move the sound by more than jitter, the sound after it has to go on
from there for a while, and the place it points to has to be inside the file; otherwise the sound simply goes on.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from fractions import Fraction

import numpy as np

# Deviations up to this, in seconds, are rounding and jitter of timestamps. Just under half an AAC frame.
JITTER_S = 0.010
# A deviation counts once the sound went on from it for this long.
_CONFIRM_S = 0.25
# Timestamps that go back further than this start a new clock; the sound goes on.
_MAX_OVERLAP_S = 1.0
# Jumps of a clock that may restart, as in broadcast streams.
_MAX_RESTART_GAP_S = 10.0
# Gaps in a file that does not tell its length.
_MAX_UNKNOWN_GAP_S = 60.0
_SILENCE_SAMPLES = 1 << 18


@dataclass(frozen=True, kw_only=True)
class Piece:
    """Mono samples, float32 [n] at `rate` Hz, without a break. time_s: of the first one on the file's clock, None
    where it has no timestamp.
    """

    samples: np.ndarray
    rate: int
    time_s: float | None

    @property
    def duration_s(self) -> float:
        return len(self.samples) / self.rate


@dataclass(frozen=True, kw_only=True)
class Clock:
    """origin_s: the file's time that is 0 here; None takes the first piece's. end_s: where the file ends by its own
    account, None if it does not tell. may_restart: whether its clock can jump (MPEG-TS). jitter_s: see JITTER_S.
    """

    origin_s: float | None = None
    end_s: float | None = None
    may_restart: bool = False
    jitter_s: float = JITTER_S


@dataclass
class Timeline:
    """Feed pieces in order; out come (rate, samples) without holes, the first at time 0."""

    clock: Clock
    filled_s: float = 0.0
    dropped_s: float = 0.0
    _expects_gap: bool = False
    _held: list[Piece] = field(default_factory=list)
    _offset_s: float | None = None
    _run_start: Fraction = Fraction(0)
    _run_rate: int = 0
    _run_count: int = 0

    @property
    def position(self) -> Fraction:
        """Seconds of sound that came out so far, exactly."""
        if not self._run_rate:
            return self._run_start
        return self._run_start + Fraction(self._run_count, self._run_rate)

    def expect_gap(self) -> None:
        """The next piece comes after sound that was left out on purpose: its gap is real and no damage."""
        self._expects_gap = True

    def add(self, piece: Piece) -> Iterator[tuple[int, np.ndarray]]:
        """What can be said after this piece; a piece with a deviating timestamp waits for those after it."""
        if self._offset_s is None:
            yield from self._first(piece)
            return
        if self._held:
            held_s = sum(held.duration_s for held in self._held)
            first = self._held[0].time_s
            assert first is not None
            if piece.time_s is None or abs(piece.time_s - first - held_s) <= self.clock.jitter_s:
                self._held.append(piece)
                if held_s + piece.duration_s >= _CONFIRM_S:
                    yield from self._confirm()
                return
            # The next timestamp disagrees, so the held one was wrong.
            yield from self._release()
        deviation = self._deviation(piece)
        if abs(deviation) <= self.clock.jitter_s:
            yield self._emit(piece.rate, piece.samples)
            return
        self._held = [piece]
        if piece.duration_s >= _CONFIRM_S:
            yield from self._confirm()

    def finish(self) -> Iterator[tuple[int, np.ndarray]]:
        """What was still held back: at the end of a file there is nothing to confirm a timestamp."""
        yield from self._release()

    def _first(self, piece: Piece) -> Iterator[tuple[int, np.ndarray]]:
        origin = self.clock.origin_s
        if origin is None or piece.time_s is None:
            self._offset_s = -(piece.time_s or 0.0)
            yield self._emit(piece.rate, piece.samples)
            return
        self._offset_s = -origin
        late = piece.time_s - origin
        if late < 0:
            yield from self._drop_then(-late, [piece])
        else:
            yield from self._move(late, [piece])
        # The track's own beginning is no damage.
        self.filled_s = self.dropped_s = 0.0

    def _deviation(self, piece: Piece) -> float:
        if piece.time_s is None:
            return 0.0
        assert self._offset_s is not None
        return piece.time_s + self._offset_s - float(self.position)

    def _release(self) -> Iterator[tuple[int, np.ndarray]]:
        held, self._held = self._held, []
        for piece in held:
            yield self._emit(piece.rate, piece.samples)

    def _confirm(self) -> Iterator[tuple[int, np.ndarray]]:
        held, self._held = self._held, []
        deviation = self._deviation(held[0])
        if deviation > 0:
            yield from self._move(deviation, held)
        elif -deviation <= _MAX_OVERLAP_S:
            yield from self._drop_then(-deviation, held)
        else:
            yield from self._restart(deviation, held)

    def _move(self, gap_s: float, pieces: list[Piece]) -> Iterator[tuple[int, np.ndarray]]:
        if not self._expects_gap and not self._is_plausible(gap_s, pieces):
            yield from self._restart(gap_s, pieces)
            return
        rate = pieces[0].rate
        missing = round(gap_s * rate)
        self.filled_s += 0 if self._expects_gap else missing / rate
        self._expects_gap = False
        while missing > 0:
            count = min(missing, _SILENCE_SAMPLES)
            yield self._emit(rate, np.zeros(count, np.float32))
            missing -= count
        for piece in pieces:
            yield self._emit(piece.rate, piece.samples)

    def _is_plausible(self, gap_s: float, pieces: list[Piece]) -> bool:
        if self.clock.may_restart and gap_s > _MAX_RESTART_GAP_S:
            return False
        time_s = pieces[0].time_s
        assert time_s is not None
        if self.clock.end_s is None:
            return gap_s <= _MAX_UNKNOWN_GAP_S
        return time_s <= self.clock.end_s + 1.0

    def _drop_then(self, overlap_s: float, pieces: list[Piece]) -> Iterator[tuple[int, np.ndarray]]:
        self.dropped_s += overlap_s
        for piece in pieces:
            surplus = min(round(overlap_s * piece.rate), piece.samples.shape[0])
            overlap_s -= surplus / piece.rate
            if surplus < piece.samples.shape[0]:
                yield self._emit(piece.rate, piece.samples[surplus:])

    def _restart(self, deviation: float, pieces: list[Piece]) -> Iterator[tuple[int, np.ndarray]]:
        assert self._offset_s is not None
        self._offset_s -= deviation
        for piece in pieces:
            yield self._emit(piece.rate, piece.samples)

    def _emit(self, rate: int, samples: np.ndarray) -> tuple[int, np.ndarray]:
        if rate != self._run_rate:
            self._run_start, self._run_rate, self._run_count = self.position, rate, 0
        self._run_count += samples.shape[0]
        return rate, samples
