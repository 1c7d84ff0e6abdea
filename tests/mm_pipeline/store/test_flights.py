"""One leader per key, whoever leaves when; results and errors reach who should have them."""

from __future__ import annotations

import asyncio
import gc
import threading
import weakref
from concurrent.futures import CancelledError, ThreadPoolExecutor

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from mm_pipeline.errors import InvalidMediaError
from mm_pipeline.store.flights import LEAD, Flights, Landed, Ticket

KEYS = st.sampled_from(["a", "b"])


class Overloaded(Exception):
    """An error of whoever met it."""


class FlightsMachine(RuleBasedStateMachine):
    """Tickets against a list per key in the order of boarding."""

    def __init__(self) -> None:
        super().__init__()
        self.flights: Flights[int] = Flights()
        self.aboard: dict[str, list[Ticket[int]]] = {"a": [], "b": []}
        self.ended: list[Ticket[int]] = []
        self.num_values = 0

    @rule(key=KEYS)
    def board(self, key: str) -> None:
        self.aboard[key].append(self.flights.board(key))

    @precondition(lambda self: any(self.aboard.values()))
    @rule(key=KEYS, what=st.sampled_from(["land", "content", "own"]))
    def end(self, key: str, what: str) -> None:
        if not self.aboard[key]:
            return
        leader = self.aboard[key].pop(0)
        self.num_values += 1
        if what == "own":
            leader.fail(Overloaded())
        else:
            waiting, self.aboard[key] = self.aboard[key], []
            error = InvalidMediaError("bad")
            if what == "land":
                leader.land(self.num_values)
            else:
                leader.fail(error)
            for other in waiting:
                if what == "land":
                    assert other.turn.result(0) == Landed(self.num_values)
                else:
                    assert other.turn.exception(0) is error
            self.ended += waiting
        self.ended.append(leader)

    @precondition(lambda self: any(self.aboard.values()))
    @rule(key=KEYS, data=st.data())
    def leave(self, key: str, data: st.DataObject) -> None:
        if self.aboard[key]:
            ticket = self.aboard[key].pop(data.draw(st.integers(0, len(self.aboard[key]) - 1)))
            ticket.leave()
            self.ended.append(ticket)

    @precondition(lambda self: self.ended)
    @rule(data=st.data(), what=st.sampled_from(["land", "fail", "leave"]))
    def too_late(self, data: st.DataObject, what: str) -> None:
        """Whoever is out of it changes nothing for others."""
        ticket = data.draw(st.sampled_from(self.ended))
        if what == "land":
            ticket.land(-1)
        elif what == "fail":
            ticket.fail(InvalidMediaError("late"))
        else:
            ticket.leave()

    @invariant()
    def one_leads(self) -> None:
        for tickets in self.aboard.values():
            assert [ticket.turn.done() for ticket in tickets] == [index == 0 for index in range(len(tickets))]
            assert all(ticket.turn.result(0) == LEAD for ticket in tickets[:1])
        assert len(self.flights) == sum(map(bool, self.aboard.values()))
        assert self.flights.num_waiting() == sum(
            len(tickets) - 1 for tickets in self.aboard.values() if tickets
        )


TestFlights = FlightsMachine.TestCase
TestFlights.settings = settings(max_examples=80, stateful_step_count=40, deadline=None)


def test_threads_compute_once() -> None:
    flights: Flights[object] = Flights()
    computed = []
    barrier = threading.Barrier(8)

    def compute() -> object:
        while flights.num_waiting() < 7:
            pass
        computed.append(1)
        return object()

    def ask(_: int) -> object:
        barrier.wait()
        return flights.run("key", compute)

    with ThreadPoolExecutor(8) as threads:
        found = list(threads.map(ask, range(8)))
    assert len(set(map(id, found))) == 1
    assert computed == [1]
    assert len(flights) == 0


async def test_waiters_survive_the_leaders_cancellation() -> None:
    """Each of four is cancelled while it leads; the fifth computes, and the sixth has its result."""
    flights: Flights[int] = Flights()
    leading: list[int] = []
    leads = [asyncio.Event() for _ in range(6)]

    async def ask(number: int) -> int:
        async def compute() -> int:
            leading.append(number)
            leads[number].set()
            if number < 4:
                await asyncio.Event().wait()
            return number

        return await flights.run_async("key", compute)

    calls = [asyncio.create_task(ask(number)) for number in range(6)]
    for number in range(4):
        await leads[number].wait()
        calls[number].cancel()
    found = await asyncio.gather(*calls, return_exceptions=True)
    assert [isinstance(item, asyncio.CancelledError) for item in found[:4]] == [True] * 4
    assert found[4:] == [4, 4]
    assert leading == [0, 1, 2, 3, 4]
    assert len(flights) == 0


async def test_a_cancelled_waiter_costs_nobody_anything() -> None:
    flights: Flights[int] = Flights()
    go = asyncio.Event()

    async def compute() -> int:
        await go.wait()
        return 7

    calls = [asyncio.create_task(flights.run_async("key", compute)) for _ in range(3)]
    await asyncio.sleep(0)
    calls[1].cancel()
    go.set()
    found = await asyncio.gather(*calls, return_exceptions=True)
    assert (found[0], found[2]) == (7, 7)
    assert isinstance(found[1], asyncio.CancelledError)


def test_errors_of_the_content_are_shared_and_others_are_not() -> None:
    for error, num_computed in ((InvalidMediaError("bad"), 1), (Overloaded(), 3)):
        flights: Flights[int] = Flights()
        computed: list[int] = []
        threads = ThreadPoolExecutor(3)
        barrier = threading.Barrier(3)

        def compute(
            flights: Flights[int] = flights, computed: list[int] = computed, error: Exception = error
        ) -> int:
            while flights.num_waiting() + len(computed) < 2:
                pass
            computed.append(1)
            raise error

        def ask(
            flights: Flights[int] = flights, barrier: threading.Barrier = barrier, compute=compute
        ) -> int:
            barrier.wait()
            return flights.run("key", compute)

        calls = [threads.submit(ask) for _ in range(3)]
        assert [call.exception(10) for call in calls] == [error] * 3
        assert len(computed) == num_computed
        assert len(flights) == 0
        threads.shutdown()


def test_a_waiter_has_its_own_patience() -> None:
    flights: Flights[int] = Flights()
    leader = flights.board("key")
    with pytest.raises(TimeoutError):
        flights.run("key", lambda: 1, timeout_s=0.01)
    assert flights.num_waiting() == 0
    leader.land(1)


def test_leave_wakes_a_thread_that_waits() -> None:
    flights: Flights[int] = Flights()
    leader, waiter = flights.board("key"), flights.board("key")
    with ThreadPoolExecutor(1) as threads:
        waiting = threads.submit(waiter.turn.result, 10)
        waiter.leave()
        assert isinstance(waiting.exception(10), CancelledError)
    leader.leave()
    assert len(flights) == 0


def test_results_are_not_kept() -> None:
    class Big:
        pass

    flights: Flights[Big] = Flights()
    value = Big()
    alive = weakref.ref(value)
    leader, waiter = flights.board("key"), flights.board("key")
    leader.land(value)
    del value, leader, waiter
    gc.collect()
    assert alive() is None
