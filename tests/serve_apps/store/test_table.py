"""The directory's books against plain dicts, with a clock of their own: leases, claims, owners, silence."""

from __future__ import annotations

import itertools
import random
import subprocess
import sys
from dataclasses import dataclass

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from mm_pipeline.store import Entry
from serve_apps.store.table import DirectoryTable, Found

LEASE_S = 10.0
MAX_BYTES = 20
KEYS = st.sampled_from("abcdef")
HOLDERS = st.sampled_from(["one", "two", "three"])


def entry(key: str, num_bytes: int) -> Entry:
    return Entry(
        key=key, num_tokens=num_bytes, hidden_size=1, dtype="x", num_bytes=num_bytes, modality="image"
    )


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


@dataclass
class Known:
    """An entry in the model."""

    reference_id: str
    num_bytes: int
    owner: str


class TableMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.clock = Clock()
        self.ended: list[tuple[str, bool]] = []
        self.table = DirectoryTable(
            MAX_BYTES,
            lease_s=LEASE_S,
            now=self.clock,
            claim_ended=lambda key, rejected: self.ended.append((key, rejected)),
        )
        self.numbers = itertools.count()
        self.alive: dict[str, float] = {}
        self.sessions: dict[str, int] = {}
        self.entries: dict[str, Known] = {}
        self.leases: dict[int, tuple[str, str, float]] = {}
        self.claims: dict[str, str] = {}
        self.dropped: dict[str, list[str]] = {}
        self.hits = self.misses = 0

    def seen(self, holder: str) -> None:
        if holder not in self.alive:
            self.dropped[holder] = []
        self.alive[holder] = self.clock.now + LEASE_S

    def found(self, answer: Found, key: str, holder: str) -> None:
        known = self.entries[key]
        assert (answer.entry.key, answer.entry.num_bytes) == (key, known.num_bytes)
        assert (answer.reference_id, answer.reference) == (known.reference_id, [f"ref {known.reference_id}"])
        assert answer.lease not in self.leases
        self.leases[answer.lease] = (holder, known.reference_id, self.clock.now + LEASE_S)
        self.hits += 1

    def forget(self, holder: str) -> None:
        del self.alive[holder]
        self.sessions.pop(holder, None)
        self.leases = {number: lease for number, lease in self.leases.items() if lease[0] != holder}
        self.entries = {key: known for key, known in self.entries.items() if known.owner != holder}
        self.claims = {key: name for key, name in self.claims.items() if name != holder}

    def pinned(self, key: str) -> bool:
        return any(lease[1] == self.entries[key].reference_id for lease in self.leases.values())

    @rule(seconds=st.sampled_from([0.5, 3.0, 6.0, 11.0]))
    def wait(self, seconds: float) -> None:
        self.clock.now += seconds
        self.table.expire()
        for holder in [name for name, until in self.alive.items() if until <= self.clock.now]:
            self.forget(holder)
        self.leases = {n: lease for n, lease in self.leases.items() if lease[2] > self.clock.now}

    @rule(key=KEYS, holder=HOLDERS)
    def lookup(self, key: str, holder: str) -> None:
        self.seen(holder)
        answer = self.table.lookup(key, holder)
        assert (answer is not None) == (key in self.entries)
        if answer is None:
            self.misses += 1
        else:
            self.found(answer, key, holder)

    @rule(key=KEYS, holder=HOLDERS)
    def claim(self, key: str, holder: str) -> None:
        self.seen(holder)
        answer = self.table.claim(key, holder)
        if key in self.entries:
            assert isinstance(answer, Found)
            self.found(answer, key, holder)
        elif self.claims.get(key, holder) != holder:
            assert answer == "wait"
            assert 0 < self.table.claim_lapses_in_s(key) <= LEASE_S
        else:
            assert answer == "lead"
            self.claims[key] = holder
            self.misses += 1

    @rule(key=KEYS, holder=HOLDERS)
    def unclaim(self, key: str, holder: str) -> None:
        self.seen(holder)
        self.table.unclaim(key, holder)
        self.end_claim(key, holder, rejected=False)

    def end_claim(self, key: str, holder: str, *, rejected: bool) -> None:
        if self.claims.get(key) == holder:
            del self.claims[key]
            assert self.ended[-1] == (key, rejected)

    @rule(key=KEYS, holder=HOLDERS, num_bytes=st.integers(1, MAX_BYTES + 1), pin=st.booleans())
    def publish(self, key: str, holder: str, num_bytes: int, pin: bool) -> None:
        self.seen(holder)
        reference_id = str(next(self.numbers))
        lease = self.table.publish(
            f"ref {reference_id}", reference_id, entry(key, num_bytes), holder, pin=pin
        )
        stored = True
        if key in self.entries:
            self.dropped[holder].append(reference_id)
        else:
            pinned = sum(self.entries[name].num_bytes for name in self.entries if self.pinned(name))
            stored = pinned + num_bytes <= MAX_BYTES
            if stored:
                self.evict_for(num_bytes)
                self.entries[key] = Known(reference_id, num_bytes, holder)
            else:
                self.dropped[holder].append(reference_id)
        assert (lease is not None) == (stored and pin)
        if lease is not None:
            self.leases[lease] = (holder, self.entries[key].reference_id, self.clock.now + LEASE_S)
        self.end_claim(key, holder, rejected=not stored)

    def evict_for(self, num_bytes: int) -> None:
        """Takes over which entries went; they were not pinned, and not one too many."""
        left = {slot.key for slot in self.table._lru.slots()}
        gone = [key for key in self.entries if key not in left]
        assert not any(self.pinned(key) for key in gone)
        total = sum(known.num_bytes for known in self.entries.values()) + num_bytes
        sizes = [self.entries[key].num_bytes for key in gone]
        assert total - sum(sizes) <= MAX_BYTES
        assert not sizes or total - sum(sizes) + max(sizes) > MAX_BYTES
        assert bool(gone) == (total > MAX_BYTES)
        for key in gone:
            known = self.entries.pop(key)
            if known.owner in self.alive:
                self.dropped[known.owner].append(known.reference_id)

    @rule(key=KEYS, holder=HOLDERS, stale=st.booleans())
    def report_lost(self, key: str, holder: str, stale: bool) -> None:
        self.seen(holder)
        known = self.entries.get(key)
        self.table.report_lost(key, "old" if stale or known is None else known.reference_id, holder)
        if known is not None and not stale:
            del self.entries[key]
            self.dropped[known.owner].append(known.reference_id)

    @rule(holder=HOLDERS, data=st.data())
    def sync(self, holder: str, data: st.DataObject) -> None:
        self.seen(holder)
        known = [number for number, lease in self.leases.items() if lease[0] == holder]
        others = [number for number in self.leases if number not in known]
        released = data.draw(st.lists(st.sampled_from(known), unique=True)) if known else []
        held = [number for number in known if number not in released]
        answer = self.table.sync(holder, held + others[:1], released + others[:1] + [-1])
        for number in held:
            self.leases[number] = (holder, self.leases[number][1], self.clock.now + LEASE_S)
        for number in released:
            del self.leases[number]
        assert sorted(answer.dropped) == sorted(self.dropped[holder])
        self.dropped[holder] = []
        assert self.sessions.setdefault(holder, answer.session) == answer.session

    @rule(holder=HOLDERS)
    def leave(self, holder: str) -> None:
        self.table.leave(holder)
        if holder in self.alive:
            self.forget(holder)

    @precondition(lambda self: self.alive)
    @rule()
    def all_die(self) -> None:
        self.wait(LEASE_S + 1)
        assert (self.table.num_leases(), self.table.num_claims(), self.table.stats().num_bytes) == (0, 0, 0)

    @invariant()
    def agrees(self) -> None:
        self.table.check()
        stats = self.table.stats()
        assert stats.num_entries == len(self.entries)
        assert stats.num_bytes == sum(known.num_bytes for known in self.entries.values()) <= MAX_BYTES
        assert stats.pinned_bytes == sum(
            self.entries[key].num_bytes for key in self.entries if self.pinned(key)
        )
        assert (stats.hits, stats.misses) == (self.hits, self.misses)
        assert self.table.num_leases() == len(self.leases)
        assert self.table.num_claims() == len(self.claims)


TestTable = TableMachine.TestCase
TestTable.settings = settings(max_examples=60, stateful_step_count=50, deadline=None)


def test_nothing_leaks_over_ten_thousand_requests() -> None:
    """Requests end, hang up, lose the message that they ended, or die with their replica."""
    clock, rng = Clock(), random.Random(0)
    table = DirectoryTable(1000, lease_s=LEASE_S, now=clock, claim_ended=lambda key, rejected: None)
    replicas = [f"replica {number}" for number in range(3)]
    held: dict[str, list[int]] = {name: [] for name in replicas}
    for number in range(10_000):
        clock.now += rng.random() / 20
        index = rng.randrange(3)
        holder = replicas[index]
        if rng.random() < 0.003:
            del held[holder]
            holder = replicas[index] = f"replica {number}"
            held[holder] = []
        key = f"{int(rng.paretovariate(0.7))}"
        answer = table.claim(key, holder)
        lease = answer.lease if isinstance(answer, Found) else None
        if answer == "lead" and rng.random() < 0.9:
            lease = table.publish(None, str(number), entry(key, rng.randint(1, 60)), holder, pin=True)
        elif answer == "lead" and rng.random() < 0.5:
            table.unclaim(key, holder)
        if lease is not None and rng.random() < 0.95:
            held[holder].append(lease)
        if number % 10 == 0:
            table.sync(holder, held[holder][5:], held[holder][:5])
            del held[holder][:5]
        if number % 100 == 0:
            table.check()
    assert table.stats().num_entries > 10
    for holder, leases in held.items():
        table.sync(holder, [], leases)
    clock.now += 0.6 * LEASE_S
    for holder in replicas:
        table.sync(holder, [], [])
    clock.now += 0.6 * LEASE_S
    assert (table.stats().pinned_bytes, table.num_leases()) == (0, 0)
    clock.now += LEASE_S
    stats = table.stats()
    assert (stats.num_bytes, stats.num_entries, table.num_claims()) == (0, 0, 0)
    table.check()


def test_the_directory_needs_no_torch() -> None:
    code = "import sys, serve_apps.store.directory; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
