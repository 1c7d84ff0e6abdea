"""Who is next: one queue that is fair between owners by cost. Knows no threads; its caller locks.

Start-time fair queueing (Goyal, Vin, Cheng, 1996). The queue's clock is the start of the item given out last. An
owner's first waiting item starts at the clock or where the owner's item before it ended, whichever is later, and
ends its cost later; the item with the earliest start is next, of equal ones the item that came first. From this:

- An owner that was given nothing lately waits for at most one waiting item of each other owner.
- Of two owners that both always have items waiting, neither is given more cost than the other by more than the
  sum of the largest item of each.
- The items of one owner keep their order.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Generic, NamedTuple, TypeVar

T = TypeVar("T")


class _Entry(NamedTuple, Generic[T]):
    item: T
    owner: str
    cost: int


@dataclass(kw_only=True)
class _Owner(Generic[T]):
    """waiting: by ticket, in order. finish: where the item given out last ends on the queue's clock. start: of the
    first waiting item."""

    waiting: dict[int, _Entry[T]] = field(default_factory=dict)
    finish: int = 0
    start: int = 0

    def first(self) -> int:
        return next(iter(self.waiting))


class FairQueue(Generic[T]):
    """Items with a cost and an owner each. Nothing is kept of items that were given out or removed."""

    def __init__(self) -> None:
        self._owners: dict[str, _Owner[T]] = {}
        self._owner_of: dict[int, str] = {}
        # (start, ticket, owner) of each owner's first item, and stale ones that are passed over.
        self._heads: list[tuple[int, int, str]] = []
        # (finish, owner) of owners without items; whoever is behind the clock is forgotten.
        self._idle: list[tuple[int, str]] = []
        self._clock = 0
        self._cost = 0

    def __len__(self) -> int:
        return len(self._owner_of)

    def __iter__(self) -> Iterator[T]:
        """All that waits, by owner; not in the order in which it is given out."""
        return (entry.item for found in self._owners.values() for entry in found.waiting.values())

    @property
    def cost(self) -> int:
        """Of all that waits."""
        return self._cost

    @property
    def num_owners(self) -> int:
        """Owners remembered: with items, or with a share that they have used up in advance."""
        return len(self._owners)

    def add(self, item: T, *, ticket: int, owner: str, cost: int) -> None:
        """ticket: names the item; higher than those before. Raises ValueError for a cost below 1."""
        if cost < 1:
            raise ValueError(f"the cost is {cost}; it must be at least 1")
        found = self._owners.setdefault(owner, _Owner(finish=self._clock))
        found.waiting[ticket] = _Entry(item, owner, cost)
        self._owner_of[ticket] = owner
        self._cost += cost
        if len(found.waiting) == 1:
            found.start = max(self._clock, found.finish)
            self._announce(found, owner)

    def remove(self, ticket: int) -> T | None:
        """Takes out a waiting item, which its owner is not charged for; None if it does not wait."""
        owner = self._owner_of.get(ticket)
        if owner is None:
            return None
        found = self._owners[owner]
        was_first = found.first() == ticket
        item = self._drop(ticket, found).item
        if not self._owner_of:
            self._forget_all()
        elif not found.waiting:
            self._rest(found, owner)
        elif was_first:
            self._announce(found, owner)
        return item

    def peek(self) -> T | None:
        """The next item, which stays; None when nothing waits."""
        head = self._head()
        return None if head is None else self._owners[head[2]].waiting[head[1]].item

    def take(self, room: int) -> T | None:
        """Gives out the next item; None when nothing waits or it costs more than `room`."""
        head = self._head()
        if head is None:
            return None
        start, ticket, owner = head
        found = self._owners[owner]
        if found.waiting[ticket].cost > room:
            return None
        entry = self._drop(ticket, found)
        self._clock = start
        found.finish = start + entry.cost
        if not self._owner_of:
            self._forget_all()
        elif found.waiting:
            found.start = found.finish
            self._announce(found, owner)
        else:
            self._rest(found, owner)
        return entry.item

    def _drop(self, ticket: int, found: _Owner[T]) -> _Entry[T]:
        entry = found.waiting.pop(ticket)
        del self._owner_of[ticket]
        self._cost -= entry.cost
        return entry

    def _head(self) -> tuple[int, int, str] | None:
        while self._heads:
            if self._is_current(self._heads[0]):
                return self._heads[0]
            heapq.heappop(self._heads)
        return None

    def _is_current(self, head: tuple[int, int, str]) -> bool:
        found = self._owners.get(head[2])
        return found is not None and bool(found.waiting) and found.first() == head[1]

    def _announce(self, found: _Owner[T], owner: str) -> None:
        heapq.heappush(self._heads, (found.start, found.first(), owner))
        # Removals leave stale entries behind, which must not pile up under a head that nobody takes.
        if len(self._heads) > 2 * len(self._owners) + 16:
            self._heads = [head for head in self._heads if self._is_current(head)]
            heapq.heapify(self._heads)

    def _rest(self, found: _Owner[T], owner: str) -> None:
        heapq.heappush(self._idle, (found.finish, owner))
        while self._idle and self._idle[0][0] <= self._clock:
            _, name = heapq.heappop(self._idle)
            idle = self._owners.get(name)
            if idle is not None and not idle.waiting and idle.finish <= self._clock:
                del self._owners[name]

    def _forget_all(self) -> None:
        self._owners.clear()
        self._heads.clear()
        self._idle.clear()
        self._clock = 0
