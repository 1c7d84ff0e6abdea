"""Which requests of a trace hit a cache, computed without running one: the simulator behind `mmserve bench cache`.

Replicas hold least-recently-used entries of equal size; a trace is a list of item numbers. Knows no Ray.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence

import numpy as np

Route = Callable[[int, int], int]
"""(place in the trace, item) to the number of a replica."""


def zipf_trace(num_items: int, num_requests: int, exponent: float, seed: int) -> list[int]:
    """Item numbers from 0, item i drawn with a chance proportional to (i + 1) ** -exponent."""
    weights = np.arange(1, num_items + 1, dtype=np.float64) ** -exponent
    drawn = np.random.default_rng(seed).choice(num_items, size=num_requests, p=weights / weights.sum())
    return [int(item) for item in drawn]


def hit_rate(trace: Sequence[int], route: Route, capacities: Sequence[int]) -> float:
    """Share of requests whose item the replica that `route` names still holds. capacities: entries per replica."""
    caches = [_Lru(capacity) for capacity in capacities]
    return sum(caches[route(place, item)].meets(item) for place, item in enumerate(trace)) / len(trace)


def round_robin(num_replicas: int) -> Route:
    """One replica after another, whatever the item."""
    return lambda place, item: place % num_replicas


class _Lru:
    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self._held: OrderedDict[int, None] = OrderedDict()

    def meets(self, item: int) -> bool:
        """Whether the item is held; it is afterwards."""
        held = item in self._held
        self._held[item] = None
        self._held.move_to_end(item)
        if len(self._held) > self._capacity:
            self._held.popitem(last=False)
        return held
