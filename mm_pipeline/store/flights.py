"""One computation for all who want the same key at the same time.

Knows who leads and who waits. Does not know what is computed or where results are kept afterwards.
"""

from __future__ import annotations

import asyncio
import threading
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Generic, TypeVar

from mm_pipeline.errors import MediaError

T = TypeVar("T")

# Timeouts, overload and hang-ups belong to the request that met them.
_OWN_STATUSES = {408, 429, 499}


def is_about_content(error: BaseException) -> bool:
    """Whether everybody who asks for the same content under the same settings would meet the same error."""
    return isinstance(error, MediaError) and error.status < 500 and error.status not in _OWN_STATUSES


@dataclass(frozen=True)
class Landed(Generic[T]):
    """What the leader found."""

    value: T


LEAD = "lead"
"""What a ticket's turn is when its holder is to compute the value."""


class Ticket(Generic[T]):
    """One caller's part in a flight. Whoever holds a ticket ends it with `land`, `fail` or `leave`, in any thread.

    turn: `LEAD` once this caller is the one to compute, or `Landed`, or the error all share. Cancelled by `leave`.
    """

    def __init__(self, flights: Flights[T], key: str) -> None:
        self.key = key
        self.turn: Future[Landed[T] | str] = Future()
        self._flights = flights

    def land(self, value: T) -> None:
        """The leader's result, for everybody. Nothing happens when the leader has left already."""
        self._flights._land(self, value)

    def fail(self, error: BaseException) -> None:
        """The leader could not compute. Where the content is at fault all fail alike, else the next leads."""
        self._flights._fail(self, error)

    def leave(self) -> None:
        """This caller wants nothing any more. The next in line leads when it was the leader. Idempotent."""
        self._flights._leave(self)


class Flights(Generic[T]):
    """Thread-safe. A flight is kept only while somebody is aboard, and no result outlives it.

    All aboard get the same value: something everybody may hold, such as encoded media, and no lease.
    """

    def __init__(self, *, shares: Callable[[BaseException], bool] = is_about_content) -> None:
        """shares: whether an error of the leader is everybody's."""
        self._shares = shares
        self._lock = threading.Lock()
        # In order of boarding; the first one leads.
        self._flights: dict[str, OrderedDict[int, Ticket[T]]] = {}

    def __len__(self) -> int:
        """Keys being computed now."""
        return len(self._flights)

    def num_waiting(self) -> int:
        """Callers who wait for another's result now."""
        with self._lock:
            return sum(len(flight) - 1 for flight in self._flights.values())

    def board(self, key: str) -> Ticket[T]:
        """The first one aboard leads at once."""
        ticket: Ticket[T] = Ticket(self, key)
        with self._lock:
            flight = self._flights.setdefault(key, OrderedDict())
            flight[id(ticket)] = ticket
            leads = len(flight) == 1
        if leads:
            _resolve(ticket, LEAD)
        return ticket

    def run(self, key: str, compute: Callable[[], T], *, timeout_s: float | None = None) -> T:
        """The value for the key, from `compute` or from another caller's.

        timeout_s: how long to wait for another's. Raises TimeoutError, and what the computation raises.
        """
        ticket = self.board(key)
        try:
            turn = ticket.turn.result(timeout_s)
            if isinstance(turn, Landed):
                return turn.value
            value = compute()
            ticket.land(value)
            return value
        except BaseException as error:
            ticket.fail(error)
            raise
        finally:
            ticket.leave()

    async def run_async(self, key: str, compute: Callable[[], Awaitable[T]]) -> T:
        """As `run`. A cancelled caller leaves; where it led, the next one in line computes with its own."""
        ticket = self.board(key)
        try:
            turn = await asyncio.wrap_future(ticket.turn)
            if isinstance(turn, Landed):
                return turn.value
            value = await compute()
            ticket.land(value)
            return value
        except BaseException as error:
            ticket.fail(error)
            raise
        finally:
            ticket.leave()

    def _land(self, ticket: Ticket[T], value: T) -> None:
        for other in self._end(ticket):
            _resolve(other, Landed(value))

    def _fail(self, ticket: Ticket[T], error: BaseException) -> None:
        if not self._shares(error):
            self._leave(ticket)
            return
        for other in self._end(ticket):
            if other.turn.set_running_or_notify_cancel():
                other.turn.set_exception(error)

    def _end(self, ticket: Ticket[T]) -> list[Ticket[T]]:
        """Ends the flight that the ticket leads: those who waited."""
        with self._lock:
            flight = self._flights.get(ticket.key)
            if flight is None or next(iter(flight.values())) is not ticket:
                return []
            del self._flights[ticket.key]
        return [other for other in flight.values() if other is not ticket]

    def _leave(self, ticket: Ticket[T]) -> None:
        ticket.turn.cancel()
        with self._lock:
            flight = self._flights.get(ticket.key)
            if flight is None or id(ticket) not in flight:
                return
            led = next(iter(flight.values())) is ticket
            del flight[id(ticket)]
            if not flight:
                del self._flights[ticket.key]
                return
            heir = next(iter(flight.values()))
        if led:
            _resolve(heir, LEAD)


def _resolve(ticket: Ticket[T], turn: Landed[T] | str) -> None:
    # False for one who has left meanwhile; who leaves as heir hands the lead on by itself.
    if ticket.turn.set_running_or_notify_cancel():
        ticket.turn.set_result(turn)
