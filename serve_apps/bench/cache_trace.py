"""The simulator of `mmserve bench cache`: which requests of a trace meet a cached item, without a deployment.

Knows the store's rule of eviction and how routers spread items. Knows no Ray, no time, and no two requests at once.
"""

from __future__ import annotations

import bisect
from collections.abc import Callable, Sequence

import numpy as np
from blake3 import blake3

from mm_pipeline.store.lru import PinnedLru

Route = Callable[[int, int], int]
"""(place in the trace, item) to the number of a store."""

_POINTS_PER_REPLICA = 100
"""On the ring; as many as Ray's consistent-hash router has."""


def zipf_trace(num_items: int, num_requests: int, exponent: float, seed: int) -> list[int]:
    """Item numbers from 0, item i drawn with a chance proportional to (i + 1) ** -exponent."""
    weights = np.arange(1, num_items + 1, dtype=np.float64) ** -exponent
    drawn = np.random.default_rng(seed).choice(num_items, size=num_requests, p=weights / weights.sum())
    return [int(item) for item in drawn]


def hit_rate(
    trace: Sequence[int], route: Route, item_bytes: Sequence[int], store_bytes: Sequence[int]
) -> float:
    """Share of requests whose item the store that `route` names holds. item_bytes: by item. store_bytes: bounds."""
    stores: list[PinnedLru[None]] = [PinnedLru(bound) for bound in store_bytes]
    hits = 0
    for place, item in enumerate(trace):
        store, key = stores[route(place, item)], str(item)
        slot = store.find(key)
        if slot is None:
            store.add(key, item_bytes[item], None)
        else:
            hits += 1
            store.unpin(slot)
    return hits / len(trace)


def one_store(_place: int, _item: int) -> int:
    """All replicas share one."""
    return 0


def round_robin(num_replicas: int) -> Route:
    """One replica after another, whatever the item."""
    return lambda place, _item: place % num_replicas


def consistent_hash(num_items: int, num_replicas: int) -> Route:
    """Each item to the replica of the next point on a ring; Ray's has the same form and other points."""
    ring = sorted(
        (_position(f"replica {replica} {point}"), replica)
        for replica in range(num_replicas)
        for point in range(_POINTS_PER_REPLICA)
    )
    positions = [position for position, _ in ring]
    owners = [
        ring[bisect.bisect_right(positions, _position(f"item {item}")) % len(ring)][1]
        for item in range(num_items)
    ]
    return lambda _place, item: owners[item]


def _position(text: str) -> int:
    return int.from_bytes(blake3(text.encode()).digest()[:8], "little")
