"""Memory and disk against a store whose every step is spelled out; leases, threads and tiers."""

from __future__ import annotations

import gc
import random
import subprocess
import sys
import tempfile
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from mm_pipeline.store import Lease, MemoryStore, TieredStore, create_store, entry_of, media_of
from mm_pipeline.store.disk import DiskStore
from mm_pipeline.store.disk_format import to_bytes
from tests.mm_pipeline.store.support import HIDDEN, ROW_BYTES, Model, key_of, media, video

# An item's number is its size in rows; the largest is over the bound by itself.
NUMBERS = st.integers(min_value=1, max_value=13)


class StoreMachine(RuleBasedStateMachine):
    """The same calls on a store and on the model."""

    tier = "memory"

    def __init__(self) -> None:
        super().__init__()
        self.leases: list[tuple[int, bool, Lease]] = []
        self.store: MemoryStore | DiskStore
        self.model: Model
        self.build()

    def build(self) -> None:
        self.store = MemoryStore(12 * ROW_BYTES)
        self.model = Model(12 * ROW_BYTES, lambda number: number * ROW_BYTES)

    @rule(number=NUMBERS)
    def get(self, number: int) -> None:
        lease = self.store.get(key_of(number))
        assert (lease is not None) == self.model.get(number)
        if lease is not None:
            assert torch.equal(lease.embeddings, media(number, number).embeddings)
            self.leases.append((number, True, lease))

    @rule(number=NUMBERS)
    def put(self, number: int) -> None:
        lease = self.store.put(key_of(number), media(number, number))
        assert torch.equal(lease.embeddings, media(number, number).embeddings)
        self.leases.append((number, self.model.put(number), lease))

    @precondition(lambda self: self.leases)
    @rule(data=st.data())
    def release(self, data: st.DataObject) -> None:
        number, pinned, lease = self.leases.pop(data.draw(st.integers(0, len(self.leases) - 1)))
        lease.release()
        lease.release()
        if pinned:
            self.model.release(number)

    @precondition(lambda self: self.leases)
    @rule()
    def forget(self) -> None:
        number, pinned, _ = self.leases.pop()
        if pinned:
            self.model.release(number)

    @invariant()
    def agrees(self) -> None:
        self.store.check()
        stats = self.store.stats()[self.tier]
        model = self.model
        assert (stats.hits, stats.misses, stats.stored) == (model.hits, model.misses, model.stored)
        assert (stats.rejected, stats.evicted, stats.lost) == (model.rejected, model.evicted, 0)
        assert (stats.num_entries, stats.num_bytes) == (len(model.order), model.num_bytes())
        assert stats.pinned_bytes == model.pinned_bytes()
        assert stats.num_bytes <= stats.max_bytes == model.max_bytes

    def teardown(self) -> None:
        self.leases.clear()
        assert self.store.stats()[self.tier].pinned_bytes == 0


class DiskMachine(StoreMachine):
    tier = "disk"

    def build(self) -> None:
        sizes = {number: file_bytes(number) for number in range(1, 14)}
        self.folder = tempfile.TemporaryDirectory()
        self.store = DiskStore(Path(self.folder.name), 3 * sizes[13] - 1)
        self.model = Model(3 * sizes[13] - 1, sizes.__getitem__)

    def teardown(self) -> None:
        super().teardown()
        self.folder.cleanup()


def file_bytes(number: int) -> int:
    item = media(number, number)
    return len(to_bytes(entry_of(key_of(number), item), item.embeddings))


TestMemory = StoreMachine.TestCase
TestMemory.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
TestDisk = DiskMachine.TestCase
TestDisk.settings = settings(
    max_examples=25, stateful_step_count=30, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)


def test_a_view_does_not_keep_the_batch_it_was_cut_from() -> None:
    store = MemoryStore(10 * ROW_BYTES)
    batch = torch.zeros(1000, HIDDEN)
    item = media(0, 2)
    item = type(item)(**vars(item) | {"embeddings": batch[:2]})
    lease = store.put(key_of(0), item)
    assert lease.embeddings.untyped_storage().nbytes() == 2 * ROW_BYTES


def test_a_pinned_entry_outlives_any_pressure() -> None:
    store = MemoryStore(10 * ROW_BYTES)
    with store.put(key_of(1), media(1, 6)):
        assert store.put(key_of(2), media(2, 5)).entry.num_tokens == 5
        for number in range(10, 60):
            store.put(key_of(number), media(number, 4)).release()
        found = store.get(key_of(1))
        assert found is not None
        found.release()
    assert store.get(key_of(2)) is None
    assert store.stats()["memory"].rejected == 1


def test_a_lease_in_a_cycle_ends_when_it_is_collected() -> None:
    store = MemoryStore(10 * ROW_BYTES)
    ring: list = [store.put(key_of(1), media(1, 6))]
    ring.append(ring)
    assert store.stats()["memory"].pinned_bytes == 6 * ROW_BYTES
    del ring
    gc.collect()
    assert store.stats()["memory"].pinned_bytes == 0


def test_a_bound_below_zero_and_wrong_shapes_are_refused() -> None:
    with pytest.raises(ValueError, match="0 or more"):
        MemoryStore(-1)
    item = media(1, 3)
    with pytest.raises(ValueError, match="need"):
        MemoryStore(100).put(key_of(1), type(item)(**vars(item) | {"num_tokens": 4}))


@pytest.mark.parametrize("tier", ["memory", "disk"])
def test_many_threads(tier: str, tmp_path: Path) -> None:
    """Every hit is right, and nothing stays pinned."""
    store = MemoryStore(30 * ROW_BYTES) if tier == "memory" else DiskStore(tmp_path, 5 * file_bytes(9))
    rounds = 400 if tier == "memory" else 40

    def work(seed: int) -> None:
        rng = random.Random(seed)
        for _ in range(rounds):
            number = rng.randint(1, 9)
            lease = store.get(key_of(number)) or store.put(key_of(number), media(number, number))
            assert torch.equal(lease.embeddings, media(number, number).embeddings)
            if rng.random() < 0.9:
                lease.release()

    with ThreadPoolExecutor(4) as threads:
        list(threads.map(work, range(4)))
    store.check()
    stats = store.stats()[tier]
    assert stats.pinned_bytes == 0
    assert stats.hits + stats.misses == 4 * rounds
    assert stats.lost == 0


def test_tiers(tmp_path: Path) -> None:
    """What memory has forgotten comes back from the disk, with all its facts, into memory."""
    store = create_store(6 * ROW_BYTES, tmp_path, 10**6)
    for number in (1, 2, 3):
        store.put(key_of(number), video(number)).release()
    store.close()
    store.close()

    store = create_store(6 * ROW_BYTES, tmp_path, 10**6)
    for _ in range(2):
        lease = store.get(key_of(2))
        assert lease is not None
        with lease:
            again = media_of(lease)
        assert torch.equal(again.embeddings, video(2).embeddings)
        assert (again.layout, again.notes) == (video(2).layout, video(2).notes)
        assert (again.content_key, again.timings) == (key_of(2), {})
    stats = store.stats()
    assert (stats["memory"].hits, stats["disk"].hits, stats["disk"].num_entries) == (1, 1, 3)
    assert store.get(key_of(4)) is None
    store.close()


def test_nobody_waits_for_a_slow_lower_tier() -> None:
    go = threading.Event()

    class Slow(MemoryStore):
        def put(self, key, item):
            go.wait(10)
            return super().put(key, item)

    lower = Slow(10**6)
    store = TieredStore(MemoryStore(10**6), lower, max_waiting_bytes=5 * ROW_BYTES)
    for number in range(20):
        store.put(key_of(number), media(number, 2)).release()
    go.set()
    store.close()
    assert lower.stats()["memory"].num_entries == 2


def test_the_interface_needs_no_torch() -> None:
    code = "import sys, mm_pipeline.store; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
