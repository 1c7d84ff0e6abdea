"""Prefill and decode of a 200M random MiMo checkpoint, against transformers on the same weights.

The peer runs in the checkpoint's own dtype and again in float32, which CPUs without bfloat16 instructions multiply
faster; both are shown. Its experts run by the faster of its implementations, tried on a short prompt first.
Each peer has a process of its own, as our engine has: threads of two teams in one process slow each other down.
Ours and the peers decode in turns, so that a machine whose speed drifts is the same for all.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from llm_core.config import DecoderConfig, load_config
from llm_core.core import GenerateRequest, OutputDelta, SamplingParams
from llm_core.engine import Engine, EngineSettings
from llm_core.kv.storage import KINDS
from llm_core.weights import decoder_tensors
from llm_core.weights.mimo_v2 import MTP_PREFIX
from serve_apps.bench import format_table
from serve_apps.bench.decode_peer import (
    BATCH,
    PEER_DTYPES,
    Peer,
    Speed,
    prompt_ids,
    start_peer,
)
from serve_apps.checkpoint.initial import initial_tensor
from serve_apps.checkpoint.sizes import text_config
from serve_apps.checkpoint.tokenizer import build_tokenizer

_LONG_TOKENS = 16_384


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--peers", action="store_true", help="also run transformers on the same weights")
    parser.add_argument("--prompt-tokens", type=int, default=2048, help="length of the prefill")
    parser.add_argument("--tokens", type=int, default=32, help="tokens of each decode")
    parser.add_argument(
        "--batch-prompt-tokens",
        type=int,
        default=128,
        help="of each of sixteen sequences (default: %(default)s)",
    )
    parser.add_argument("--runs", type=int, default=3, help="runs of ours; the median counts")
    parser.add_argument(
        "--dtype", default="auto", choices=["auto", "float32", "bfloat16"], help="of our engine"
    )


def run(args: argparse.Namespace) -> dict[str, Any]:
    """Ratios under the keys of ARCHITECTURE.md; peers that did not run are null."""
    with tempfile.TemporaryDirectory() as name, ExitStack() as stack:
        folder = Path(name)
        # As a server would be: no other thread of the process has done any arithmetic (see Engine.from_checkpoint).
        with ThreadPoolExecutor(1) as writer:
            config = writer.submit(_write_checkpoint, folder).result()
        peers = [stack.enter_context(start_peer(folder, dtype, args)) for dtype in PEER_DTYPES if args.peers]
        engine = Engine.from_checkpoint(folder, _engine_settings(args))
        ours, overhead = _measure(engine, peers, args)
        speeds = {peer.label: peer.speed() for peer in peers}
        kv_ratio = _kv_bytes_ratio(engine, config)
        dtype = str(engine.model.dtype).removeprefix("torch.")
        num_parameters = engine.model.num_parameters()
    rows: list[list[object]] = [[f"mm-pipeline ({dtype})", *_columns(ours)]]
    rows += [[f"transformers ({label})", *_columns(speed)] for label, speed in speeds.items()]
    lengths = f"{args.prompt_tokens} prompt tokens, {args.batch_prompt_tokens} of each of sixteen"
    print(f"{num_parameters / 1e6:.0f}M parameters, {lengths}")
    header = ["", "prefill s", "decode tok/s", "decode x16 tok/s"]
    print(format_table(header, rows))
    if not args.peers:
        print("transformers: not run; add --peers")
    print("llama.cpp: not run; its comparison needs a GGUF export, which this project does not make yet")
    result: dict[str, Any] = {}
    for key, name in (("", "bfloat16"), ("_float32", "float32")):
        peer = next((speed for label, speed in speeds.items() if label.startswith(name)), None)
        for field, ratio in _ratios(ours, peer).items():
            result[f"{field}_ratio_transformers{key}"] = ratio
    return result | {
        "prefill_ratio_llamacpp": None,
        "decode_ratio_llamacpp": None,
        "batch16_over_single": round(ours.batch16_tokens_per_s / ours.decode_tokens_per_s, 3),
        "overhead_share": round(overhead, 4),
        "kv_bytes_ratio_16k": round(kv_ratio, 4),
        "batch_prompt_tokens": args.batch_prompt_tokens,
        "dtype": dtype,
    }


def _columns(speed: Speed) -> list[object]:
    return [speed.prefill_s, speed.decode_tokens_per_s, speed.batch16_tokens_per_s]


def _ratios(ours: Speed, peer: Speed | None) -> dict[str, float | None]:
    if peer is None:
        return dict.fromkeys(("prefill", "decode", "batch16"))
    return {
        "prefill": round(peer.prefill_s / ours.prefill_s, 3),
        "decode": round(ours.decode_tokens_per_s / peer.decode_tokens_per_s, 3),
        "batch16": round(ours.batch16_tokens_per_s / peer.batch16_tokens_per_s, 3),
    }


def _write_checkpoint(folder: Path) -> DecoderConfig:
    """The "small" text model as a V2-Flash folder: split q, k, v, which transformers reads."""
    raw = text_config("small")
    raw |= {"model_type": "mimo_v2_flash", "architectures": ["MiMoV2FlashForCausalLM"]}
    del raw["attention_projection_layout"], raw["rope_scaling"]
    # transformers knows these by names of its own.
    kinds = ("full_attention", "sliding_attention")
    factor = raw["partial_rotary_factor"]
    raw |= {
        "rms_norm_eps": raw["layernorm_epsilon"],
        "layer_types": [kinds[kind] for kind in raw["hybrid_layer_pattern"]],
        "mlp_layer_types": ["sparse" if sparse else "dense" for sparse in raw["moe_layer_freq"]],
        "rope_parameters": {
            kind: {"rope_type": "default", "rope_theta": theta, "partial_rotary_factor": factor}
            for kind, theta in zip(kinds, (raw["rope_theta"], raw["swa_rope_theta"]), strict=True)
        },
    }
    config = load_config(raw)
    tensors = {
        name: initial_tensor(name, spec.shape, spec.dtype, seed=0, num_tokens=config.vocab_size)
        for name, spec in decoder_tensors(config).items()
        if not name.startswith(MTP_PREFIX)
    }
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    (folder / "config.json").write_text(json.dumps(raw))
    build_tokenizer().save(str(folder / "tokenizer.json"))
    return config


def _engine_settings(args: argparse.Namespace) -> EngineSettings:
    return EngineSettings(
        prefix_cache=False,
        dtype=args.dtype,
        prefill_chunk_tokens=args.prompt_tokens,
        max_running=BATCH,
        kv_memory_bytes=3 << 30,
    )


def _request(name: str, prompt: tuple[int, ...], max_tokens: int) -> GenerateRequest:
    sampling = SamplingParams(temperature=0, max_tokens=max_tokens, ignore_eos=True)
    return GenerateRequest(request_id=name, token_ids=prompt, sampling=sampling)


def _measure(engine: Engine, peers: Sequence[Peer], args: argparse.Namespace) -> tuple[Speed, float]:
    """Speed through the engine's own front, and the share of a decode step that is not the model."""
    engine.start()
    try:
        prompt = prompt_ids(args.prompt_tokens, 0)
        list(engine.generate(_request("warm", prompt[:64], 4)))
        prefills, decodes, overheads, together = [], [], [], []
        for index in range(args.runs):
            begin = time.perf_counter()
            deltas = engine.generate(_request(f"single{index}", prompt, args.tokens + 1))
            next(deltas)
            first = time.perf_counter()
            prefills.append(first - begin)
            with _model_time(engine) as spent:
                for _delta in deltas:
                    pass
                elapsed = time.perf_counter() - first
            decodes.append(args.tokens / elapsed)
            overheads.append(1 - sum(spent) / elapsed)
            for peer in peers:
                peer.decode_single()
        for _ in range(args.runs):
            together.append(_measure_batch(engine, args))
            for peer in peers:
                peer.decode_batch()
    finally:
        engine.shutdown()
    speed = Speed(
        prefill_s=statistics.median(prefills),
        decode_tokens_per_s=statistics.median(decodes),
        batch16_tokens_per_s=statistics.median(together),
    )
    return speed, statistics.median(overheads)


@contextmanager
def _model_time(engine: Engine) -> Iterator[list[float]]:
    """Collects the seconds spent in the model's layers and head."""
    spent: list[float] = []
    model = engine.model
    forward, logits = model.forward, model.logits

    def timed(function: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
        def wrapper(*arguments: Any) -> torch.Tensor:
            begin = time.perf_counter()
            try:
                return function(*arguments)
            finally:
                spent.append(time.perf_counter() - begin)

        return wrapper

    object.__setattr__(model, "forward", timed(forward))
    object.__setattr__(model, "logits", timed(logits))
    try:
        yield spent
    finally:
        object.__delattr__(model, "forward")
        object.__delattr__(model, "logits")


def _measure_batch(engine: Engine, args: argparse.Namespace) -> float:
    """Tokens per second of sixteen sequences while all of them decode."""
    arrivals: dict[str, list[float]] = {f"batch{index}": [] for index in range(BATCH)}
    ended = threading.Semaphore(0)

    def receive(delta: OutputDelta) -> None:
        arrivals[delta.request_id].append(time.perf_counter())
        if delta.finish_reason is not None:
            ended.release()

    # Those prefilled first decode until the last one is.
    ahead = -(-BATCH * args.batch_prompt_tokens // args.prompt_tokens)
    num_tokens = args.tokens + ahead
    for index, name in enumerate(arrivals):
        prompt = prompt_ids(args.batch_prompt_tokens, index)
        engine.submit(_request(name, prompt, num_tokens), receive)
    for _ in range(BATCH):
        ended.acquire()
    if any(len(times) != num_tokens for times in arrivals.values()):
        raise ValueError(f"not every answer has {num_tokens} tokens; one ended early")
    begin = max(times[0] for times in arrivals.values())
    end = min(times[-1] for times in arrivals.values())
    return sum(begin < time_ <= end for times in arrivals.values() for time_ in times) / (end - begin)


def _kv_bytes_ratio(engine: Engine, config: DecoderConfig) -> float:
    """KV bytes of a 16K-token sequence over those of a cache that keeps every layer at full length.

    The sequence grows through both pools as any other, without the forward passes; its bytes are measured on the
    pools' tensors.
    """
    pool, storage = engine.pool, engine.storage
    kv = pool.begin()
    while kv.num_tokens < _LONG_TOKENS:
        pool.extend(kv, min(pool.step_tokens, _LONG_TOKENS - kv.num_tokens))
        pool.slide(kv, kv.num_tokens)
    held = storage.num_bytes("full", len(kv.full_pages)) + storage.num_bytes("swa", pool.num_swa_pages(kv))
    per_token = sum(config.attention(kind).kv_elements_per_token * config.num_layers(kind) for kind in KINDS)
    pool.free(kv)
    return held / (per_token * _LONG_TOKENS * engine.model.dtype.itemsize)
