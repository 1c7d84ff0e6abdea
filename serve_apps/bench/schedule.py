"""Mixed load on one engine: short and long prompts in compute-aware order, against first come, first served.

Both orders serve the same requests at the same moments, one order after the other, in turns. The requests come at
random (a Poisson process) at a share of what the engine manages, which is measured first.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import threading
import time
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from llm_core.core import GenerateRequest, OutputDelta, SamplingParams
from llm_core.engine import Engine, EngineSettings
from llm_core.scheduler import Policy
from serve_apps.bench import format_table
from serve_apps.checkpoint import make_checkpoint

SHORT_TOKENS = (32, 160)
LONG_TOKENS = (2048, 4096)
LONG_SHARE = 0.1
ANSWER_TOKENS = 8
POLICIES: tuple[Policy, Policy] = ("compute_aware", "fcfs")
_END_S = 300.0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--requests", type=int, default=200, help="of one round")
    parser.add_argument("--load", type=float, default=0.85, help="share of what the engine manages")
    parser.add_argument("--rounds", type=int, default=3, help="rounds of each order; the median counts")


@dataclass(frozen=True, kw_only=True)
class Arrival:
    """at_s: after the round's begin."""

    at_s: float
    token_ids: tuple[int, ...]

    @property
    def is_long(self) -> bool:
        return len(self.token_ids) >= LONG_TOKENS[0]


@dataclass(frozen=True, kw_only=True)
class Times:
    """Seconds to the first token, of all and of the long prompts only; how many never got one."""

    p50: float
    p90: float
    long_p99: float
    starved: int


def run(args: argparse.Namespace) -> dict[str, Any]:
    """Ratios under the keys of ARCHITECTURE.md; below 1 is better than first come, first served."""
    if args.requests < 20 or args.rounds < 1 or not 0 < args.load <= 2:
        raise ValueError(
            f"requests {args.requests}, rounds {args.rounds}, load {args.load}: at least 20 requests, 1 round and "
            "a load above 0 up to 2"
        )
    with tempfile.TemporaryDirectory() as name:
        with ThreadPoolExecutor(1) as writer:
            writer.submit(make_checkpoint, Path(name), "tiny").result()
        prompts = _prompts(args.requests)
        rate = args.load * _capacity(Path(name), prompts)
        rounds: dict[Policy, list[Times]] = {policy: [] for policy in POLICIES}
        for number in range(args.rounds):
            arrivals = _arrivals(prompts, rate, seed=number)
            for policy in POLICIES:
                rounds[policy].append(_serve(Path(name), arrivals, policy))
    found = {policy: _median(times) for policy, times in rounds.items()}
    print(
        f"{args.requests} requests a round, {LONG_SHARE:.0%} of them long, {rate:.2f} a second "
        f"({args.load:.0%} of what the engine manages)"
    )
    header = ["order", "TTFT p50 s", "TTFT p90 s", "long prompts' p99 s", "starved"]
    print(
        format_table(header, [[policy, t.p50, t.p90, t.long_p99, t.starved] for policy, t in found.items()])
    )
    ours, plain = (found[policy] for policy in POLICIES)
    return {
        "ttft_p90_over_fcfs": round(ours.p90 / plain.p90, 3),
        "long_p99_over_fcfs": round(ours.long_p99 / plain.long_p99, 3),
        "starved": ours.starved,
        "requests": args.requests,
        "load": args.load,
    }


def _prompts(count: int) -> list[tuple[int, ...]]:
    rng = np.random.default_rng(1)
    is_long = np.arange(count) < round(LONG_SHARE * count)
    rng.shuffle(is_long)
    lengths = [int(rng.integers(*(LONG_TOKENS if long else SHORT_TOKENS))) for long in is_long]
    return [tuple(rng.integers(0, 256, length).tolist()) for length in lengths]


def _arrivals(prompts: Sequence[tuple[int, ...]], rate: float, seed: int) -> list[Arrival]:
    gaps = np.random.default_rng([2, seed]).exponential(1 / rate, len(prompts))
    return [
        Arrival(at_s=float(at_s), token_ids=prompt)
        for at_s, prompt in zip(np.cumsum(gaps), prompts, strict=True)
    ]


def _engine(folder: Path, policy: Policy) -> Engine:
    # What a long prompt costs is to be run: a hit would hide it.
    settings = EngineSettings(scheduling=policy, prefix_cache=False, max_queued=100_000)
    engine = Engine.from_checkpoint(folder, settings)
    engine.start()
    return engine


def _capacity(folder: Path, prompts: Sequence[tuple[int, ...]]) -> float:
    """Requests a second when all of them are there at once."""
    arrivals = [Arrival(at_s=0.0, token_ids=prompt) for prompt in prompts]
    begun = time.perf_counter()
    _serve(folder, arrivals, "fcfs")
    return len(prompts) / (time.perf_counter() - begun)


def _serve(folder: Path, arrivals: Sequence[Arrival], policy: Policy) -> Times:
    """Serves one round on an engine of its own."""
    engine = _engine(folder, policy)
    first_s: dict[str, float] = {}
    ended = threading.Semaphore(0)
    submitted_s: list[float] = []

    def receive(delta: OutputDelta) -> None:
        if delta.token_ids:
            first_s.setdefault(delta.request_id, time.perf_counter())
        if delta.finish_reason is not None:
            ended.release()

    sampling = SamplingParams(temperature=0, max_tokens=ANSWER_TOKENS, ignore_eos=True)
    try:
        begun = time.perf_counter()
        for number, arrival in enumerate(arrivals):
            time.sleep(max(0.0, begun + arrival.at_s - time.perf_counter()))
            submitted_s.append(time.perf_counter())
            request = GenerateRequest(request_id=str(number), token_ids=arrival.token_ids, sampling=sampling)
            engine.submit(request, receive)
        for _ in arrivals:
            ended.acquire(timeout=_END_S)
    finally:
        engine.shutdown()
    waits = {
        number: first_s[str(number)] - submitted
        for number, submitted in enumerate(submitted_s)
        if str(number) in first_s
    }
    long = [wait for number, wait in waits.items() if arrivals[number].is_long]
    return Times(
        p50=_percentile(waits.values(), 50),
        p90=_percentile(waits.values(), 90),
        long_p99=_percentile(long, 99),
        starved=len(arrivals) - len(waits),
    )


def _percentile(values: Iterable[float], share: float) -> float:
    return float(np.percentile(list(values), share))


def _median(rounds: Sequence[Times]) -> Times:
    return Times(
        p50=statistics.median(times.p50 for times in rounds),
        p90=statistics.median(times.p90 for times in rounds),
        long_p99=statistics.median(times.long_p99 for times in rounds),
        starved=sum(times.starved for times in rounds),
    )
