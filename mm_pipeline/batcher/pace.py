"""How long work keeps its servers busy, and from that how long what waits will take. Its caller locks."""

from __future__ import annotations

import time
from collections.abc import Mapping

# Weight of the newest measurement.
_NEWEST = 0.3


class Pace:
    """busy_s only grows; seconds of several servers at work at once add up."""

    def __init__(self) -> None:
        self._rates: dict[str, float] = {}
        self._num_busy = 0
        self._busy_s = 0.0
        self._since_s = time.monotonic()

    def begin(self) -> None:
        """One more server is at work."""
        self._settle()
        self._num_busy += 1

    def end(self) -> None:
        """One server is free again."""
        self._settle()
        self._num_busy -= 1

    def busy_s(self) -> float:
        """Seconds of work so far, what is under way included."""
        self._settle()
        return self._busy_s

    def measure(self, kind: str, cost: int, seconds: float) -> None:
        """Work of this kind and cost took one server so long."""
        rate = cost / max(seconds, 1e-6)
        before = self._rates.get(kind, rate)
        self._rates[kind] = before + _NEWEST * (rate - before)

    def seconds_for(self, costs: Mapping[str, int]) -> float:
        """How long one server takes for these costs by kind. A kind that was never measured counts nothing."""
        return sum(cost / self._rates[kind] for kind, cost in costs.items() if kind in self._rates)

    def _settle(self) -> None:
        now_s = time.monotonic()
        self._busy_s += self._num_busy * (now_s - self._since_s)
        self._since_s = now_s
