"""The embedding cache of three encoder replicas: hit rates by router, hits against misses, and what Serve adds.

Replays one trace of pictures with Zipf popularity through the encoder deployment and through a simulator. Makes a
small checkpoint itself unless one is given.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import statistics
import tempfile
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from mm_pipeline.image import ImageSettings, preprocess_image
from mm_pipeline.limits import MediaLimits
from serve_apps.bench import cache_deployment as deployment
from serve_apps.bench import format_table
from serve_apps.bench.cache_deployment import Hops, Latencies
from serve_apps.bench.cache_trace import Route, consistent_hash, hit_rate, one_store, round_robin, zipf_trace
from serve_apps.checkpoint import make_checkpoint
from serve_apps.deployments.backend import RayBackend
from serve_apps.deployments.encoder import Encoder
from serve_apps.settings import Router, ServerSettings, StoreScope

_NUM_REPLICAS = 3
_NUM_ITEMS = 1000
_EXPONENT = 1.0
_STORED_SHARE = 0.2
_CLIENTS = 4
# In steps of 32 pixels a side, one token each, so that nothing is resized.
_TRACE_TOKENS = (3, 6)
_LARGE_TOKENS = 32
_NUM_LARGE, _LATER_REQUESTS = 7, 7
_NUM_SHARED = 20
_NUM_HOPS = 120
_BYTES_PER_VALUE = 4


@dataclass(frozen=True, kw_only=True)
class Case:
    """One way to run the encoders. route: the same for the simulator. num_stores: that share the memory equally."""

    key: str
    name: str
    router: Router
    scope: StoreScope
    route: Route
    num_stores: int


@dataclass(frozen=True, kw_only=True)
class Answers:
    """What is measured beside the trace, with the settings that users get."""

    latencies: Latencies
    second_replica_hits: float
    hops: Hops


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options of `mmserve bench cache`."""
    parser.add_argument("--checkpoint", type=Path, help="folder in hub format (default: a tiny random one)")
    parser.add_argument("--requests", type=int, default=1000, help="in the trace (default: %(default)s)")


def run(args: argparse.Namespace) -> dict[str, Any]:
    """Prints a table. Hit rates count the whole trace, from empty stores that hold a fifth of its pictures' bytes:
    `hit_rate_hash` and `hit_rate_round_robin` with a third of the memory for each replica alone, `hit_rate_shared`
    with one store; `simulated_*` are the simulator's. `miss_over_hit`: a picture of 1024 px.
    `hop_overhead_p50_ms`: a cached picture through Serve, less the same call in this process.

    Raises ValueError for fewer than one request, and for a checkpoint that cannot be read.
    """
    if args.requests < 1:
        raise ValueError(f"requests is {args.requests}; it must be at least 1")
    cases = _cases()
    trace = zipf_trace(_NUM_ITEMS, args.requests, _EXPONENT, seed=0)
    pictures = _pictures()
    with tempfile.TemporaryDirectory() as scratch:
        folder = args.checkpoint
        if folder is None:
            folder = Path(scratch) / "tiny"
            make_checkpoint(folder, "tiny")
        item_bytes = _embedding_bytes(pictures, folder)
        store_bytes = int(_STORED_SHARE * sum(item_bytes))
        measured, answers = _measure(cases, folder, store_bytes, pictures, trace)
    simulated = {
        case.key: hit_rate(trace, case.route, item_bytes, [store_bytes // case.num_stores] * case.num_stores)
        for case in cases
    }
    result = _result(measured, simulated, answers) | {"requests": args.requests}
    _print_tables(cases, measured, simulated, result)
    return result


def _cases() -> list[Case]:
    by_content, in_turns = consistent_hash(_NUM_ITEMS, _NUM_REPLICAS), round_robin(_NUM_REPLICAS)
    return [
        Case(
            key="round_robin",
            name="in turns, each replica for itself",
            router="round-robin",
            scope="replica",
            route=in_turns,
            num_stores=_NUM_REPLICAS,
        ),
        Case(
            key="hash",
            name="by content, each replica for itself",
            router="hash",
            scope="replica",
            route=by_content,
            num_stores=_NUM_REPLICAS,
        ),
        Case(
            key="shared",
            name="by content, all replicas share",
            router="hash",
            scope="cluster",
            route=one_store,
            num_stores=1,
        ),
    ]


def _measure(
    cases: Sequence[Case], folder: Path, store_bytes: int, pictures: Sequence[bytes], trace: Sequence[int]
) -> tuple[dict[str, float], Answers]:
    """Hit rates by case, and the rest in the last one."""
    base = ServerSettings(
        checkpoint=folder,
        num_encoders=_NUM_REPLICAS,
        decoder_workers=1,
        # The replicas share the cores instead of taking each other's.
        num_threads=max(1, (os.cpu_count() or 1) // _NUM_REPLICAS),
        embedding_store_bytes=store_bytes,
    ).resolved()
    measured = {}
    with deployment.running_ray():
        for case in cases:
            settings = replace(base, router=case.router, embedding_store_scope=case.scope)
            with deployment.running_encoders(settings, f"encoders-{case.key}") as encoders:
                backend = deployment.backend_of(encoders)
                measured[case.key] = asyncio.run(deployment.replay(backend, pictures, trace, _CLIENTS))
                print(f"{case.name}: {100 * measured[case.key]:.1f} % hits", flush=True)
                if case is cases[-1]:
                    answers = _answers(backend, encoders, settings)
    return measured, answers


def _answers(backend: RayBackend, encoders: deployment.Handle, settings: ServerSettings) -> Answers:
    # In the main thread, where it may set signal handlers.
    with closing(Encoder(settings)) as encoder:
        return asyncio.run(_ask(backend, encoders, encoder))


async def _ask(backend: RayBackend, encoders: deployment.Handle, encoder: Encoder) -> Answers:
    rng = np.random.default_rng(1)
    large = [_picture(rng, _LARGE_TOKENS, _LARGE_TOKENS) for _ in range(_NUM_LARGE)]
    small = [_picture(rng, _TRACE_TOKENS[1], _TRACE_TOKENS[1]) for _ in range(_NUM_SHARED)]
    return Answers(
        latencies=await deployment.first_and_later(backend, large, _LATER_REQUESTS),
        second_replica_hits=await deployment.second_replica_hits(encoders, small),
        hops=await deployment.hops(backend, encoder, large[-1], _NUM_HOPS),
    )


def _result(measured: dict[str, float], simulated: dict[str, float], answers: Answers) -> dict[str, Any]:
    miss_ms, hit_ms, through_serve_ms, in_process_ms = (
        1000 * statistics.median(seconds)
        for seconds in (
            answers.latencies.misses_s,
            answers.latencies.hits_s,
            answers.hops.through_serve_s,
            answers.hops.in_process_s,
        )
    )
    return {
        "miss_over_hit": round(miss_ms / hit_ms, 2),
        "miss_p50_ms": round(miss_ms, 2),
        "hit_p50_ms": round(hit_ms, 2),
        "second_replica_hits": answers.second_replica_hits,
        **{f"hit_rate_{key}": round(rate, 4) for key, rate in measured.items()},
        "hash_over_round_robin": round(measured["hash"] / measured["round_robin"], 3),
        **{f"simulated_{key}": round(rate, 4) for key, rate in simulated.items()},
        "simulated_hash_over_round_robin": round(simulated["hash"] / simulated["round_robin"], 3),
        "max_difference_points": round(100 * max(abs(measured[key] - simulated[key]) for key in measured), 2),
        "hop_overhead_p50_ms": round(through_serve_ms - in_process_ms, 2),
        "in_process_p50_ms": round(in_process_ms, 2),
    }


def _print_tables(
    cases: Sequence[Case], measured: dict[str, float], simulated: dict[str, float], result: dict[str, Any]
) -> None:
    print(
        f"{result['requests']} requests for {_NUM_ITEMS} pictures, Zipf with s = {_EXPONENT:g}; memory for "
        f"{100 * _STORED_SHARE:.0f} % of their embeddings; {_NUM_REPLICAS} replicas; share of hits"
    )
    rows = [[case.name, measured[case.key], simulated[case.key]] for case in cases]
    print(format_table(["router and store", "deployment", "simulator"], rows))
    side = 32 * _LARGE_TOKENS
    answers: list[list[object]] = [
        [f"a picture of {side} px, encoded", result["miss_p50_ms"]],
        ["the same from the store", result["hit_p50_ms"]],
        ["the same from the store, without Serve", result["in_process_p50_ms"]],
        ["what Serve adds", result["hop_overhead_p50_ms"]],
    ]
    print(format_table(["median of answers", "ms"], answers))
    print(
        f"by content over in turns: {result['hash_over_round_robin']:.2f}x hits; encoded over stored: "
        f"{result['miss_over_hit']:.1f}x time; second replica's first request a hit: "
        f"{100 * result['second_replica_hits']:.0f} %"
    )


def _pictures() -> list[bytes]:
    rng = np.random.default_rng(0)
    low, high = _TRACE_TOKENS
    return [_picture(rng, *(int(side) for side in rng.integers(low, high + 1, 2))) for _ in range(_NUM_ITEMS)]


def _picture(rng: np.random.Generator, rows: int, columns: int) -> bytes:
    """A JPEG of smooth random colours, rows x columns tokens."""
    coarse = rng.integers(0, 256, (rows + 1, columns + 1, 3)).astype(np.uint8)
    image = Image.fromarray(coarse).resize((32 * columns, 32 * rows), Image.Resampling.BICUBIC)
    buffer = BytesIO()
    image.save(buffer, "JPEG", quality=90)
    return buffer.getvalue()


def _embedding_bytes(pictures: Sequence[bytes], folder: Path) -> list[int]:
    """What each picture's embeddings take in the store."""
    config = json.loads((folder / "config.json").read_text())
    settings, limits = ImageSettings.from_config(config), MediaLimits()
    row_bytes = _BYTES_PER_VALUE * int(config["hidden_size"])
    return [row_bytes * preprocess_image(picture, settings, limits).num_tokens for picture in pictures]
