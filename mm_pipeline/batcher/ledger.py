"""How accepted work ends, and exact counts of it."""

from __future__ import annotations

import threading
from concurrent.futures import CancelledError
from dataclasses import dataclass
from typing import Any

from mm_pipeline.batcher.attempt import Failure
from mm_pipeline.batcher.base import Work
from mm_pipeline.batcher.queue import Item
from mm_pipeline.errors import DeadlineExceededError


@dataclass(kw_only=True)
class Counts:
    """Those of `BatcherStats` that the queue does not know. Change them under the batcher's lock only."""

    running_items: int = 0
    submitted: int = 0
    done: int = 0
    failed: int = 0
    cancelled: int = 0
    expired: int = 0
    rejected: int = 0
    batches: int = 0
    retried: int = 0


class Ledger:
    """Ends items that count as running. Work is counted before its future says so: whoever was told finds it
    counted. lock: the batcher's; never held while a future is told, whose callbacks may do anything.
    """

    def __init__(self, lock: threading.Condition) -> None:
        self._lock = lock
        self.counts = Counts()

    def count(self, account: str) -> None:
        """One running item is over."""
        with self._lock:
            self.counts.running_items -= 1
            setattr(self.counts, account, getattr(self.counts, account) + 1)

    def finish(self, item: Item, outcome: Any) -> None:
        """Sets the result of a future that runs, or of one that is refused before it does. outcome: the result,
        or a Failure.
        """
        future = item.future
        if not future.running() and not future.set_running_or_notify_cancel():
            self.count("cancelled")
            return
        self.count(account_of(outcome))
        if isinstance(outcome, Failure):
            future.set_exception(outcome.error)
        else:
            future.set_result(outcome)

    def finish_dead(self, items: list[Item]) -> None:
        """Ends work that was cancelled or expired before it ran."""
        for item in items:
            if item.work.is_cancelled():
                self.count("cancelled")
                item.future.cancel()
                item.future.set_running_or_notify_cancel()
            else:
                self.finish(item, Failure(error=expired()))


def account_of(outcome: Any) -> str:
    """The name of the count that an outcome adds to."""
    if not isinstance(outcome, Failure):
        return "done"
    if isinstance(outcome.error, CancelledError):
        return "cancelled"
    return "expired" if isinstance(outcome.error, DeadlineExceededError) else "failed"


def death(work: Work) -> BaseException | None:
    """Why work must not run, if so."""
    if work.is_cancelled():
        return CancelledError()
    return expired() if work.is_expired() else None


def expired() -> DeadlineExceededError:
    """The error of work whose deadline has passed."""
    return DeadlineExceededError("The request's time ran out before its turn came. Send it again later.")
