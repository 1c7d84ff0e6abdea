"""The two pools under random use: accounting exact at every step, windows always there, bounds kept."""

from __future__ import annotations

import hypothesis.strategies as st
import pytest
from hypothesis import settings
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, rule

from llm_core.kv.dual import DualPool, SequenceKV
from llm_core.kv.pages import PagePool

PAGE, WINDOW, STEP = 4, 9, 6


class Pools(RuleBasedStateMachine):
    """Sequences come, grow, slide and go. The model is one integer per sequence: its length."""

    sequences = Bundle("sequences")

    def __init__(self) -> None:
        super().__init__()
        self.pool = DualPool(
            num_full_pages=40, num_swa_pages=14, page_size=PAGE, window_keys=WINDOW, step_tokens=STEP
        )
        self.alive: list[tuple[SequenceKV, int]] = []

    @rule(target=sequences, most=st.integers(1, 90))
    def admit(self, most: int):
        if not self.pool.can_admit(most):
            return None
        kv = self.pool.admit(most)
        self.alive.append((kv, most))
        return kv

    @rule(kv=sequences, count=st.integers(1, STEP))
    def grow(self, kv: SequenceKV | None, count: int) -> None:
        """As a step does: pages for the new tokens, then the window moves on."""
        if kv is None:
            return
        most = next(most for other, most in self.alive if other is kv)
        count = min(count, most - kv.num_tokens)
        begin = kv.num_tokens
        self.pool.extend(kv, count)
        first_seen = max(0, begin - WINDOW + 1)
        assert kv.swa_begin_page * PAGE <= first_seen, "a key inside the window has no SWA page"
        assert self.pool.num_swa_pages(kv) <= self.pool.max_swa_pages(most)
        self.pool.slide(kv, kv.num_tokens)
        assert self.pool.num_swa_pages(kv) <= -(-WINDOW // PAGE) + 1

    @rule(kv=consumes(sequences))
    def free(self, kv: SequenceKV | None) -> None:
        if kv is not None:
            self.pool.free(kv)
            self.alive = [(other, most) for other, most in self.alive if other is not kv]

    @invariant()
    def accounting_is_exact(self) -> None:
        self.pool.check(kv for kv, _most in self.alive)

    def teardown(self) -> None:
        for kv, _most in self.alive:
            self.pool.free(kv)
        assert self.pool.full.num_used == self.pool.swa.num_used == 0


TestPools = Pools.TestCase
TestPools.settings = settings(max_examples=60, stateful_step_count=60, deadline=None)


def test_an_admitted_sequence_always_reaches_its_end() -> None:
    """Reservations: whatever the others do, no admitted sequence runs out of pages."""
    pool = DualPool(num_full_pages=60, num_swa_pages=12, page_size=PAGE, window_keys=WINDOW, step_tokens=STEP)
    running = []
    while pool.can_admit(70):
        running.append(pool.admit(70))
    assert len(running) == 2
    for _ in range(70):
        for kv in running:
            pool.extend(kv, 1)
            pool.slide(kv, kv.num_tokens)
            pool.check(running)


def test_swa_bound_does_not_grow_with_the_length() -> None:
    pool = DualPool(num_full_pages=4096, num_swa_pages=64, page_size=16, window_keys=129, step_tokens=512)
    assert {pool.max_swa_pages(n) for n in (1_000, 16_000, 64_000)} == {(128 + 512) // 16 + 1}
    kv = pool.admit(65_536)
    most = 0
    for _ in range(128):
        pool.extend(kv, 512)
        most = max(most, pool.swa.num_used)
        pool.slide(kv, kv.num_tokens)
        assert pool.swa.num_used == 8
    assert kv.num_tokens == 65_536
    assert most == 40


def test_a_double_free_and_a_free_page_shared_are_assertions() -> None:
    pool = PagePool(4)
    pages = pool.take(2)
    pool.share(pages[:1])
    pool.give_back(pages)
    assert pool.num_used == 1
    pool.give_back(pages[:1])
    with pytest.raises(AssertionError, match="given back twice"):
        pool.give_back(pages[:1])
    with pytest.raises(AssertionError, match="cannot be shared"):
        pool.share(pages[1:])
    with pytest.raises(AssertionError, match="5 pages wanted, 4 free"):
        pool.take(5)
    pool.check()
