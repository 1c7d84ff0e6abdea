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
        self.alive: list[SequenceKV] = []

    @rule(target=sequences)
    def begin(self) -> SequenceKV:
        self.alive.append(self.pool.begin())
        return self.alive[-1]

    @rule(kv=sequences, count=st.integers(1, STEP))
    def grow(self, kv: SequenceKV, count: int) -> None:
        """As a step does: pages for the new tokens, then the window moves on."""
        need = self.pool.num_missing_pages(kv, count)
        if need > min(self.pool.full.num_free, self.pool.swa.num_free):
            return
        begin = kv.num_tokens
        self.pool.extend(kv, count)
        first_seen = max(0, begin - WINDOW + 1)
        assert kv.swa_begin_page * PAGE <= first_seen, "a key inside the window has no SWA page"
        assert self.pool.num_swa_pages(kv) <= self.pool.max_swa_pages(10**6)
        self.pool.slide(kv, kv.num_tokens)
        assert self.pool.num_swa_pages(kv) <= self.pool.window_pages + 1
        # The window of the last page boundary is whole.
        boundary = kv.num_tokens // PAGE
        assert kv.swa_begin_page <= max(0, boundary * PAGE - WINDOW + 1) // PAGE

    @rule(kv=consumes(sequences))
    def free(self, kv: SequenceKV) -> None:
        self.pool.free(kv)
        self.alive = [other for other in self.alive if other is not kv]

    @invariant()
    def accounting_is_exact(self) -> None:
        self.pool.check(self.alive)

    def teardown(self) -> None:
        for kv in self.alive:
            self.pool.free(kv)
        assert self.pool.full.num_used == self.pool.swa.num_used == 0


TestPools = Pools.TestCase
TestPools.settings = settings(max_examples=60, stateful_step_count=60, deadline=None)


def test_swa_bound_does_not_grow_with_the_length() -> None:
    pool = DualPool(num_full_pages=4096, num_swa_pages=64, page_size=16, window_keys=129, step_tokens=512)
    assert {pool.max_swa_pages(n) for n in (1_000, 16_000, 64_000)} == {128 // 16 + 1 + 512 // 16}
    kv = pool.begin()
    most = 0
    for _ in range(128):
        pool.extend(kv, 512)
        most = max(most, pool.swa.num_used)
        pool.slide(kv, kv.num_tokens)
        assert pool.swa.num_used == 8
    assert kv.num_tokens == 65_536
    assert most == 40


def test_a_page_of_the_cache_is_idle_when_nobody_else_owns_it() -> None:
    pool = PagePool(3)
    (page,) = pool.take(1)
    pool.cache(page)
    assert (pool.num_idle, pool.num_available) == (0, 2)
    pool.give_back([page])
    assert (pool.num_idle, pool.num_available, pool.num_free) == (1, 3, 2)
    with pytest.raises(AssertionError, match="only `uncache` frees it"):
        pool.give_back([page])
    pool.share([page])
    assert pool.num_idle == 0
    with pytest.raises(AssertionError, match="cached twice"):
        pool.cache(page)
    pool.give_back([page])
    pool.uncache(page)
    assert (pool.num_idle, pool.num_free) == (0, 3)
    pool.check()


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
