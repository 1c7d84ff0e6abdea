"""Where decoded pieces land. Samples carry their own number, so that every case can be read off the result."""

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mm_pipeline.audio.timeline import Clock, Piece, Timeline

RATE = 1000


def piece(first, count, time_s, rate=RATE):
    return Piece(samples=np.arange(first + 1, first + count + 1, dtype=np.float32), rate=rate, time_s=time_s)


def place(pieces, **clock):
    """(samples, timeline) of pieces of one rate."""
    timeline = Timeline(Clock(**clock))
    out = [samples for each in pieces for _, samples in timeline.add(each)]
    out += [samples for _, samples in timeline.finish()]
    return np.concatenate([np.zeros(0, np.float32), *out]), timeline


def numbered(*spans):
    """Spans of numbers, (first, count); first None is silence."""
    return np.concatenate(
        [
            np.zeros(count) if first is None else np.arange(first + 1, first + count + 1)
            for first, count in spans
        ]
    )


def test_pieces_in_a_row():
    made, timeline = place([piece(0, 500, 3.0), piece(500, 500, 3.5), piece(1000, 500, None)])
    assert np.array_equal(made, numbered((0, 1500)))
    assert timeline.position == 1.5
    assert timeline.filled_s == timeline.dropped_s == 0


def test_jitter_moves_nothing():
    made, _ = place([piece(0, 500, 0.0), piece(500, 500, 0.509), piece(1000, 500, 0.992)])
    assert np.array_equal(made, numbered((0, 1500)))


def test_a_gap_is_silence():
    made, timeline = place([piece(0, 500, 0.0), piece(500, 500, 2.0)], end_s=2.5)
    assert np.array_equal(made, numbered((0, 500), (None, 1500), (500, 500)))
    assert timeline.filled_s == 1.5


def test_short_pieces_confirm_a_gap_together():
    pieces = [piece(0, 500, 0.0), *(piece(500 + 100 * i, 100, 2.0 + 0.1 * i) for i in range(5))]
    made, _ = place(pieces, end_s=2.5)
    assert np.array_equal(made, numbered((0, 500), (None, 1500), (500, 500)))


def test_one_wrong_timestamp_is_ignored():
    made, timeline = place([piece(0, 500, 0.0), piece(500, 20, 99.0), piece(520, 500, 0.52)], end_s=100.0)
    assert np.array_equal(made, numbered((0, 1020)))
    assert timeline.filled_s == 0


def test_a_wrong_timestamp_at_the_end_is_ignored():
    made, _ = place([piece(0, 500, 0.0), piece(500, 20, 99.0)], end_s=100.0)
    assert np.array_equal(made, numbered((0, 520)))


def test_a_gap_beyond_the_end_of_the_file_is_no_gap():
    made, _ = place([piece(0, 500, 0.0), piece(500, 500, 40_000.0)], end_s=10.0)
    assert np.array_equal(made, numbered((0, 1000)))


def test_without_a_known_end_gaps_are_bounded():
    near, _ = place([piece(0, 500, 0.0), piece(500, 500, 30.0)])
    far, _ = place([piece(0, 500, 0.0), piece(500, 500, 61.0)])
    assert len(near) == 30_500
    assert len(far) == 1000


def test_an_overlap_is_dropped():
    made, timeline = place([piece(0, 1000, 0.0), piece(5000, 500, 0.8)])
    assert np.array_equal(made, numbered((0, 1000), (5200, 300)))
    assert timeline.dropped_s == pytest.approx(0.2)


def test_a_clock_that_starts_again_goes_on():
    made, timeline = place(
        [piece(0, 5000, 10.0), piece(5000, 500, 10.0), piece(5500, 500, 10.5)], may_restart=True
    )
    assert np.array_equal(made, numbered((0, 6000)))
    assert timeline.dropped_s == 0


def test_a_jump_of_a_broadcast_clock_goes_on():
    made, _ = place([piece(0, 500, 0.0), piece(500, 500, 20.0)], may_restart=True, end_s=100.0)
    assert np.array_equal(made, numbered((0, 1000)))


def test_the_origin_cuts_or_delays():
    early, timeline = place([piece(0, 1000, 1.0)], origin_s=1.25, end_s=2.0)
    assert np.array_equal(early, numbered((250, 750)))
    late, _ = place([piece(0, 1000, 1.0)], origin_s=0.5, end_s=2.0)
    assert np.array_equal(late, numbered((None, 500), (0, 1000)))
    # What the origin does is no damage.
    assert timeline.filled_s == timeline.dropped_s == 0


def test_another_rate_keeps_the_time():
    timeline = Timeline(Clock())
    pieces = [piece(0, 500, 0.0), piece(0, 300, 0.5, rate=300), piece(0, 500, 1.5)]
    rates = [rate for each in pieces for rate, _ in timeline.add(each)]
    assert rates == [1000, 300, 1000]
    assert timeline.position == 2


def test_a_gap_that_was_asked_for_is_believed():
    timeline = Timeline(Clock())
    list(timeline.add(piece(0, 500, 0.0)))
    timeline.expect_gap()
    out = [samples for _, samples in timeline.add(piece(500, 500, 500.0))]
    assert sum(len(samples) for samples in out) == 500_000
    assert timeline.filled_s == 0


@settings(max_examples=50, deadline=None)
@given(
    gaps=st.lists(st.just(0) | st.integers(20, 3000), min_size=1, max_size=12),
    counts=st.lists(st.integers(250, 2000), min_size=12, max_size=12),
    jitter=st.lists(st.integers(-4, 4), min_size=12, max_size=12),
)
def test_every_piece_lands_where_its_timestamp_says(gaps, counts, jitter):
    """Times in milliseconds, which are samples here; jitter of up to 4 ms is less than what counts."""
    starts, end = [], 0
    for index, gap in enumerate(gaps):
        starts.append(end + (gap if index else 0))
        end = starts[-1] + counts[index]
    pieces = [
        piece(10_000 * index, counts[index], (start + jitter[index]) / RATE if index else 0.0)
        for index, start in enumerate(starts)
    ]
    made, _ = place(pieces, end_s=1e6)
    for index, start in enumerate(starts):
        found = int(np.flatnonzero(made == 10_000 * index + 1)[0])
        assert abs(found - start) <= 8
        assert np.array_equal(made[found : found + counts[index]], pieces[index].samples)
    assert abs(len(made) - end) <= 8
    assert all(a < b for a, b in pairwise(starts))
