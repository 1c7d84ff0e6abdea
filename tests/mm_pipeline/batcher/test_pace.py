"""How busy batches and stations are, and how long what waits for them will take."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from mm_pipeline.batcher import Batcher, Station, Work
from mm_pipeline.batcher.pace import Pace

LONG_S = 30.0


class Clock:
    """Seconds that pass when a test says so."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now_s = 100.0
        monkeypatch.setattr("mm_pipeline.batcher.pace.time.monotonic", lambda: self.now_s)


def test_seconds_of_servers_at_work_add_up(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, pace = Clock(monkeypatch), None
    pace = Pace()
    clock.now_s += 10
    assert pace.busy_s() == 0
    pace.begin()
    clock.now_s += 1
    pace.begin()
    clock.now_s += 2
    assert pace.busy_s() == 5
    pace.end()
    pace.end()
    clock.now_s += 10
    assert pace.busy_s() == 5


def test_time_needed_follows_what_was_measured() -> None:
    pace = Pace()
    assert pace.seconds_for({"image": 100}) == 0
    pace.measure("image", 100, 2.0)
    assert pace.seconds_for({"image": 50, "audio": 7}) == 1.0
    for _ in range(50):
        pace.measure("image", 100, 1.0)
    assert pace.seconds_for({"image": 100}) == pytest.approx(1.0)


def test_a_batcher_tells_how_long_its_queue_is(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(monkeypatch)
    held, go_on = threading.Event(), threading.Event()

    def run(kind: str, payloads: list[int]) -> list[int]:
        clock.now_s += 2
        if payloads == [0]:
            held.set()
            assert go_on.wait(LONG_S)
        return payloads

    def work(payload: int, cost: int) -> Work:
        return Work(kind="image", cost=cost, num_bytes=0, payload=payload, owner="o")

    with Batcher(run, budgets={"image": 10}, max_items=9, max_bytes=9, name="test") as batcher:
        assert batcher.submit(work(1, 10)).result(LONG_S) == 1
        futures = [batcher.submit(work(0, 10))]
        assert held.wait(LONG_S)
        futures += [batcher.submit(work(1, 5)) for _ in range(3)]
        stats = batcher.stats()
        go_on.set()
        for future in futures:
            future.result(LONG_S)
    # 10 took 2 seconds, and 15 wait; 2 batches of 2 seconds have run or run.
    assert (stats.queued_s, stats.busy_s) == (3.0, 4.0)


def test_a_station_serves_a_few_and_knows_who_waits() -> None:
    station = Station(2)
    inside, go_on, most = threading.Semaphore(0), threading.Event(), []

    def visit() -> None:
        with station.turn():
            most.append(station.queued_s())
            inside.release()
            assert go_on.wait(LONG_S)

    with station.turn():
        pass
    with ThreadPoolExecutor(5) as pool:
        visits = [pool.submit(visit) for _ in range(5)]
        for _ in range(2):
            assert inside.acquire(timeout=LONG_S)
        assert not inside.acquire(timeout=0.05)
        assert station.queued_s() > 0
        assert station.busy_s() > 0
        go_on.set()
        for done in visits:
            done.result(LONG_S)
    assert station.queued_s() == 0


def test_a_turn_that_fails_is_over() -> None:
    station = Station(1)
    with pytest.raises(KeyError), station.turn():
        raise KeyError
    before = station.busy_s()
    with station.turn():
        assert station.queued_s() == 0
    assert station.busy_s() >= before
