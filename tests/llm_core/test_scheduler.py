"""What runs in a step: decodes first, prompt chunks under the budget, admission by both pools, who gives way."""

from __future__ import annotations

import math
from itertools import count
from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import given, settings

from llm_core.core import GenerateRequest, SamplingParams
from llm_core.kv.dual import DualPool
from llm_core.scheduler import Scheduler, SchedulerSettings, Sequence

_names = count()


def scheduler(
    *, full: int = 100, swa: int = 100, max_running: int = 8, budget: int = 16, **options: Any
) -> Scheduler:
    pool = DualPool(num_full_pages=full, num_swa_pages=swa, page_size=4, window_keys=9, step_tokens=budget)
    return Scheduler(pool, SchedulerSettings(max_running=max_running, step_tokens=budget, **options))


def add(
    target: Scheduler,
    length: int,
    max_tokens: int = 8,
    *,
    tokens: list[int] | None = None,
    at_s: float = 0.0,
    **fields: Any,
) -> Sequence:
    """A sequence that nobody shares a beginning with, unless `tokens` say otherwise."""
    name = next(_names)
    request = GenerateRequest(
        request_id=str(name),
        token_ids=tuple(tokens or [10_000 + name] * length),
        sampling=SamplingParams(max_tokens=max_tokens),
        **fields,
    )
    sequence = Sequence(request, submitted_s=at_s)
    target.add(sequence)
    return sequence


def run_step(target: Scheduler, *, ends: bool = False) -> list[tuple[Sequence, int, int]]:
    """Runs one step as the engine does; every finished prompt or decode gets one token. ends: answers that are
    complete leave."""
    step = target.next_step()
    target.complete(step)
    target.check()
    for chunk in step.chunks:
        if chunk.is_last:
            chunk.sequence.output_ids.append(1)
            if ends and len(chunk.sequence.output_ids) == chunk.sequence.request.sampling.max_tokens:
                target.remove(chunk.sequence)
    return [(chunk.sequence, chunk.begin, chunk.end) for chunk in step.chunks]


def order_of_first_chunks(target: Scheduler) -> list[Sequence]:
    """Runs everything to its end; who ran first, second and so on."""
    seen: list[Sequence] = []
    while target.has_work:
        for sequence, _, _ in run_step(target, ends=True):
            if sequence not in seen:
                seen.append(sequence)
    return seen


def test_prompts_are_cut_by_the_budget_and_mixed_with_decodes() -> None:
    target = scheduler()
    first, second = add(target, 10), add(target, 30)
    assert run_step(target) == [(first, 0, 10), (second, 0, 6)]
    # One token of the budget is the first one's.
    assert run_step(target) == [(first, 10, 11), (second, 6, 21)]
    third = add(target, 5)
    # What the third needs is less than what the second has left.
    assert run_step(target) == [(first, 11, 12), (third, 0, 5), (second, 21, 30)]
    assert run_step(target) == [(first, 12, 13), (second, 30, 31), (third, 5, 6)]


def test_prompts_go_on_when_the_answers_fill_the_budget() -> None:
    target = scheduler(budget=4, max_running=8)
    short = [add(target, 1, 50) for _ in range(6)]
    for _ in range(3):
        run_step(target)
    long = add(target, 40)
    assert (long, 0, 4) in run_step(target)
    assert len(short) == 6


def test_admission_asks_both_pools_and_the_running_limit() -> None:
    for options in ({"full": 9}, {"swa": 11}, {"max_running": 1}):
        target = scheduler(prefix_cache=False, **options)
        first, second = add(target, 20), add(target, 20)
        assert [entry[0] for entry in run_step(target)] == [first]
        assert list(target.waiting) == [second]
        run_step(target)
        target.remove(first)
        assert run_step(target)[0][0] is second
        target.remove(second)
        assert target.pool.full.num_used == target.pool.swa.num_used == 0
        assert not target.has_work


def test_a_waiting_sequence_can_be_removed() -> None:
    target = scheduler(max_running=1)
    first, second = add(target, 3), add(target, 3)
    run_step(target)
    target.remove(second)
    assert target.running == [first]
    assert not target.waiting


def test_a_prompt_that_was_run_before_is_not_run_again() -> None:
    target = scheduler()
    tokens = list(range(30))
    first = add(target, 0, tokens=tokens)
    while target.has_work:
        run_step(target, ends=True)
    again, longer = (
        add(target, 0, tokens=tokens),
        add(target, 0, tokens=[*tokens, *first.output_ids, 7, 8, 9]),
    )
    # The answer's last token never ran, and the page it is in is not whole.
    assert set(run_step(target)) == {(again, 28, 30), (longer, 36, 41)}
    assert (again.num_cached, longer.num_cached) == (28, 36)


def test_little_to_run_goes_first_and_fcfs_does_not_care() -> None:
    for policy, wanted in (("compute_aware", [1, 2, 0]), ("fcfs", [0, 1, 2])):
        target = scheduler(policy=policy, max_running=1)
        waiting = [add(target, length) for length in (40, 4, 12)]
        assert order_of_first_chunks(target) == [waiting[index] for index in wanted]


def test_what_is_cached_does_not_count() -> None:
    target = scheduler(max_running=1, full=200)
    tokens = list(range(60))
    add(target, 0, tokens=tokens)
    order_of_first_chunks(target)
    other, cached = add(target, 20), add(target, 0, tokens=[*tokens, 1, 2, 3])
    assert order_of_first_chunks(target) == [cached, other]


def test_waiting_makes_up_for_length_within_the_bound() -> None:
    """Steps of 20 tokens: 40 count for 20 ln 3 = 22, 4 for 3.6. With 10 a second that is 1.8 s of waiting."""
    target = scheduler(max_running=1, waiting_credit=10.0, budget=20)
    long = add(target, 40, at_s=100.0)
    soon, late = add(target, 4, at_s=101.7), add(target, 4, at_s=101.9)
    assert order_of_first_chunks(target) == [soon, long, late]


@settings(max_examples=100, deadline=None)
@given(
    arrivals=st.lists(
        st.tuples(st.floats(0, 50), st.integers(1, 60), st.integers(0, 2)), min_size=2, max_size=12
    )
)
def test_nobody_is_overtaken_by_who_comes_later_than_the_bound(arrivals) -> None:
    credit, level = 10.0, 50
    target = scheduler(max_running=1, waiting_credit=credit, priority_tokens=level, prefix_cache=False)
    waiting = [
        add(target, length, at_s=at_s, priority=priority)
        for at_s, length, priority in sorted(arrivals, key=lambda one: one[0])
    ]
    order = order_of_first_chunks(target)
    for place, sequence in enumerate(order):
        weight = target.settings.step_tokens * math.log1p(sequence.num_prompt / target.settings.step_tokens)
        bound_s = (weight + sequence.request.priority * level) / credit
        for other in order[:place]:
            assert other.submitted_s <= sequence.submitted_s + bound_s + 1e-6
    assert set(order) == set(waiting)


def test_long_prompts_hardly_pass_each_other() -> None:
    """Steps of 20 tokens: 400 count for 61, 200 for 48, 4 for 3.6; with 10 a second 1.3 s and 5.7 s of waiting."""
    target = scheduler(max_running=1, waiting_credit=10.0, budget=20, full=200)
    longest, soon, late, short = (
        add(target, length, at_s=at_s)
        for length, at_s in ((400, 100.0), (200, 101.0), (200, 102.0), (4, 105.0))
    )
    assert order_of_first_chunks(target) == [short, soon, longest, late]


def test_users_take_turns() -> None:
    target = scheduler(max_running=1)
    many = [add(target, 8, user="many") for _ in range(5)]
    few = [add(target, 8, user="few") for _ in range(2)]
    order = order_of_first_chunks(target)
    assert [sequence in few for sequence in order] == [False, True, False, True, False, False, False]
    assert [sequence for sequence in order if sequence in many] == many


def test_priorities_come_in_their_order() -> None:
    target = scheduler(max_running=1)
    low, high = add(target, 4, priority=1), add(target, 40)
    assert order_of_first_chunks(target) == [high, low]


def test_contexts_of_unlike_length_are_not_prefilled_together() -> None:
    target = scheduler(bucket_bounds=(32,), budget=64)
    short, long, other = add(target, 8), add(target, 40), add(target, 9)
    # The long one waits for a step of its own; nobody passes it.
    assert [entry[0] for entry in run_step(target)] == [short, other]
    step = run_step(target)
    assert {entry[0] for entry in step} == {short, other, long}
    assert (long, 0, 40) in step


def test_who_was_admitted_last_gives_way_and_comes_back() -> None:
    target = scheduler(full=12, swa=60)
    first, second = add(target, 12, 24), add(target, 12, 24)
    order = order_of_first_chunks(target)
    assert order == [first, second]
    assert target.num_preemptions > 0
    assert (first.num_preempted, second.num_preempted) == (0, target.num_preemptions)
    assert len(first.output_ids) == len(second.output_ids) == 24


def test_a_lower_priority_gives_way_to_a_higher_one() -> None:
    target = scheduler(full=12, swa=60)
    low = add(target, 12, 24, priority=1)
    run_step(target)
    high = add(target, 12, 24)
    order_of_first_chunks(target)
    assert high.num_preempted == 0
    assert low.num_preempted > 0


@settings(max_examples=60, deadline=None)
@given(data=st.data(), full=st.integers(12, 40), swa=st.integers(9, 30), caching=st.booleans())
def test_everything_ends_whatever_is_short(data, full: int, swa: int, caching: bool) -> None:
    """Random prompts over few tokens, random aborts: all answers end whole, positions run once and in order."""
    target = scheduler(full=full, swa=swa, max_running=5, budget=8, prefix_cache=caching, window_stride=8)
    alive: list[Sequence] = []
    wanted: list[Sequence] = []
    reach: dict[Sequence, int] = {}
    for _ in range(data.draw(st.integers(1, 60))):
        if data.draw(st.booleans()) and len(alive) < 10:
            length = data.draw(st.integers(1, 30))
            tokens = data.draw(st.lists(st.integers(0, 1), min_size=length, max_size=length))
            alive.append(add(target, 0, data.draw(st.integers(1, 12)), tokens=tokens))
            wanted.append(alive[-1])
        if alive and data.draw(st.integers(0, 9)) == 0:
            aborted = alive.pop(data.draw(st.integers(0, len(alive) - 1)))
            target.remove(aborted)
            wanted.remove(aborted)
        if target.has_work:
            follow(run_step(target, ends=True), reach)
            target.check()
            alive = [sequence for sequence in alive if sequence.kv is not None or sequence in target.waiting]
    for _ in range(3000):
        if not target.has_work:
            break
        follow(run_step(target, ends=True), reach)
    assert not target.has_work, "no progress"
    for sequence in wanted:
        assert len(sequence.output_ids) == sequence.request.sampling.max_tokens
    target.tree.clear()
    assert target.pool.full.num_used == target.pool.swa.num_used == 0


def follow(step: list[tuple[Sequence, int, int]], reach: dict[Sequence, int]) -> None:
    assert step, "a step without work"
    assert len({sequence for sequence, _, _ in step}) == len(step)
    for sequence, begin, end in step:
        assert begin < end
        # After a preemption it may begin anywhere that is cached, never behind what it ran.
        assert begin <= max(reach.get(sequence, 0), sequence.num_cached if sequence not in reach else 0)
        reach[sequence] = end


@pytest.mark.parametrize("length", [2_000, 64_000])
def test_swa_pages_do_not_grow_with_the_context(length: int) -> None:
    pool = DualPool(num_full_pages=5000, num_swa_pages=64, page_size=16, window_keys=129, step_tokens=512)
    target = Scheduler(pool, SchedulerSettings(step_tokens=512, prefix_cache=False))
    add(target, length, 4)
    most = 0
    while target.has_work:
        step = target.next_step()
        most = max(most, pool.swa.num_used)
        target.complete(step)
        for chunk in step.chunks:
            if chunk.is_last:
                target.remove(chunk.sequence)
    assert most == pool.max_swa_pages(10**9) - 1 == 40
