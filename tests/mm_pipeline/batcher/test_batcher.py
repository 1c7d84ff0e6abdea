"""Batches on real threads: what runs when, who fails, what ends how, and that nothing is left over."""

from __future__ import annotations

import gc
import random
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from concurrent.futures import CancelledError, wait
from typing import Any

import pytest

from mm_pipeline.batcher import Batcher, BatcherStats, BatchReport, Work, WorkFuture
from mm_pipeline.errors import (
    DeadlineExceededError,
    EncoderClosedError,
    ItemTooLargeError,
    QueueFullError,
)

LONG_S = 20.0


class Gate:
    """Runs batches only when told to, and keeps what came."""

    def __init__(self) -> None:
        self.batches: list[tuple[str, list[Any]]] = []
        self._begun = threading.Semaphore(0)
        self._allowed = threading.Semaphore(0)

    def run(self, kind: str, payloads: list[Any]) -> list[Any]:
        self.batches.append((kind, list(payloads)))
        self._begun.release()
        assert self._allowed.acquire(timeout=LONG_S)
        return [f"{kind}{payload}" for payload in payloads]

    def wait_until_one_begins(self) -> None:
        assert self._begun.acquire(timeout=LONG_S)

    def open(self, times: int = 1000) -> None:
        self._allowed.release(times)


@pytest.fixture
def gate() -> Iterator[Gate]:
    gate = Gate()
    yield gate
    gate.open()


def batcher(run: Callable[..., Any], **changes: Any) -> Batcher:
    settings = {"budgets": {"x": 10, "y": 10}, "max_items": 100, "max_bytes": 1000, "name": "test"}
    return Batcher(run, **{**settings, **changes})


def work(payload: Any, **changes: Any) -> Work:
    return Work(**{"kind": "x", "cost": 1, "num_bytes": 1, "payload": payload, "owner": "a", **changes})


def until(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + LONG_S
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.001)


def assert_idle(stats: BatcherStats) -> None:
    assert (stats.queued_items, stats.queued_bytes, stats.running_items) == (0, 0, 0)
    assert set(stats.queued_cost.values()) == {0}
    assert stats.submitted == stats.done + stats.failed + stats.cancelled + stats.expired


def test_all_that_waits_goes_together_when_the_thread_is_free(gate: Gate) -> None:
    with batcher(gate.run) as running:
        first = running.submit(work(0))
        gate.wait_until_one_begins()
        rest = [running.submit(work(number)) for number in range(1, 13)]
        assert running.stats().queued_items == 12
        gate.open()
        assert first.result(LONG_S) == "x0"
        assert [future.result(LONG_S) for future in rest] == [f"x{number}" for number in range(1, 13)]
    assert [payloads for _, payloads in gate.batches] == [[0], list(range(1, 11)), [11, 12]]
    assert_idle(running.stats())
    assert running.stats().batches == 3


def test_kinds_never_mix_and_take_turns_and_owners_share(gate: Gate) -> None:
    with batcher(gate.run, budgets={"x": 2, "y": 2}) as running:
        running.submit(work(0))
        gate.wait_until_one_begins()
        for number in range(1, 5):
            running.submit(work(number, owner="long"))
        running.submit(work(5, kind="y"))
        running.submit(work(6, owner="short"))
        gate.open()
    assert gate.batches == [("x", [0]), ("y", [5]), ("x", [1, 6]), ("x", [2, 3]), ("x", [4])]


def test_cancelled_and_expired_work_never_runs(gate: Gate) -> None:
    cancel = threading.Event()
    with batcher(gate.run) as running:
        first = running.submit(work(0))
        gate.wait_until_one_begins()
        by_event = running.submit(work(1, cancel=cancel))
        by_future = running.submit(work(2))
        late = running.submit(work(3, deadline=time.monotonic() + 0.01))
        good = running.submit(work(4, deadline=time.monotonic() + LONG_S, cancel=threading.Event()))
        assert by_future.cancel()
        # It has left the queue, not only its future.
        assert running.stats().queued_items == 3
        assert running.stats().cancelled == 1
        assert not first.cancel()
        cancel.set()
        time.sleep(0.02)
        gate.open()
        assert good.result(LONG_S) == "x4"
        with pytest.raises(CancelledError):
            by_event.result(LONG_S)
        with pytest.raises(DeadlineExceededError):
            late.result(LONG_S)
    assert wait([by_event, by_future, late], LONG_S).not_done == set()
    assert [payloads for _, payloads in gate.batches] == [[0], [4]]
    stats = running.stats()
    assert_idle(stats)
    assert (stats.done, stats.cancelled, stats.expired, stats.failed) == (2, 2, 1, 0)


def test_only_the_guilty_item_of_a_batch_fails(gate: Gate) -> None:
    gate.open()
    reports: list[BatchReport] = []
    hold = threading.Event()

    def run(kind: str, payloads: list[Any]) -> list[Any]:
        assert hold.wait(LONG_S)
        if "bad" in payloads:
            raise RuntimeError(f"of {len(payloads)}")
        return payloads

    with batcher(run, on_batch=reports.append) as running:
        running.submit(work(0))
        until(lambda: running.stats().running_items == 1)
        futures = [running.submit(work(payload)) for payload in (1, "bad", 2)]
        hold.set()
        assert futures[0].result(LONG_S) == 1
        assert futures[2].result(LONG_S) == 2
        with pytest.raises(RuntimeError, match="of 1"):
            futures[1].result(LONG_S)
    stats = running.stats()
    assert_idle(stats)
    assert (stats.done, stats.failed, stats.retried, stats.batches) == (3, 1, 3, 2)
    assert [(one.num_items, one.num_failed, one.num_retried, one.cost) for one in reports] == [
        (1, 0, 0, 1),
        (3, 1, 3, 3),
    ]
    assert futures[1].queue_s == reports[1].queue_s[1] > 0
    assert futures[1].run_s == reports[1].run_s


@pytest.mark.parametrize("found", [[], [1, 2], None])
def test_a_wrong_number_of_results_is_an_error(found: Any) -> None:
    with batcher(lambda kind, payloads: found) as running:
        future = running.submit(work(0))
        assert isinstance(future.exception(LONG_S), (RuntimeError, TypeError))
        assert running.submit(work(1)).exception(LONG_S) is not None


def test_neither_an_exit_nor_a_bad_listener_ends_the_thread() -> None:
    def run(kind: str, payloads: list[Any]) -> list[Any]:
        if payloads == ["exit"]:
            raise SystemExit
        return payloads

    with batcher(run, on_batch=lambda report: 1 / 0) as running:
        assert isinstance(running.submit(work("exit")).exception(LONG_S), SystemExit)
        assert running.submit(work(1)).result(LONG_S) == 1


def test_a_full_queue_refuses_and_says_when_to_return(gate: Gate) -> None:
    with batcher(gate.run, max_items=3, max_bytes=10) as running:
        running.submit(work(0))
        gate.wait_until_one_begins()
        time.sleep(0.05)
        gate.open(1)
        running.submit(work(1, cost=10))
        gate.wait_until_one_begins()
        cancel = threading.Event()
        waiting = [running.submit(work(2, cost=10, cancel=cancel)) for _ in range(3)]
        with pytest.raises(QueueFullError) as caught:
            running.submit(work(3))
        # 30 wait, and cost 1 took at least 0.05 s.
        assert 1.5 <= caught.value.retry_after_s <= 60
        waiting[0].cancel()
        with pytest.raises(QueueFullError):
            running.submit(work(3, num_bytes=9))
        # What nobody wants any more makes room.
        cancel.set()
        last = running.submit(work(4, num_bytes=9))
        with pytest.raises(ItemTooLargeError):
            running.submit(work(5, cost=11))
        gate.open()
        assert last.result(LONG_S) == "x4"
        assert running.stats().rejected == 2
    assert_idle(running.stats())


def test_waiting_for_room(gate: Gate) -> None:
    with batcher(gate.run, max_items=1) as running:
        running.submit(work(0))
        gate.wait_until_one_begins()
        running.submit(work(1))
        with pytest.raises(DeadlineExceededError):
            running.submit(work(2, deadline=time.monotonic() + 0.02), wait=True)
        cancel = threading.Event()
        cancel.set()
        with pytest.raises(CancelledError):
            running.submit(work(2, cancel=cancel), wait=True)
        found: list[WorkFuture] = []
        waiter = threading.Thread(target=lambda: found.append(running.submit(work(3), wait=True)))
        waiter.start()
        gate.open()
        waiter.join(LONG_S)
        assert found[0].result(LONG_S) == "x3"
    assert_idle(running.stats())


@pytest.mark.parametrize("drain", [True, False])
def test_closing(gate: Gate, drain: bool) -> None:
    running = batcher(gate.run)
    first = running.submit(work(0))
    gate.wait_until_one_begins()
    second = running.submit(work(1))
    closer = threading.Thread(target=running.close, kwargs={"drain": drain})
    closer.start()
    until(lambda: running._closing)
    with pytest.raises(EncoderClosedError):
        running.submit(work(2))
    gate.open()
    closer.join(LONG_S)
    assert first.result(0) == "x0"
    if drain:
        assert second.result(0) == "x1"
    else:
        assert isinstance(second.exception(0), EncoderClosedError)
    assert_idle(running.stats())
    assert not any(thread.is_alive() for thread in running._threads)
    running.close()


class Payload:
    """Can be watched by a weak reference."""


@pytest.mark.parametrize("prepared", [False, True])
def test_no_payload_outlives_its_work(prepared: bool) -> None:
    def run(kind: str, payloads: list[Any]) -> list[Any]:
        held = payloads[0]
        raise ValueError("bad") from KeyError(type(held).__name__)

    watched: list[weakref.ref[Payload]] = []

    def new() -> Payload:
        payload = Payload()
        watched.append(weakref.ref(payload))
        return payload

    prepare = (lambda kind, payloads: list(payloads)) if prepared else None
    with batcher(run, prepare=prepare) as running:
        futures = [running.submit(work(new())) for _ in range(5)]
        futures[4].cancel()
        wait(futures, LONG_S)
        until(lambda: running.stats().running_items == 0)
        time.sleep(0.05)
        gc.collect()
        assert [ref() for ref in watched] == [None] * 5
        errors = [future.exception(0) for future in futures[:4]]
        assert {type(error) for error in errors} == {ValueError}
        assert "held = payloads[0]" not in str(errors[0].__notes__)
        assert 'raise ValueError("bad")' in str(errors[0].__notes__)


def test_the_next_batch_is_prepared_while_one_runs_and_takes_on_more(gate: Gate) -> None:
    prepared: list[list[Any]] = []

    def prepare(kind: str, payloads: list[Any]) -> list[Any]:
        prepared.append(list(payloads))
        return payloads

    with batcher(gate.run, prepare=prepare) as running:
        running.submit(work(0))
        gate.wait_until_one_begins()
        for number in range(1, 9):
            running.submit(work(number))
            if number in (1, 2, 4, 8):
                until(lambda: running.stats().queued_items == 0)
        until(lambda: len(prepared) == 5)
        assert len(gate.batches) == 1
        gate.open()
    assert gate.batches == [("x", [0]), ("x", list(range(1, 9)))]
    assert prepared == [[0], [1], [1, 2], [1, 2, 3, 4], list(range(1, 9))]
    assert_idle(running.stats())


def test_a_full_prepared_batch_is_left_as_it_is(gate: Gate) -> None:
    with batcher(gate.run, prepare=lambda kind, payloads: payloads) as running:
        running.submit(work(0))
        gate.wait_until_one_begins()
        running.submit(work(1, cost=4))
        until(lambda: running.stats().queued_items == 0)
        running.submit(work(2, cost=7))
        time.sleep(0.02)
        assert running.stats().queued_items == 1
        gate.open()
    assert gate.batches == [("x", [0]), ("x", [1]), ("x", [2])]


def test_cancelled_after_preparation_never_runs(gate: Gate) -> None:
    cancel = threading.Event()
    with batcher(gate.run, prepare=lambda kind, payloads: [*payloads, "prepared"][:-1]) as running:
        running.submit(work(0))
        gate.wait_until_one_begins()
        futures = [running.submit(work(number, cancel=cancel)) for number in (1, 2)]
        kept = running.submit(work(3))
        until(lambda: running.stats().running_items >= 2)
        assert futures[0].cancel()
        cancel.set()
        gate.open()
        assert kept.result(LONG_S) == "x3"
        with pytest.raises(CancelledError):
            futures[1].result(LONG_S)
    assert [payload for _, payloads in gate.batches for payload in payloads] == [0, 3]
    assert_idle(running.stats())
    assert running.stats().cancelled == 2


def test_a_failed_preparation_costs_only_its_item() -> None:
    def prepare(kind: str, payloads: list[Any]) -> list[Any]:
        if "bad" in payloads:
            raise ValueError("cannot prepare")
        return payloads

    with batcher(lambda kind, payloads: payloads, prepare=prepare) as running:
        futures = [running.submit(work(payload)) for payload in (1, "bad", 2)]
        assert [futures[0].result(LONG_S), futures[2].result(LONG_S)] == [1, 2]
        assert isinstance(futures[1].exception(LONG_S), ValueError)
    assert_idle(running.stats())


@pytest.mark.parametrize("prepared", [False, True])
def test_many_threads_with_everything_going_wrong(prepared: bool) -> None:
    """Each accepted item ends exactly once in exactly one way; accounts return to zero."""
    ran: list[int] = []
    lock = threading.Lock()

    def run(kind: str, payloads: list[tuple[int, bool]]) -> list[int]:
        if any(bad for _, bad in payloads):
            raise ValueError("bad")
        with lock:
            ran.extend(number for number, _ in payloads)
        return [number * 2 for number, _ in payloads]

    too_large = []

    def watch(report: BatchReport) -> None:
        if report.cost > 10 or len(report.queue_s) != report.num_items:
            too_large.append(report)

    ends = {"done": 0, "failed": 0, "cancelled": 0, "expired": 0, "rejected": 0}

    def client(seed: int) -> None:
        rng = random.Random(seed)
        own = dict.fromkeys(ends, 0)
        for number in range(seed * 1000, seed * 1000 + 150):
            cancel = threading.Event()
            bad = rng.random() < 0.05
            one = work(
                (number, bad),
                kind=rng.choice("xy"),
                cost=rng.randint(1, 10),
                owner=str(rng.randint(0, 3)),
                deadline=time.monotonic() + rng.choice([0.0002, LONG_S, LONG_S]),
                cancel=cancel,
            )
            try:
                future = running.submit(one, wait=rng.random() < 0.5)
            except (QueueFullError, DeadlineExceededError):
                own["rejected"] += 1
                continue
            if rng.random() < 0.1:
                future.cancel()
            if rng.random() < 0.1:
                cancel.set()
            try:
                assert future.result(LONG_S) == number * 2
                own["done"] += 1
            except CancelledError:
                own["cancelled"] += 1
            except DeadlineExceededError:
                own["expired"] += 1
            except ValueError:
                assert bad
                own["failed"] += 1
        with lock:
            for name, count in own.items():
                ends[name] += count

    prepare = (lambda kind, payloads: list(payloads)) if prepared else None
    with batcher(run, prepare=prepare, max_items=5, on_batch=watch) as running:
        threads = [threading.Thread(target=client, args=(seed,)) for seed in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(LONG_S)
        stats = running.stats()
    assert_idle(stats)
    assert {name: getattr(stats, name) for name in ends} == ends
    assert sum(ends.values()) == 8 * 150
    assert len(ran) == len(set(ran)) == stats.done
    assert too_large == []
