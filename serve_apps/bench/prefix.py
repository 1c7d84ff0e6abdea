"""The prefix cache under made-up conversations: what it finds, what must run again, and what the KV pools hold.

One request at a time, on a random model, with room on the device for a share of all that is said. Some turns are
asked again of an engine without the cache: answers must be the same, and the times to the first token are compared.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args

import torch

from llm_core.config import DecoderConfig, load_config
from llm_core.core import EmbedSpan, GenerateRequest, SamplingParams
from llm_core.engine import Engine, EngineSettings
from llm_core.kv.dual import DualPool
from llm_core.kv.storage import KINDS, page_bytes
from llm_core.kv.tiers.settings import TierPolicy, TierSettings
from serve_apps.bench import format_table
from serve_apps.bench.prefix_load import measure_load
from serve_apps.bench.prefix_trace import (
    PICTURE_TOKENS,
    TRACES,
    Ideal,
    Session,
    make_sessions,
    order_of_turns,
)
from serve_apps.checkpoint import make_checkpoint

ANSWER_TOKENS = 8
LONG_TOKENS = 32_768
_SWA_LENGTHS = (1024, 4096, 16_384, 65_536)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--trace", choices=sorted(TRACES), default="agentic")
    parser.add_argument(
        "--device-share", type=float, default=0.3, help="of all that is said, kept on the device"
    )
    parser.add_argument("--host-mib", type=int, default=1024, help="of host memory below it; 0 for none")
    parser.add_argument(
        "--tier-policy", choices=get_args(TierPolicy), default="write_back", help="(default: %(default)s)"
    )
    parser.add_argument("--compared", type=int, default=30, help="later turns asked again without the cache")
    parser.add_argument("--sessions", type=int, default=0, help="how many; 0 takes the trace's own number")


@dataclass(frozen=True, kw_only=True)
class Asked:
    """One turn as it was asked. ideal: tokens that a cache without bounds would have had."""

    request: GenerateRequest
    turn: int
    ttft_s: float
    cached: int
    ideal: int
    answer: tuple[int, ...]


def run(args: argparse.Namespace) -> dict[str, Any]:
    """Numbers under the keys of ARCHITECTURE.md."""
    if not 0 < args.device_share <= 1 or args.compared < 1 or min(args.sessions, args.host_mib) < 0:
        raise ValueError(
            f"device share {args.device_share}, compared {args.compared}, sessions {args.sessions}, host MiB "
            f"{args.host_mib}: a share above 0 up to 1, at least 1 compared turn and nothing negative"
        )
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        with ThreadPoolExecutor(1) as writer:
            writer.submit(make_checkpoint, folder, "tiny").result()
        config = load_config(folder)
        sessions = make_sessions(TRACES[args.trace], seed=0)[: args.sessions or None]
        tiers = TierSettings(host_bytes=args.host_mib << 20, policy=args.tier_policy)
        asked, engine = _talk(folder, config, sessions, args.device_share, tiers)
        later = [one for one in asked if one.turn > 1] or asked
        compared = later[:: max(1, len(later) // args.compared)]
        without = _again(folder, compared)
    cached, ideal = sum(one.cached for one in asked), sum(one.ideal for one in asked)
    prompt = sum(len(one.request.token_ids) for one in asked)
    stats = engine.stats()
    with_s = statistics.median(one.ttft_s for one in later)
    without_s = statistics.median(without)
    print(f"{args.trace}: {len(sessions)} sessions, {len(asked)} turns, {prompt} prompt tokens")
    size = engine.settings.page_size
    rows: list[list[object]] = [
        ["could be cached, tokens", ideal],
        ["was cached, tokens", cached],
        ["ran again, tokens", ideal - cached],
        [
            "full pages held, MB",
            stats.full_pages_cached * page_bytes(config, "full", size, engine.model.dtype) / 1e6,
        ],
        [
            "SWA pages held, MB",
            stats.swa_pages_cached * page_bytes(config, "swa", size, engine.model.dtype) / 1e6,
        ],
        ["host memory held, MB", stats.tiers.host_bytes / 1e6],
        ["pages that came back from it", stats.tiers.pages_from_host],
        ["TTFT p50 of later turns, ms", with_s * 1e3],
        ["... without the cache, ms", without_s * 1e3],
    ]
    print(format_table(["", args.trace], rows))
    load = measure_load()
    print(
        f"{load.bytes_per_s * load.copy_s / 1e6:.1f} MB from host memory at {load.bytes_per_s / 1e6:.0f} MB/s: "
        f"copy {load.copy_s * 1e3:.0f} ms, step {load.resident_s * 1e3:.0f} ms, both {load.loading_s * 1e3:.0f} ms"
    )
    return {
        "trace": args.trace,
        "hit_rate": round(cached / ideal, 4) if ideal else None,
        "later_turn_ttft_ratio": round(without_s / with_s, 2),
        "recomputed_tokens": ideal - cached,
        "kv_bytes_ratio_32k": round(kv_bytes_ratio(config, LONG_TOKENS), 4),
        "swa_bytes_constant": len({_swa_pages(config, length) for length in _SWA_LENGTHS}) == 1,
        "hidden_copy_share": round(load.hidden_share, 3),
        "preemptions": stats.num_preemptions,
    }


def kv_bytes_ratio(config: DecoderConfig, num_tokens: int, page_size: int = 16) -> float:
    """KV bytes of a sequence in the two pools over those of a cache that keeps every layer at full length.

    With F and S elements per token of all full and all sliding layers, N tokens and w tokens in window pages:
    (N F + w S) / (N (F + S)).
    """
    per_token = {
        kind: config.attention(kind).kv_elements_per_token * config.num_layers(kind) for kind in KINDS
    }
    held = num_tokens * per_token["full"] + page_size * _swa_pages(config, num_tokens) * per_token["swa"]
    return held / (num_tokens * sum(per_token.values()))


def _swa_pages(config: DecoderConfig, num_tokens: int, page_size: int = 16) -> int:
    """SWA pages of a sequence that grew to this length, in chunks, through the pools."""
    pages = -(-num_tokens // page_size)
    pool = DualPool(
        num_full_pages=pages,
        num_swa_pages=pages,
        page_size=page_size,
        window_keys=config.swa.window_keys or 1,
        step_tokens=512,
    )
    kv = pool.begin()
    while kv.num_tokens < num_tokens:
        pool.extend(kv, min(512, num_tokens - kv.num_tokens))
        pool.slide(kv, kv.num_tokens)
    return pool.num_swa_pages(kv)


def _talk(
    folder: Path,
    config: DecoderConfig,
    sessions: Sequence[Session],
    share: float,
    tiers: TierSettings,
) -> tuple[list[Asked], Engine]:
    """All turns in their shuffled order; and the engine, which is shut down, for its statistics."""
    pictures = _Pictures(config.hidden_size)
    device_bytes = int(share * _bytes_of_everything(config, sessions))
    engine = _engine(folder, device_bytes, prefix_cache=True, tiers=tiers)
    ideal = Ideal(engine.settings.page_size)
    asked = []
    try:
        for number, session in enumerate(order_of_turns(sessions, seed=0)):
            session.speak()
            request = _request(str(number), session, pictures)
            ttft_s, cached, answer = _ask(engine, request)
            session.token_ids += answer
            known = ideal.meet(session.token_ids, request.spans, len(request.token_ids))
            asked.append(
                Asked(
                    request=request,
                    turn=session.num_turns,
                    ttft_s=ttft_s,
                    cached=cached,
                    ideal=known,
                    answer=answer,
                )
            )
    finally:
        engine.shutdown()
    return asked, engine


def _again(folder: Path, asked: Sequence[Asked]) -> list[float]:
    """Seconds to the first token of these requests without the cache. Raises ValueError for another answer."""
    engine = _engine(folder, 1 << 30, prefix_cache=False, tiers=TierSettings())
    try:
        times = []
        for one in asked:
            ttft_s, _, answer = _ask(engine, one.request)
            if answer != one.answer:
                raise ValueError(f"request {one.request.request_id} is answered otherwise with the cache")
            times.append(ttft_s)
        return times
    finally:
        engine.shutdown()


def _engine(folder: Path, kv_memory_bytes: int, *, prefix_cache: bool, tiers: TierSettings) -> Engine:
    settings = EngineSettings(
        dtype="float32",
        kv_memory_bytes=kv_memory_bytes,
        prefix_cache=prefix_cache,
        max_running=4,
        tiers=tiers,
    )
    engine = Engine.from_checkpoint(folder, settings)
    engine.start()
    return engine


def _bytes_of_everything(config: DecoderConfig, sessions: Sequence[Session]) -> int:
    """KV of all that will have been said, shared beginnings once, as full pages and one window per session."""
    shared = {tuple(session.token_ids[:16]): len(session.token_ids) for session in sessions}
    said = sum(
        len(turn.token_ids) + ANSWER_TOKENS + (PICTURE_TOKENS if turn.picture else 0)
        for session in sessions
        for turn in session.said
    )
    tokens = sum(shared.values()) + said
    window = (config.swa.window_keys or 1) * len(sessions)
    return tokens * page_bytes(config, "full", 1, torch.float32) + window * page_bytes(
        config, "swa", 1, torch.float32
    )


def _request(name: str, session: Session, pictures: _Pictures) -> GenerateRequest:
    return GenerateRequest(
        request_id=name,
        token_ids=tuple(session.token_ids),
        spans=tuple(
            EmbedSpan(
                start=start, length=PICTURE_TOKENS, content_key=picture, embeddings=pictures.of(picture)
            )
            for start, picture in session.pictures
        ),
        sampling=SamplingParams(temperature=0, max_tokens=ANSWER_TOKENS, ignore_eos=True),
    )


def _ask(engine: Engine, request: GenerateRequest) -> tuple[float, int, tuple[int, ...]]:
    """Seconds to the first token, prompt tokens from the cache, and the answer."""
    begun, first_s, cached = time.perf_counter(), 0.0, 0
    answer: list[int] = []
    for delta in engine.generate(request):
        if delta.token_ids and not answer:
            first_s = time.perf_counter() - begun
        answer += delta.token_ids
        cached = delta.num_cached_tokens
    return first_s, cached, tuple(answer)


class _Pictures:
    """Random embeddings, the same for the same name."""

    def __init__(self, hidden_size: int) -> None:
        self._hidden_size = hidden_size
        self._made: dict[str, torch.Tensor] = {}

    def of(self, name: str) -> torch.Tensor:
        if name not in self._made:
            generator = torch.Generator().manual_seed(len(self._made))
            self._made[name] = torch.randn(PICTURE_TOKENS, self._hidden_size, generator=generator)
        return self._made[name]
