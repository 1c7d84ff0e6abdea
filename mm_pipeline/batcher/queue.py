"""What waits for a batch: bounded by items and bytes, fair inside a kind, kinds in turns. Its caller locks."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from mm_pipeline.batcher.base import Work, WorkFuture
from mm_pipeline.batcher.packing import FairQueue
from mm_pipeline.errors import ItemTooLargeError


@dataclass(frozen=True, kw_only=True, eq=False)
class Item:
    """Accepted work. ticket: unique, in order of arrival. submitted: on the clock of `time.monotonic`."""

    work: Work
    future: WorkFuture
    ticket: int
    submitted: float


class WorkQueue:
    """budgets: cost of one batch at most, by kind. max_items, max_bytes: of all that waits, of every kind."""

    def __init__(self, budgets: Mapping[str, int], *, max_items: int, max_bytes: int) -> None:
        if not budgets or min(budgets.values()) < 1 or max_items < 1 or max_bytes < 1:
            raise ValueError(
                f"budgets {dict(budgets)}, max_items {max_items}, max_bytes {max_bytes}: all must be at least 1"
            )
        self.budgets = dict(budgets)
        self._max_items = max_items
        self._max_bytes = max_bytes
        self._queues: dict[str, FairQueue[Item]] = {kind: FairQueue() for kind in budgets}
        # Kinds in the order of their last batch, the one that has waited longest first.
        self._turns = list(budgets)
        self.num_bytes = 0

    def __len__(self) -> int:
        return sum(map(len, self._queues.values()))

    def cost(self) -> dict[str, int]:
        """What waits, by kind."""
        return {kind: queue.cost for kind, queue in self._queues.items()}

    def check(self, work: Work) -> None:
        """Raises ItemTooLargeError for work that can never run, ValueError for an unknown kind or odd numbers."""
        if work.kind not in self.budgets:
            raise ValueError(f"the kind is {work.kind!r}; use one of {sorted(self.budgets)}")
        if work.cost < 1 or work.num_bytes < 0:
            raise ValueError(
                f"cost {work.cost} and num_bytes {work.num_bytes}: need a cost of at least 1 and no negative bytes"
            )
        budget = self.budgets[work.kind]
        if work.cost > budget:
            raise ItemTooLargeError(f"the item costs {work.cost}; one of this kind may cost {budget}")
        if work.num_bytes > self._max_bytes:
            raise ItemTooLargeError(f"the item takes {work.num_bytes} bytes; one may take {self._max_bytes}")

    def has_room(self, work: Work) -> bool:
        """Whether `work` may wait here now."""
        return len(self) < self._max_items and self.num_bytes + work.num_bytes <= self._max_bytes

    def add(self, item: Item) -> None:
        """The caller has asked `check` and `has_room`."""
        work = item.work
        self._queues[work.kind].add(item, ticket=item.ticket, owner=work.owner, cost=work.cost)
        self.num_bytes += work.num_bytes

    def remove(self, kind: str, ticket: int) -> Item | None:
        """Takes out one item; None if it does not wait."""
        item = self._queues[kind].remove(ticket)
        if item is not None:
            self.num_bytes -= item.work.num_bytes
        return item

    def next_kind(self) -> str:
        """Of the kinds with something waiting the one whose last batch is longest ago. Something must wait."""
        return next(kind for kind in self._turns if self._queues[kind])

    def take(self, kind: str, room: int) -> tuple[list[Item], list[Item]]:
        """The next items of a kind, in order, that cost at most `room` together, and cancelled or expired ones
        that were met on the way. Stops at the first that is too large, so that it is first next time.
        """
        taken: list[Item] = []
        dead: list[Item] = []
        queue = self._queues[kind]
        while (item := queue.peek()) is not None:
            if item.work.is_cancelled() or item.work.is_expired():
                dead.append(item)
                self.remove(kind, item.ticket)
                continue
            if queue.take(room) is None:
                break
            taken.append(item)
            room -= item.work.cost
            self.num_bytes -= item.work.num_bytes
        self._turns.remove(kind)
        self._turns.append(kind)
        return taken, dead

    def can_take(self, kind: str, room: int) -> bool:
        """Whether the next item of a kind costs at most `room`."""
        item = self._queues[kind].peek()
        return item is not None and item.work.cost <= room

    def take_dead(self) -> list[Item]:
        """Takes out everything cancelled or expired."""
        return self._remove_where(lambda work: work.is_cancelled() or work.is_expired())

    def take_all(self) -> list[Item]:
        """Empties the queue."""
        return self._remove_where(lambda work: True)

    def _remove_where(self, is_wanted: Callable[[Work], bool]) -> list[Item]:
        found = [item for queue in self._queues.values() for item in queue if is_wanted(item.work)]
        for item in found:
            self.remove(item.work.kind, item.ticket)
        return found
