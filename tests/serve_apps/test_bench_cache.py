"""`mmserve bench cache`: its simulator against a plain one, its routes, and a short run on real deployments."""

from __future__ import annotations

import argparse
import asyncio
from collections import Counter
from typing import Any

import numpy as np
import pytest

from serve_apps.bench import cache
from serve_apps.bench.cache_deployment import replay
from serve_apps.bench.cache_trace import consistent_hash, hit_rate, one_store, round_robin, zipf_trace
from serve_apps.chat.base import EncodedItem

NUM_ITEMS = 60


def arguments(*words: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    cache.add_arguments(parser)
    return parser.parse_args(words)


def plain_hit_rate(trace: list[int], route: Any, item_bytes: list[int], store_bytes: list[int]) -> float:
    """Lists, most recently used last."""
    stores: list[list[int]] = [[] for _ in store_bytes]
    hits = 0
    for place, item in enumerate(trace):
        number = route(place, item)
        store = stores[number]
        hits += item in store
        if item in store:
            store.remove(item)
        store.append(item)
        while sum(item_bytes[held] for held in store) > store_bytes[number]:
            store.pop(0)
    return hits / len(trace)


@pytest.mark.parametrize("seed", range(5))
def test_hit_rates_are_those_of_a_plain_simulation(seed: int) -> None:
    trace = zipf_trace(NUM_ITEMS, 500, 1.0, seed)
    item_bytes = [int(size) for size in np.random.default_rng(seed).integers(1, 9, NUM_ITEMS)]
    for route, stores in (
        (consistent_hash(NUM_ITEMS, 3), 3),
        (round_robin(3), 3),
        (one_store, 1),
    ):
        bounds = [sum(item_bytes) // 5 // stores] * stores
        found = hit_rate(trace, route, item_bytes, bounds)
        assert found == plain_hit_rate(trace, route, item_bytes, bounds)
        assert 0 < found < 1


def test_a_trace_has_zipf_popularity() -> None:
    counts = Counter(zipf_trace(NUM_ITEMS, 100_000, 1.0, seed=1))
    assert max(counts) < NUM_ITEMS
    for item in (1, 3, 9):
        assert counts[0] / counts[item] == pytest.approx(item + 1, rel=0.1)


def test_content_meets_one_replica_and_all_replicas_get_some() -> None:
    route = consistent_hash(1000, 3)
    assert all(route(place, item) == route(0, item) for place in (1, 2) for item in range(1000))
    shares = Counter(route(0, item) for item in range(1000))
    assert sorted(shares) == [0, 1, 2]
    assert min(shares.values()) > 150
    assert [round_robin(3)(place, 7) for place in range(4)] == [0, 1, 2, 0]


async def test_a_replay_counts_what_was_not_computed() -> None:
    """Each client goes on with the next request of the trace."""
    asked: list[bytes] = []

    class Backend:
        async def encode(self, data: bytes, modality: str, _options: object, *, owner: str) -> EncodedItem:
            timings = {"cache_ms": 1.0} if data in asked else {"encode_ms": 1.0}
            asked.append(data)
            await asyncio.sleep(0)
            return EncodedItem(
                embeddings=None, num_tokens=1, modality=modality, content_key="k", timings=timings
            )

    backend: Any = Backend()
    pictures = [b"a", b"b", b"c"]
    assert await replay(backend, pictures, [0, 1, 0, 0, 2, 1, 1, 2], clients=2) == 5 / 8
    assert sorted(asked) == [b"a", b"a", b"a", b"b", b"b", b"b", b"c", b"c"]


def test_fewer_than_one_request_is_an_error() -> None:
    with pytest.raises(ValueError, match="requests is 0; it must be at least 1"):
        cache.run(arguments("--requests", "0"))


@pytest.mark.e2e
@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_short_run_has_the_fixed_keys(capsys: pytest.CaptureFixture[str]) -> None:
    found = cache.run(arguments("--requests", "120"))
    assert set(found) == {
        "miss_over_hit",
        "miss_p50_ms",
        "hit_p50_ms",
        "second_replica_hits",
        "hit_rate_round_robin",
        "hit_rate_hash",
        "hit_rate_shared",
        "hash_over_round_robin",
        "simulated_round_robin",
        "simulated_hash",
        "simulated_shared",
        "simulated_hash_over_round_robin",
        "max_difference_points",
        "hop_overhead_p50_ms",
        "in_process_p50_ms",
        "requests",
    }
    assert found["second_replica_hits"] == 1
    assert found["miss_over_hit"] > 1
    # Alone, a replica misses what another one has.
    assert found["hit_rate_round_robin"] < found["hit_rate_shared"]
    assert "deployment  simulator" in capsys.readouterr().out
