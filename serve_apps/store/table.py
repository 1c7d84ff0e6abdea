"""The directory's books: which embeddings there are, who owns, holds and computes them, and who still lives.

Knows no Ray: a reference is whatever it was given, and time comes from outside. Not thread-safe.
"""

from __future__ import annotations

import itertools
import secrets
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from mm_pipeline.store.base import Entry, TierStats
from mm_pipeline.store.lru import PinnedLru, Slot
from mm_pipeline.store.uuid_keys import Aliases

Lead = Literal["lead", "wait"]


@dataclass(frozen=True, kw_only=True)
class Found:
    """An entry and a lease on it. reference: one object reference, in a list so that Ray does not resolve it."""

    entry: Entry
    reference: Sequence[Any] = field(repr=False)
    reference_id: str
    lease: int


@dataclass(frozen=True, kw_only=True)
class Synced:
    """session: differs from the last one when the directory has forgotten this holder meanwhile.

    dropped: ids of the holder's own references that the directory no longer lists.
    """

    session: int
    dropped: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class _Published:
    entry: Entry
    reference: Any
    reference_id: str
    owner: str


@dataclass
class _Lease:
    slot: Slot[_Published]
    expires_s: float


@dataclass
class _Holder:
    session: int
    expires_s: float
    leases: dict[int, _Lease] = field(default_factory=dict)
    claims: set[str] = field(default_factory=set)
    dropped: list[str] = field(default_factory=list)


class DirectoryTable:
    """A holder is one process that leases, claims or owns. One that is silent for `lease_s` is taken for dead: its
    leases and claims lapse, and what it owns goes, for Ray has lost it with the owner."""

    def __init__(
        self,
        max_bytes: int,
        *,
        lease_s: float,
        now: Callable[[], float],
        claim_ended: Callable[[str, bool], None],
        max_aliases: int = 100_000,
    ) -> None:
        """now: monotonic seconds. claim_ended(key, rejected): a claim is over; rejected: its entry did not fit."""
        self.aliases = Aliases(max_aliases)
        self._lru: PinnedLru[_Published] = PinnedLru(max_bytes)
        self._lease_s = lease_s
        self._now = now
        self._claim_ended = claim_ended
        self._holders: dict[str, _Holder] = {}
        self._claims: dict[str, str] = {}
        # Begins anywhere, so that a lease from before a restart of the directory is not taken for a new one.
        self._numbers = itertools.count(secrets.randbits(60))
        self._expired_s = now()

    def lookup(self, key: str, holder: str) -> Found | None:
        """The entry, pinned for the holder."""
        owner = self._seen(holder)
        slot = self._lru.find(key)
        return None if slot is None else self._lease(slot, owner)

    def claim(self, key: str, holder: str) -> Found | Lead:
        """The entry, or "lead": compute it and publish or `unclaim`, or "wait": a live holder is at it.

        A holder does not wait for itself: within one process callers coalesce by `Flights`.
        """
        claimant = self._seen(holder)
        leader = self._claims.get(key, holder)
        if leader != holder and self._holders[leader].expires_s <= self._now():
            self._forget(leader)
        elif leader != holder and key not in self._lru:
            return "wait"
        slot = self._lru.find(key)
        if slot is not None:
            return self._lease(slot, claimant)
        self._claims[key] = holder
        claimant.claims.add(key)
        return "lead"

    def claim_lapses_in_s(self, key: str) -> float:
        """Seconds until the claim on the key may be taken over if its holder stays silent; 0 without one."""
        leader = self._claims.get(key)
        return 0.0 if leader is None else max(0.0, self._holders[leader].expires_s - self._now())

    def unclaim(self, key: str, holder: str) -> None:
        """The holder will not compute the entry. Nothing happens where it has no claim."""
        self._seen(holder)
        self._end_claim(key, holder, rejected=False)

    def publish(
        self, reference: Any, reference_id: str, entry: Entry, holder: str, *, pin: bool
    ) -> int | None:
        """Lists an entry that the holder owns; a lease if `pin`. None where it does not fit.

        An entry that is listed already stays, with a lease on it. Ends the holder's claim.
        """
        owner = self._seen(holder)
        slot = self._lru.peek(entry.key)
        if slot is None:
            published = _Published(entry=entry, reference=reference, reference_id=reference_id, owner=holder)
            slot, evicted = self._lru.add(entry.key, entry.num_bytes, published)
            for victim in evicted:
                self._tell_owner(victim)
        if slot is None or slot.value.reference_id != reference_id:
            owner.dropped.append(reference_id)
        lease = None
        if slot is not None and pin:
            self._lru.pin(slot)
            lease = self._lease(slot, owner).lease
        self._end_claim(entry.key, holder, rejected=slot is None)
        return lease

    def report_lost(self, key: str, reference_id: str, holder: str) -> None:
        """The reference could not be read. Nothing happens where another is listed by now."""
        self._seen(holder)
        slot = self._lru.peek(key)
        if slot is not None and slot.value.reference_id == reference_id:
            self._lru.remove(slot)
            self._tell_owner(slot)

    def sync(self, holder: str, held: Iterable[int], released: Iterable[int]) -> Synced:
        """A sign of life. held: leases to prolong. released: leases to end; unknown ones are passed over."""
        known = self._seen(holder)
        expires_s = self._now() + self._lease_s
        for number in held:
            lease = known.leases.get(number)
            if lease is not None:
                lease.expires_s = expires_s
        for number in released:
            ended = known.leases.pop(number, None)
            if ended is not None:
                self._lru.unpin(ended.slot)
        dropped, known.dropped = tuple(known.dropped), []
        return Synced(session=known.session, dropped=dropped)

    def leave(self, holder: str) -> None:
        """The holder ends: nothing is left of it."""
        if holder in self._holders:
            self._forget(holder)

    def expire(self) -> None:
        """Ends what has lapsed. Runs by itself, at most every quarter of `lease_s`, with any other call."""
        now = self._expired_s = self._now()
        for name in [name for name, holder in self._holders.items() if holder.expires_s <= now]:
            self._forget(name)
        for holder in self._holders.values():
            for number in [number for number, lease in holder.leases.items() if lease.expires_s <= now]:
                self._lru.unpin(holder.leases.pop(number).slot)

    def stats(self) -> TierStats:
        self.expire()
        return self._lru.stats()

    def num_leases(self) -> int:
        return sum(len(holder.leases) for holder in self._holders.values())

    def num_claims(self) -> int:
        return len(self._claims)

    def check(self) -> None:
        """Asserts that the books agree; for tests."""
        self._lru.check()
        leases = [lease.slot for holder in self._holders.values() for lease in holder.leases.values()]
        for slot in self._lru.slots():
            assert slot.num_pins == sum(other is slot for other in leases)
            assert slot.value.owner in self._holders
        claims = {key: name for name, holder in self._holders.items() for key in holder.claims}
        assert claims == self._claims

    def _seen(self, name: str) -> _Holder:
        now = self._now()
        if now - self._expired_s > self._lease_s / 4:
            self.expire()
        holder = self._holders.get(name)
        if holder is None:
            holder = self._holders[name] = _Holder(session=next(self._numbers), expires_s=0.0)
        holder.expires_s = now + self._lease_s
        return holder

    def _lease(self, slot: Slot[_Published], holder: _Holder) -> Found:
        """A lease for a pin that has just been taken."""
        number = next(self._numbers)
        holder.leases[number] = _Lease(slot, self._now() + self._lease_s)
        published = slot.value
        return Found(
            entry=published.entry,
            reference=[published.reference],
            reference_id=published.reference_id,
            lease=number,
        )

    def _end_claim(self, key: str, holder: str, *, rejected: bool) -> None:
        if self._claims.get(key) == holder:
            del self._claims[key]
            self._holders[holder].claims.discard(key)
            self._claim_ended(key, rejected)

    def _tell_owner(self, slot: Slot[_Published]) -> None:
        owner = self._holders.get(slot.value.owner)
        if owner is not None:
            owner.dropped.append(slot.value.reference_id)

    def _forget(self, name: str) -> None:
        holder = self._holders[name]
        for lease in holder.leases.values():
            self._lru.unpin(lease.slot)
        for key in list(holder.claims):
            self._end_claim(key, name, rejected=False)
        for slot in self._lru.slots():
            if slot.value.owner == name:
                self._lru.remove(slot)
        del self._holders[name]
