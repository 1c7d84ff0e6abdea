"""Ten thousand requests over each store, with clients that hang up and replicas that die: the books are even after
it, and nothing is held.

The batcher, the flights, the in-process store and the directory are the real ones; encoders and processes are not.
"""

from __future__ import annotations

import asyncio
import gc
import random
import time
import weakref
from collections import Counter
from concurrent.futures import CancelledError
from functools import partial
from typing import Any, Protocol

import pytest

from mm_pipeline.batcher import Batcher, Work
from mm_pipeline.errors import DeadlineExceededError, EncoderClosedError, QueueFullError
from mm_pipeline.metrics import NO_RECORDER
from mm_pipeline.store import Entry, Flights
from mm_pipeline.store.media import media_of
from mm_pipeline.store.memory import MemoryStore
from serve_apps.store.directory import Directory
from serve_apps.store.table import Found
from tests.mm_pipeline.store.support import ROW_BYTES, media

NUM_REQUESTS = 10_000
NUM_KEYS = 400
AT_ONCE = 48
MAX_BYTES = 60 * ROW_BYTES
LEASE_S = 0.5
OVER = (DeadlineExceededError, EncoderClosedError, QueueFullError)


def rows_of(number: int) -> int:
    return 1 + number % 4


class Store(Protocol):
    """One replica's. Values are numbers, each of its own key."""

    async def find(self, number: int) -> int | None: ...

    async def keep(self, number: int, value: int) -> None: ...

    async def give_up(self, number: int) -> None: ...

    async def end(self) -> None: ...


class InProcess:
    """Leases end with their request, and some are only forgotten."""

    def __init__(self, store: MemoryStore) -> None:
        self._store = store

    async def find(self, number: int) -> int | None:
        lease = self._store.get(str(number))
        if lease is None:
            return None
        if number % 3:
            with lease:
                await asyncio.sleep(0)
        return int(media_of(lease).embeddings[0, 0])

    async def keep(self, number: int, value: int) -> None:
        self._store.put(str(number), media(value, rows_of(number)))

    async def give_up(self, number: int) -> None:
        """Nobody else waits for it."""

    async def end(self) -> None:
        """It outlives the replica."""


class InCluster:
    """What `SharedStore` tells the directory. Calls go on when those who wait for them do not."""

    def __init__(self, directory: Directory, name: str) -> None:
        self._directory = directory
        self._name = name
        self._held: set[int] = set()
        self._calls: set[asyncio.Task[Any]] = set()
        self._is_dead = False
        self._signs = asyncio.create_task(self._live())

    async def find(self, number: int) -> int | None:
        self._check()
        call = asyncio.create_task(self._directory.claim(str(number), self._name, 5.0))
        self._calls.add(call)
        call.add_done_callback(self._calls.discard)
        try:
            found = await asyncio.shield(call)
        except asyncio.CancelledError:
            call.add_done_callback(partial(self._unwanted, number))
            raise
        if not isinstance(found, Found):
            return None
        self._held.add(found.lease)
        value: int = found.reference[0]
        try:
            await asyncio.sleep(0)
        finally:
            await self._release(found.lease)
        return value

    async def keep(self, number: int, value: int) -> None:
        self._check()
        entry = Entry(
            key=str(number),
            num_tokens=rows_of(number),
            hidden_size=1,
            dtype="x",
            num_bytes=rows_of(number) * ROW_BYTES,
            modality="image",
        )
        lease = await self._directory.publish([value], f"{self._name} {number}", entry, self._name, True)
        if lease is not None:
            await self._release(lease)

    async def give_up(self, number: int) -> None:
        if not self._is_dead:
            await self._directory.unclaim(str(number), self._name)

    async def end(self) -> None:
        """As a process that was killed: from now on it is silent."""
        self._is_dead = True
        self._signs.cancel()

    def _unwanted(self, number: int, call: asyncio.Task[Any]) -> None:
        found = call.result()
        ending = self._release(found.lease) if isinstance(found, Found) else self.give_up(number)
        task = asyncio.create_task(ending)
        self._calls.add(task)
        task.add_done_callback(self._calls.discard)

    async def _release(self, lease: int) -> None:
        self._held.discard(lease)
        if not self._is_dead:
            await self._directory.sync(self._name, list(self._held), [lease])

    def _check(self) -> None:
        if self._is_dead:
            raise EncoderClosedError("the process is gone")

    async def _live(self) -> None:
        while True:
            await asyncio.sleep(LEASE_S / 5)
            await self._directory.sync(self._name, list(self._held), [])


class Payload:
    """Something whose end can be seen."""

    def __init__(self, number: int) -> None:
        self.number = number


class Replica:
    """As the encoder's: who wants the same shares one computation, and what is found is not computed."""

    def __init__(self, store: Store, payloads: weakref.WeakSet[Payload]) -> None:
        self.store = store
        self.flights: Flights[int] = Flights()
        self.batcher = Batcher(self._run, budgets={"image": 12}, max_items=24, max_bytes=200, name="replica")
        self.tasks: set[asyncio.Task[int]] = set()
        self._payloads = payloads

    async def encode(self, number: int, deadline: float | None) -> int:
        return await self.flights.run_async(str(number), lambda: self._find_or_compute(number, deadline))

    async def end(self) -> None:
        """It dies with all that it is at."""
        await self.store.end()
        for task in self.tasks:
            task.cancel()
        await asyncio.to_thread(self.batcher.close, drain=False)

    async def _find_or_compute(self, number: int, deadline: float | None) -> int:
        found = await self.store.find(number)
        if found is not None:
            return found
        try:
            payload = Payload(number)
            self._payloads.add(payload)
            work = Work(
                kind="image",
                cost=rows_of(number),
                num_bytes=rows_of(number),
                payload=payload,
                owner=str(number % 7),
                deadline=deadline,
            )
            del payload
            value: int = await asyncio.wrap_future(self.batcher.submit(work))
            await self.store.keep(number, value)
        except BaseException:
            await self.store.give_up(number)
            raise
        return value

    def _run(self, kind: str, payloads: list[Payload]) -> list[int]:
        if any(payload.number % 50 == 49 for payload in payloads):
            raise ZeroDivisionError
        return [payload.number for payload in payloads]


@pytest.fixture
def directory(monkeypatch: pytest.MonkeyPatch) -> Directory:
    monkeypatch.setattr("serve_apps.store.directory.Metrics", lambda: NO_RECORDER)
    return Directory(MAX_BYTES, LEASE_S)


async def run(replicas: list[Replica], new: Any, deaths: int) -> tuple[Counter[str], list[Replica]]:
    """How the requests ended, and the replicas that died under them."""
    rng = random.Random(11)
    ends: Counter[str] = Counter()
    dead: list[Replica] = []
    room = asyncio.Semaphore(AT_ONCE)
    requests: set[asyncio.Task[None]] = set()

    async def request(number: int, hangs_up_after_s: float | None, deadline: float | None) -> None:
        replica = rng.choice(replicas)
        task = asyncio.create_task(replica.encode(number, deadline))
        replica.tasks.add(task)
        task.add_done_callback(replica.tasks.discard)
        try:
            assert await asyncio.wait_for(task, hangs_up_after_s) == number
            ends["right"] += 1
        except (TimeoutError, asyncio.CancelledError, CancelledError):
            ends["cancelled"] += 1
        except OVER as error:
            ends[type(error).__name__] += 1
        except ZeroDivisionError:
            assert number % 50 == 49
            ends["failed"] += 1
        finally:
            room.release()

    for count in range(NUM_REQUESTS):
        await room.acquire()
        # Some are wanted by many.
        number = min(rng.randrange(NUM_KEYS), rng.randrange(NUM_KEYS))
        hangs_up = rng.uniform(0.0, 0.004) if rng.random() < 0.3 else None
        deadline = time.monotonic() + rng.uniform(0.0, 0.004) if rng.random() < 0.1 else None
        task = asyncio.create_task(request(number, hangs_up, deadline))
        requests.add(task)
        task.add_done_callback(requests.discard)
        if deaths and count % (NUM_REQUESTS // deaths) == 99:
            dead.append(replicas.pop(0))
            replicas.append(new())
            await dead[-1].end()
    await asyncio.gather(*requests)
    return ends, dead


def check_replicas(replicas: list[Replica], payloads: weakref.WeakSet[Payload]) -> None:
    for replica in replicas:
        replica.batcher.close()
        stats = replica.batcher.stats()
        assert (stats.queued_items, stats.queued_bytes, stats.running_items) == (0, 0, 0)
        assert stats.queued_cost == {"image": 0}
        assert stats.submitted == stats.done + stats.failed + stats.cancelled + stats.expired
        assert (len(replica.flights), replica.flights.num_waiting()) == (0, 0)
    gc.collect()
    assert len(payloads) == 0


async def test_the_store_in_this_process_is_even_after_all() -> None:
    store, payloads = MemoryStore(MAX_BYTES), weakref.WeakSet[Payload]()
    replica = Replica(InProcess(store), payloads)
    ends, _ = await run([replica], None, deaths=0)
    assert sum(ends.values()) == NUM_REQUESTS
    assert min(ends["right"], ends["cancelled"], ends["failed"]) > 10
    check_replicas([replica], payloads)
    store.check()
    (stats,) = store.stats().values()
    assert (stats.pinned_bytes, stats.lost) == (0, 0)
    assert 0 < stats.num_bytes <= MAX_BYTES
    assert stats.stored - stats.evicted == stats.num_entries


@pytest.mark.slow
async def test_the_shared_store_is_even_after_all(directory: Directory) -> None:
    payloads = weakref.WeakSet[Payload]()
    names = iter(range(1000))

    def new() -> Replica:
        return Replica(InCluster(directory, f"replica {next(names)}"), payloads)

    replicas = [new() for _ in range(3)]
    ends, dead = await run(replicas, new, deaths=20)
    assert sum(ends.values()) == NUM_REQUESTS
    assert min(ends["right"], ends["cancelled"], ends["failed"]) > 10
    assert len(dead) == 20
    # The last of the dead lapse.
    await asyncio.sleep(1.5 * LEASE_S)
    check_replicas(replicas + dead, payloads)
    stats = await directory.stats()
    counts = await directory.counts()
    assert (counts["leases"], counts["claims"], stats.pinned_bytes) == (0, 0, 0)
    assert directory._endings == {}
    # After a stall of the machine even the living may have lapsed.
    assert stats.num_bytes <= MAX_BYTES
    assert min(stats.hits, stats.evicted) > 100
    for replica in replicas:
        await replica.store.end()
