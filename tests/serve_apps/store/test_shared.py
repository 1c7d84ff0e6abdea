"""The shared store on real Ray: sharing without copies, coalescing, and deaths of owner, holder and directory."""

from __future__ import annotations

import logging
import os
import signal
import statistics
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import ray
from ray.exceptions import RayError

from mm_pipeline.metrics import CACHE_HITS, CACHE_MISSES, MemoryRecorder
from mm_pipeline.store import entry_of
from serve_apps.store.directory import connect_directory
from serve_apps.store.replica import DIRECTORY, ReplicaStore
from serve_apps.store.shared import SharedStore
from tests.mm_pipeline.store.support import HIDDEN, ROW_BYTES, key_of, media, video
from tests.serve_apps.store.replica import Replica, SlowDirectory

pytestmark = pytest.mark.e2e

LEASE_S = 3.0
MAX_BYTES = 40 * 2**20
PATIENCE_S = 60.0


@pytest.fixture(scope="module")
def directory() -> Iterator[Any]:
    ray.init(
        address="local",
        num_cpus=2,
        include_dashboard=False,
        log_to_driver=False,
        configure_logging=False,
        logging_level=logging.ERROR,
        object_store_memory=100 * 2**20,
    )
    yield connect_directory("embeddings", MAX_BYTES, lease_s=LEASE_S)
    ray.shutdown()


def start(directory: Any) -> Any:
    return ray.remote(Replica).options(num_cpus=0, max_concurrency=8).remote(directory)


@pytest.fixture(scope="module")
def pair(directory: Any) -> tuple[Any, Any]:
    """Two replicas that live through the module."""
    found = start(directory), start(directory)
    ray.get([replica.pid.remote() for replica in found])
    return found


def call(method: Any, *args: Any, **kwargs: Any) -> Any:
    return ray.get(method.remote(*args, **kwargs), timeout=PATIENCE_S)


def until(condition: Callable[[], bool], within_s: float = PATIENCE_S) -> None:
    deadline = time.monotonic() + within_s
    while not condition():
        assert time.monotonic() < deadline, "it never came to that"
        time.sleep(0.1)


def kill(pid: int) -> None:
    os.kill(pid, signal.SIGKILL)


def the_sum(number: int, num_tokens: int = 3) -> float:
    return float(media(number, num_tokens).embeddings.sum())


def test_what_one_replica_put_is_the_others_first_hit(pair: tuple[Any, Any], directory: Any) -> None:
    """A megabyte, read where it lies: two reads in one process see the same memory."""
    first, second = pair
    assert connect_directory("embeddings", 1)._actor_id == directory._actor_id
    num_tokens = 2**20 // ROW_BYTES
    assert call(second.get, 1) is None
    assert call(first.put, 1, num_tokens)
    found, again = call(second.get, 1, keep=True), call(second.get, 1)
    assert found["sum"] == the_sum(1, num_tokens)
    assert found["entry"] == entry_of(key_of(1), media(1, num_tokens))
    assert found["address"] == again["address"]
    call(second.release)
    call(first.put_video, 2)
    assert call(second.get, 2)["entry"] == entry_of(key_of(2), video(2))
    print(f"hit p50 {1000 * statistics.median(call(second.time_gets, 1, 200)):.2f} ms")


def test_leases_pin_and_end(pair: tuple[Any, Any]) -> None:
    first, second = pair
    call(first.put, 10, keep=True)
    call(second.get, 10, keep=True)
    until(lambda: call(first.stats)["pinned_bytes"] == 3 * ROW_BYTES)
    # Longer than a lease: signs of life prolong it.
    time.sleep(1.5 * LEASE_S)
    assert call(first.stats)["pinned_bytes"] == 3 * ROW_BYTES
    call(first.release)
    call(second.release)
    until(lambda: call(first.stats)["pinned_bytes"] == 0)


def test_eviction_frees_the_object_store(pair: tuple[Any, Any], directory: Any) -> None:
    """Three times the bound goes through, and an item above the bound: the bound holds and memory is given back."""
    first, second = pair
    num_tokens = 4 * 2**20 // ROW_BYTES
    for number in range(100, 130):
        assert call(first.put, number, num_tokens)
        time.sleep(0.05)
    stats = call(first.stats)
    assert stats["num_bytes"] <= MAX_BYTES
    assert stats["evicted"] >= 20
    assert call(second.get, 129)["sum"] == the_sum(129, num_tokens)
    assert call(second.get, 100) is None
    assert call(first.put, 131, 1 + MAX_BYTES // (4 * HIDDEN))
    assert call(second.get, 131) is None
    assert call(first.stats)["rejected"] == 1


def test_replicas_wait_for_each_other(pair: tuple[Any, Any], directory: Any) -> None:
    first, second = pair
    assert call(first.claim, 20) is None
    waiting = [second.claim.remote(20, 30.0) for _ in range(3)]
    assert ray.wait(waiting, timeout=0.5)[0] == []
    call(first.put, 20)
    assert [found["sum"] for found in ray.get(waiting, timeout=PATIENCE_S)] == [the_sum(20)] * 3

    # Who gives up lets the next one lead; who waits in vain computes.
    assert call(first.claim, 21) is None
    waiting = [second.claim.remote(21, 30.0)]
    assert ray.wait(waiting, timeout=0.3)[0] == []
    call(first.unclaim, 21)
    assert ray.get(waiting, timeout=5.0) == [None]
    assert call(first.claim, 21, 0.2) is None
    call(second.unclaim, 21)

    # Too large to be listed: nobody waits for one after the other.
    assert call(first.claim, 22) is None
    waiting = [second.claim.remote(22, 30.0) for _ in range(3)]
    assert ray.wait(waiting, timeout=0.3)[0] == []
    call(first.put, 22, 1 + MAX_BYTES // (4 * HIDDEN))
    assert ray.get(waiting, timeout=5.0) == [None] * 3
    until(lambda: call(directory.counts)["claims"] == 0)


def test_the_owners_death_is_a_miss(pair: tuple[Any, Any], directory: Any) -> None:
    """kill -9 of a replica that owns, holds and computes: the others miss, compute, and are not held up."""
    first, second = pair
    before = call(first.stats)
    doomed = start(directory)
    call(doomed.put, 30, 2**20 // ROW_BYTES, keep=True)
    call(doomed.get, 20, keep=True)
    assert call(doomed.claim, 31) is None
    assert call(first.get, 30)["sum"] == the_sum(30, 2**20 // ROW_BYTES)
    waiting = second.claim.remote(31, 30.0)
    kill(call(doomed.pid))
    until(lambda: call(first.get, 30) is None)
    assert ray.get(waiting, timeout=2 * LEASE_S) is None
    call(second.put, 31)
    call(first.put, 30)
    assert call(second.get, 30)["sum"] == the_sum(30)
    until(lambda: call(directory.counts)["leases"] == 0)
    stats = call(first.stats)
    assert stats["pinned_bytes"] == 0
    assert stats["num_bytes"] == before["num_bytes"] + 2 * 3 * ROW_BYTES


def test_the_directorys_death_is_a_miss_and_it_is_filled_again(pair: tuple[Any, Any], directory: Any) -> None:
    """kill -9 of the directory: no call fails; then it lists again what the replicas own, and their aliases."""
    first, second = pair
    call(first.put, 40)
    call(second.put, 41, keep=True)
    assert call(first.alias, "cat", key_of(40)) == key_of(40)
    kill(call(directory.counts)["pid"])
    begin = time.monotonic()
    for number in range(50, 55):
        call(first.get, number)
        call(first.claim, number)
        assert call(first.put, number)
        call(second.alias, "dog", key_of(number))
    assert time.monotonic() - begin < 30.0
    until(lambda: (call(second.get, 40) or {}).get("sum") == the_sum(40))
    until(lambda: (call(first.get, 41) or {}).get("sum") == the_sum(41))
    until(lambda: call(second.alias, "cat") == key_of(40))
    call(second.release)
    until(lambda: call(directory.counts)["leases"] == 0)
    assert call(first.stats)["pinned_bytes"] == 0


def test_a_replica_that_ends_takes_its_entries_along(directory: Any, pair: tuple[Any, Any]) -> None:
    leaving = start(directory)
    call(leaving.put, 60, keep=True)
    assert call(pair[0].get, 60) is not None
    call(leaving.close)
    assert call(pair[0].get, 60) is None
    ray.kill(leaving)


@pytest.mark.usefixtures("directory")
def test_a_name_leads_to_what_lies_on_disk(tmp_path: Path) -> None:
    """The name is the directory's, and the replica that made the embeddings has ended."""
    call(connect_directory(DIRECTORY, MAX_BYTES).stats)
    recorder = MemoryRecorder()
    first = ReplicaStore(MAX_BYTES, tmp_path, MAX_BYTES, recorder)
    first.keep(key_of(80), media(80, 3)).release()
    first.name("horse", "settings", key_of(80))
    first.close()
    second = ReplicaStore(MAX_BYTES, tmp_path, MAX_BYTES, recorder)
    assert second.find_named("horse", "other settings") is None
    assert recorder.total(CACHE_MISSES) == 0
    found = second.find_named("horse", "settings")
    assert found is not None
    assert float(found.embeddings.sum()) == the_sum(80)
    assert [recorder.total(metric, tier="disk") for metric in (CACHE_HITS, CACHE_MISSES)] == [1, 0]
    second.close()


@pytest.mark.usefixtures("directory")
def test_what_comes_after_a_directory_is_ready_is_kept() -> None:
    slow = ray.remote(SlowDirectory).options(num_cpus=0).remote(MAX_BYTES, LEASE_S)
    store = SharedStore(slow, call_timeout_s=1.0, sync_s=0.4)
    store.wait_until_ready(PATIENCE_S)
    store.put(key_of(90), media(90, 3)).release()
    found = store.get(key_of(90))
    assert found is not None
    assert float(found.embeddings.sum()) == the_sum(90)
    found.release()
    store.close()


def test_no_directory_at_all(pair: tuple[Any, Any], directory: Any) -> None:
    """Last, for it kills the directory for good: everything is a miss, and what is put can be read by reference."""
    first, _ = pair
    ray.kill(directory, no_restart=True)
    assert call(first.get, 20) is None
    assert call(first.claim, 20, 1.0) is None
    assert call(first.put, 70)
    assert call(first.stats)["max_bytes"] == 0
    with pytest.raises(RayError):
        ray.get(directory.stats.remote(), timeout=5.0)
