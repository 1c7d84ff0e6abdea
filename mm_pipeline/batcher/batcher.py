"""Batches on a thread of their own: whenever it is free it takes all that waits and fits one batch.

There is no timer: a batch waits for the one before it and for nothing else. With `prepare`, a second thread readies
the next batch while the current one runs. Knows threads; `WorkQueue` knows who is next, `Ledger` counts.

One item is at any time in one place: waiting in the queue, running (from the moment it is chosen for a batch), or
over. Nothing here keeps a payload of work that is over.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import CancelledError
from dataclasses import dataclass
from functools import partial
from types import TracebackType
from typing import Any

from mm_pipeline.batcher.attempt import Failure, attempt
from mm_pipeline.batcher.base import BatcherStats, BatchReport, Work, WorkFuture
from mm_pipeline.batcher.ledger import Ledger, account_of, death, expired
from mm_pipeline.batcher.pace import Pace
from mm_pipeline.batcher.queue import Item, WorkQueue
from mm_pipeline.errors import EncoderClosedError, QueueFullError

_MAX_RETRY_AFTER_S = 60.0

_log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class _Batch:
    """Chosen items, `cost` together; what `prepare` made of them, or how it failed."""

    kind: str
    items: list[Item]
    cost: int
    prepared: Any
    prepare_s: float


class Batcher:
    """Thread-safe. Close it, or use it in a with statement; its threads end with it."""

    def __init__(
        self,
        run: Callable[[str, Any], Sequence[Any]],
        *,
        budgets: Mapping[str, int],
        max_items: int,
        max_bytes: int,
        prepare: Callable[[str, list[Any]], Any] | None = None,
        name: str,
        on_batch: Callable[[BatchReport], None] | None = None,
    ) -> None:
        """run: a kind and what `prepare` made, or the list of payloads without it; one result per payload, in
        order. Called by one thread, one batch at a time. When it raises, or `prepare` does, each item of the batch
        runs again alone, and only those that fail then have failed.
        budgets: cost of one batch at most, by kind. max_items, max_bytes: of all that waits.
        prepare: a kind and its payloads, on another thread than `run`; it may be called again for the same payloads
        when some join or leave the batch.
        on_batch: told after each batch, on the thread that ran it.
        """
        self._run = run
        self._prepare = prepare
        self._on_batch = on_batch
        self._queue = WorkQueue(budgets, max_items=max_items, max_bytes=max_bytes)
        self._changed = threading.Condition()
        self._ledger = Ledger(self._changed)
        self._pace = Pace()
        self._next_ticket = 0
        self._closing = False
        # Of the two threads: the batch that is ready to run, whether one runs, and that none will come any more.
        self._ready: _Batch | None = None
        self._is_running = False
        self._all_prepared = False
        steps = {name: self._take_and_run}
        if prepare is not None:
            steps = {name: self._run_ready, f"{name}-prepare": self._prepare_next}
        self._threads = [
            threading.Thread(target=_repeat, args=(step,), name=thread, daemon=True)
            for thread, step in steps.items()
        ]
        for thread in self._threads:
            thread.start()

    def submit(self, work: Work, *, wait: bool = False) -> WorkFuture:
        """The result to come; it raises what `run` raised, DeadlineExceededError, or CancelledError.

        Cancelling the future takes waiting work out of the queue. wait: wait for room in the queue, up to the
        work's deadline. Raises ItemTooLargeError for work over its budget or over `max_bytes`, QueueFullError
        without room, DeadlineExceededError or CancelledError when these came first, EncoderClosedError after
        `close`, ValueError for an unknown kind.
        """
        self._queue.check(work)
        while True:
            with self._changed:
                if self._closing:
                    raise EncoderClosedError("The encoder is shutting down. Send the request again later.")
                if self._queue.has_room(work):
                    return self._accept(work)
                dead = self._queue.take_dead()
                self._ledger.counts.running_items += len(dead)
                if not dead:
                    self._wait_for_room(work, wait)
            self._ledger.finish_dead(dead)

    def stats(self) -> BatcherStats:
        """Exact, all at one moment."""
        with self._changed:
            return BatcherStats(
                queued_items=len(self._queue),
                queued_bytes=self._queue.num_bytes,
                queued_cost=self._queue.cost(),
                queued_s=self._pace.seconds_for(self._queue.cost()),
                busy_s=self._pace.busy_s(),
                **vars(self._ledger.counts),
            )

    def close(self, *, drain: bool = True) -> None:
        """Ends after the work that was accepted, or, without `drain`, after the batches already chosen: the rest
        fails with EncoderClosedError. Calling it again does nothing more than to wait.
        """
        with self._changed:
            self._closing = True
            refused = [] if drain else self._queue.take_all()
            self._ledger.counts.running_items += len(refused)
            self._changed.notify_all()
        for item in refused:
            self._ledger.finish(item, Failure(error=EncoderClosedError("The encoder is shutting down.")))
        for thread in self._threads:
            if thread is not threading.current_thread():
                thread.join()

    def __enter__(self) -> Batcher:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close(drain=error is None)

    def _accept(self, work: Work) -> WorkFuture:
        ticket = self._next_ticket
        self._next_ticket += 1
        future = WorkFuture()
        # By ticket: a future keeps its callbacks for good, and must not keep the payload with them.
        future.add_done_callback(partial(self._after, work.kind, ticket))
        self._queue.add(Item(work=work, future=future, ticket=ticket, submitted=time.monotonic()))
        self._ledger.counts.submitted += 1
        self._changed.notify_all()
        return future

    def _wait_for_room(self, work: Work, wait: bool) -> None:
        if not wait:
            self._ledger.counts.rejected += 1
            raise QueueFullError(self._retry_after_s())
        if work.is_cancelled():
            self._ledger.counts.rejected += 1
            raise CancelledError
        if work.is_expired():
            self._ledger.counts.rejected += 1
            raise expired()
        self._changed.wait(None if work.deadline is None else max(0.0, work.deadline - time.monotonic()))

    def _retry_after_s(self) -> float:
        """How long what waits will take, by the speed of past batches."""
        return min(max(1.0, self._pace.seconds_for(self._queue.cost())), _MAX_RETRY_AFTER_S)

    def _after(self, kind: str, ticket: int, future: WorkFuture) -> None:
        """A future that its caller cancelled leaves the queue at once."""
        if not future.cancelled():
            return
        with self._changed:
            was_waiting = self._queue.remove(kind, ticket) is not None
            self._ledger.counts.cancelled += was_waiting
            self._changed.notify_all()
        if was_waiting:
            future.set_running_or_notify_cancel()

    def _take_and_run(self) -> bool:
        """One step of the only thread; False when there is nothing left to do."""
        with self._changed:
            while not self._queue and not self._closing:
                self._changed.wait()
            if not self._queue:
                return False
            kind = self._queue.next_kind()
            items, dead = self._choose(kind, self._queue.budgets[kind])
        self._ledger.finish_dead(dead)
        self._execute(
            _Batch(kind=kind, items=items, cost=_cost(items), prepared=_payloads(items), prepare_s=0.0)
        )
        return True

    def _prepare_next(self) -> bool:
        """One step of the thread that prepares: a new batch, or more items for the one that waits to run."""
        with self._changed:
            while not (self._ready is None and self._queue) and not self._may_grow():
                if self._closing and not self._queue:
                    self._all_prepared = True
                    self._changed.notify_all()
                    return False
                self._changed.wait()
            before, self._ready = self._ready, None
            kind = self._queue.next_kind() if before is None else before.kind
            room = self._queue.budgets[kind] - (0 if before is None else before.cost)
            items, dead = self._choose(kind, room)
        self._ledger.finish_dead(dead)
        ready = before
        if items:
            items = items if before is None else before.items + items
            started = time.perf_counter()
            prepared = self._prepared(kind, items)
            ready = _Batch(
                kind=kind,
                items=items,
                cost=_cost(items),
                prepared=prepared,
                prepare_s=time.perf_counter() - started,
            )
        with self._changed:
            self._ready = ready
            self._changed.notify_all()
        return True

    def _may_grow(self) -> bool:
        """Whether enough has come for the waiting batch to at least double: all its growth then costs less than
        twice its last preparation.
        """
        ready = self._ready
        if ready is None or not self._is_running:
            return False
        room = self._queue.budgets[ready.kind] - ready.cost
        more = min(room, self._queue.cost()[ready.kind])
        return more >= ready.cost and self._queue.can_take(ready.kind, room)

    def _run_ready(self) -> bool:
        """One step of the thread that runs prepared batches."""
        with self._changed:
            while self._ready is None and not self._all_prepared:
                self._changed.wait()
            if self._ready is None:
                return False
            batch, self._ready = self._ready, None
            self._is_running = True
            self._changed.notify_all()
        self._execute(batch)
        with self._changed:
            self._is_running = False
        return True

    def _choose(self, kind: str, room: int) -> tuple[list[Item], list[Item]]:
        items, dead = self._queue.take(kind, room)
        self._ledger.counts.running_items += len(items) + len(dead)
        self._changed.notify_all()
        return items, dead

    def _execute(self, batch: _Batch) -> None:
        """Runs what is still wanted of a batch, and each item alone if that fails."""
        items = self._begin(batch.items)
        if not items:
            return
        with self._changed:
            self._pace.begin()
        started = time.monotonic()
        for item in items:
            item.future.queue_s = started - item.submitted
        prepared = batch.prepared
        if len(items) < len(batch.items):
            prepared = self._prepared(batch.kind, items)
        outcomes = self._results(batch.kind, prepared, len(items))
        num_retried = 0
        if isinstance(outcomes, Failure):
            if len(items) == 1:
                outcomes = [outcomes]
            else:
                num_retried = len(items)
                outcomes = [self._alone(batch.kind, item) for item in items]
        run_s = time.monotonic() - started
        with self._changed:
            self._pace.end()
            self._ledger.counts.batches += 1
            self._ledger.counts.retried += num_retried
            if not num_retried:
                self._pace.measure(batch.kind, _cost(items), run_s)
        for item, outcome in zip(items, outcomes, strict=True):
            item.future.run_s = run_s
            self._ledger.finish(item, outcome)
        self._tell(
            BatchReport(
                kind=batch.kind,
                num_items=len(items),
                cost=_cost(items),
                num_bytes=sum(item.work.num_bytes for item in items),
                num_failed=sum(account_of(outcome) == "failed" for outcome in outcomes),
                num_retried=num_retried,
                queue_s=tuple(item.future.queue_s for item in items),
                prepare_s=batch.prepare_s,
                run_s=run_s,
            )
        )

    def _begin(self, items: list[Item]) -> list[Item]:
        """Those that are still wanted; they can no longer be cancelled. The others are finished."""
        wanted = []
        for item in items:
            if death(item.work) is not None:
                self._ledger.finish_dead([item])
            elif item.future.set_running_or_notify_cancel():
                wanted.append(item)
            else:
                self._ledger.count("cancelled")
        return wanted

    def _alone(self, kind: str, item: Item) -> Any:
        """The item's own result or Failure."""
        reason = death(item.work)
        if reason is not None:
            return Failure(error=reason)
        found = self._results(kind, self._prepared(kind, [item]), 1)
        return found if isinstance(found, Failure) else found[0]

    def _prepared(self, kind: str, items: list[Item]) -> Any:
        if self._prepare is None:
            return _payloads(items)
        return attempt(self._prepare, kind, _payloads(items))

    def _results(self, kind: str, prepared: Any, num_items: int) -> list[Any] | Failure:
        if isinstance(prepared, Failure):
            return prepared
        found = attempt(self._run, kind, prepared)
        if isinstance(found, Failure):
            return found
        results: list[Any] | Failure = attempt(list, found)
        if not isinstance(results, Failure) and len(results) != num_items:
            return Failure(error=RuntimeError(f"{len(results)} results came of a batch of {num_items}"))
        return results

    def _tell(self, report: BatchReport) -> None:
        if self._on_batch is None:
            return
        try:
            self._on_batch(report)
        except Exception:
            # A thread that dies of a listener's mistake would leave all callers waiting.
            _log.exception("on_batch failed")


def _repeat(step: Callable[[], bool]) -> None:
    """Each step has a frame of its own: locals of a loop would keep the last batch while the next is awaited."""
    while step():
        pass


def _payloads(items: list[Item]) -> list[Any]:
    return [item.work.payload for item in items]


def _cost(items: list[Item]) -> int:
    return sum(item.work.cost for item in items)
