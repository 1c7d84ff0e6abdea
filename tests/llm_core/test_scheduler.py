"""What runs in a step: decodes first, prompt chunks under the budget, admission by both pools."""

from __future__ import annotations

from llm_core.kv.dual import DualPool
from llm_core.scheduler import Scheduler, Sequence
from tests.llm_core.support import request


def scheduler(*, full: int = 100, swa: int = 100, max_running: int = 8, budget: int = 16) -> Scheduler:
    pool = DualPool(num_full_pages=full, num_swa_pages=swa, page_size=4, window_keys=9, step_tokens=budget)
    return Scheduler(pool, max_running=max_running, prefill_tokens=budget)


def add(target: Scheduler, length: int, max_tokens: int = 8) -> Sequence:
    sequence = Sequence(request([1] * length, max_tokens=max_tokens))
    target.add(sequence)
    return sequence


def run_step(target: Scheduler) -> list[tuple[Sequence, int, int]]:
    """Runs one step as the engine does; every finished prompt or decode gets one token."""
    step = target.next_step()
    target.complete(step)
    for chunk in step.chunks:
        if chunk.is_last:
            chunk.sequence.output_ids.append(1)
    return [(chunk.sequence, chunk.begin, chunk.end) for chunk in step.chunks]


def test_prompts_are_cut_by_the_budget_and_mixed_with_decodes() -> None:
    target = scheduler()
    first, second = add(target, 10), add(target, 30)
    assert run_step(target) == [(first, 0, 10), (second, 0, 6)]
    assert run_step(target) == [(first, 10, 11), (second, 6, 22)]
    third = add(target, 5)
    assert run_step(target) == [(first, 11, 12), (second, 22, 30), (third, 0, 5)]
    assert run_step(target) == [(first, 12, 13), (second, 30, 31), (third, 5, 6)]


def test_admission_asks_both_pools_and_the_running_limit() -> None:
    for options in ({"full": 9}, {"swa": 11}, {"max_running": 1}):
        target = scheduler(**options)
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
