"""A few servers and those who wait for one of them, such as threads that decode pictures. Knows no batches."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

from mm_pipeline.batcher.pace import Pace

_TURN = "turn"


class Station:
    """Thread-safe."""

    def __init__(self, num_servers: int) -> None:
        self._num_servers = num_servers
        self._servers = threading.BoundedSemaphore(num_servers)
        self._lock = threading.Lock()
        self._pace = Pace()
        self._num_waiting = 0

    @contextmanager
    def turn(self) -> Iterator[None]:
        """Waits for a free server and has it inside the with statement."""
        with self._lock:
            self._num_waiting += 1
        with self._servers:
            with self._lock:
                self._num_waiting -= 1
                self._pace.begin()
            started = time.monotonic()
            try:
                yield
            finally:
                with self._lock:
                    self._pace.end()
                    self._pace.measure(_TURN, 1, time.monotonic() - started)

    def busy_s(self) -> float:
        """Seconds that the servers have been at work, as a mean over them."""
        with self._lock:
            return self._pace.busy_s() / self._num_servers

    def queued_s(self) -> float:
        """Seconds until all that waits will have had its turn, by the length of past turns."""
        with self._lock:
            return self._pace.seconds_for({_TURN: self._num_waiting}) / self._num_servers
