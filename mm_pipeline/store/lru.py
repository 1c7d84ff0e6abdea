"""Values under one bound in bytes: the least recently used goes first, a pinned one never.

Knows sizes and pins. Does not know what the values are; not thread-safe.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from typing import Generic, TypeVar

from mm_pipeline.store.base import TierStats

V = TypeVar("V")


@dataclass(eq=False, kw_only=True, slots=True)
class Slot(Generic[V]):
    """One value. A slot that was removed while pinned lives on with its pins, apart from a new one of its key."""

    key: str
    num_bytes: int
    value: V
    num_pins: int = 0
    stored: bool = True


class PinnedLru(Generic[V]):
    """The bytes of all slots together never exceed `max_bytes`. A slot's last use is its last unpinning."""

    def __init__(self, max_bytes: int) -> None:
        """Raises ValueError for a negative bound. With 0 nothing is ever stored."""
        if max_bytes < 0:
            raise ValueError(f"max_bytes is {max_bytes}; it must be 0 or more")
        self.max_bytes = max_bytes
        self._slots: dict[str, Slot[V]] = {}
        # Those without pins, in the order they will be evicted.
        self._unpinned: OrderedDict[str, Slot[V]] = OrderedDict()
        self._num_bytes = 0
        self._pinned_bytes = 0
        self._hits = self._misses = self._stored = self._rejected = self._evicted = self._lost = 0

    def __len__(self) -> int:
        return len(self._slots)

    def __contains__(self, key: str) -> bool:
        return key in self._slots

    def slots(self) -> list[Slot[V]]:
        """All slots, in no particular order."""
        return list(self._slots.values())

    def peek(self, key: str) -> Slot[V] | None:
        """The slot; counts neither as a hit nor as a use."""
        return self._slots.get(key)

    def find(self, key: str) -> Slot[V] | None:
        """The slot with one more pin; counts a hit or a miss."""
        slot = self._slots.get(key)
        if slot is None:
            self._misses += 1
            return None
        self._hits += 1
        self.pin(slot)
        return slot

    def can_fit(self, num_bytes: int) -> bool:
        """Whether `add` would store so many bytes."""
        return num_bytes <= self.max_bytes - self._pinned_bytes

    def add(self, key: str, num_bytes: int, value: V) -> tuple[Slot[V] | None, list[Slot[V]]]:
        """The new slot, without pins, and those evicted for it. None, and nothing evicted, where it cannot fit.

        The key must be absent.
        """
        assert key not in self._slots, f"{key} is stored already"
        assert num_bytes >= 0
        if not self.can_fit(num_bytes):
            self.reject()
            return None, []
        evicted = []
        while self._num_bytes + num_bytes > self.max_bytes:
            _, victim = self._unpinned.popitem(last=False)
            self._forget(victim)
            self._evicted += 1
            evicted.append(victim)
        slot = Slot(key=key, num_bytes=num_bytes, value=value)
        self._slots[key] = self._unpinned[key] = slot
        self._num_bytes += num_bytes
        self._stored += 1
        return slot, evicted

    def reject(self) -> None:
        """Counts what the caller did not even try to add."""
        self._rejected += 1

    def remove(self, slot: Slot[V]) -> bool:
        """Takes out a slot that turned out unreadable, pinned or not. Whether it was still in."""
        if not slot.stored:
            return False
        self._unpinned.pop(slot.key, None)
        if slot.num_pins:
            self._pinned_bytes -= slot.num_bytes
        self._forget(slot)
        self._lost += 1
        return True

    def pin(self, slot: Slot[V]) -> None:
        if slot.stored and slot.num_pins == 0:
            del self._unpinned[slot.key]
            self._pinned_bytes += slot.num_bytes
        slot.num_pins += 1

    def unpin(self, slot: Slot[V]) -> None:
        assert slot.num_pins > 0, f"{slot.key} has no pin to take back"
        slot.num_pins -= 1
        if slot.stored and slot.num_pins == 0:
            self._pinned_bytes -= slot.num_bytes
            self._unpinned[slot.key] = slot

    def stats(self) -> TierStats:
        return TierStats(
            hits=self._hits,
            misses=self._misses,
            stored=self._stored,
            rejected=self._rejected,
            evicted=self._evicted,
            lost=self._lost,
            num_entries=len(self._slots),
            num_bytes=self._num_bytes,
            pinned_bytes=self._pinned_bytes,
            max_bytes=self.max_bytes,
        )

    def check(self) -> None:
        """Counts everything anew and asserts that the books agree; for tests."""
        slots = self._slots.values()
        assert self._num_bytes == sum(slot.num_bytes for slot in slots) <= self.max_bytes
        assert self._pinned_bytes == sum(slot.num_bytes for slot in slots if slot.num_pins)
        assert all(slot.stored and slot.key == key for key, slot in self._slots.items())
        assert self._unpinned == {key: slot for key, slot in self._slots.items() if not slot.num_pins}
        assert self._stored - self._evicted - self._lost == len(self._slots)

    def _forget(self, slot: Slot[V]) -> None:
        del self._slots[slot.key]
        self._num_bytes -= slot.num_bytes
        slot.stored = False
