"""What goes into a batcher and what it tells. Holds data only."""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, kw_only=True)
class Work:
    """One item for a batch.

    kind: only items of one kind run together. cost: at least 1, in the unit of the kind's budget. num_bytes: what
    it holds while it waits. payload: what `run` is given. owner: who shares fairly with others, such as a request.
    deadline: on the clock of `time.monotonic`; work whose turn comes later does not run. cancel: work does not run
    once it is set.
    """

    kind: str
    cost: int
    num_bytes: int
    payload: Any = field(repr=False)
    owner: str
    deadline: float | None = None
    cancel: threading.Event | None = None

    def is_cancelled(self) -> bool:
        """Whether `cancel` is set."""
        return self.cancel is not None and self.cancel.is_set()

    def is_expired(self) -> bool:
        """Whether the deadline has passed."""
        return self.deadline is not None and time.monotonic() >= self.deadline


class WorkFuture(Future[Any]):
    """A result to come. queue_s: from submission to the start of its batch; run_s: of that batch. Both are set
    before the result is, and stay 0.0 for work that never ran.
    """

    def __init__(self) -> None:
        super().__init__()
        self.queue_s = 0.0
        self.run_s = 0.0


@dataclass(frozen=True, kw_only=True)
class BatchReport:
    """One batch that ran.

    num_failed: items that failed for good; num_retried: items that ran again alone because the batch failed.
    queue_s: seconds each item waited, in the batch's order. prepare_s: 0.0 without preparation. run_s: retries
    included.
    """

    kind: str
    num_items: int
    cost: int
    num_bytes: int
    num_failed: int
    num_retried: int
    queue_s: tuple[float, ...]
    prepare_s: float
    run_s: float


@dataclass(frozen=True, kw_only=True)
class BatcherStats:
    """Exact at one moment: submitted = queued_items + running_items + done + failed + cancelled + expired.

    queued_*: what waits; `queued_cost` by kind, `queued_s` in seconds by the speed of past batches, where a kind
    that never ran counts nothing. busy_s: for how long batches have run, the one under way included.
    running_items: in a batch that runs or is being prepared. done, failed, cancelled, expired: how accepted work
    ended. rejected: work that was refused and never waited. batches: that ran. retried: items that ran again alone.
    """

    queued_items: int
    queued_bytes: int
    queued_cost: Mapping[str, int]
    queued_s: float
    busy_s: float
    running_items: int
    submitted: int
    done: int
    failed: int
    cancelled: int
    expired: int
    rejected: int
    batches: int
    retried: int
