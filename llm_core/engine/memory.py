"""Divides the KV memory between the two pools."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from llm_core.config import DecoderConfig
from llm_core.engine.settings import EngineSettings
from llm_core.kv.storage import page_bytes

# The prefix cache may keep a window for each so many tokens that it keeps.
_TOKENS_PER_WINDOW = 2048


@dataclass(frozen=True, kw_only=True)
class MemoryPlan:
    """Pages of each pool, and the longest context they allow."""

    num_full_pages: int
    num_swa_pages: int
    max_context: int


def plan_memory(config: DecoderConfig, settings: EngineSettings, dtype: torch.dtype) -> MemoryPlan:
    """SWA pages for every running sequence's bound, but at most half of the memory; full pages get the rest, with a
    window to keep for every so many of them.

    The full pool gets no more than `max_running` sequences of the longest context can use.

    Raises:
        ValueError: too little memory for one sequence's window.
    """
    size = settings.page_size
    window = config.swa.window_keys or 1
    context = min(config.max_context, settings.max_context or config.max_context)
    pages_per_context = -(-context // size)
    window_pages = -(-(window - 1) // size)
    chunk_pages = -(-(settings.prefill_chunk_tokens - 1) // size)
    swa_per_sequence = min(window_pages + 1 + chunk_pages, pages_per_context)
    kept_per_page = window_pages * size / _TOKENS_PER_WINDOW if settings.prefix_cache else 0.0
    # A model without layers of a kind still counts its pages, at no cost.
    full_bytes = max(1, page_bytes(config, "full", size, dtype))
    swa_bytes = max(1, page_bytes(config, "swa", size, dtype))
    swa_share = settings.kv_memory_bytes // 2
    num_swa = min(swa_per_sequence * settings.max_running, swa_share // swa_bytes)
    rest = settings.kv_memory_bytes - num_swa * swa_bytes
    num_full = min(
        pages_per_context * settings.max_running, int(rest / (full_bytes + kept_per_page * swa_bytes))
    )
    num_swa += int(num_full * kept_per_page)
    if num_swa < swa_per_sequence or num_full < 1:
        need = 2 * swa_per_sequence * swa_bytes + full_bytes
        raise ValueError(
            f"kv_memory_bytes is {settings.kv_memory_bytes}; one sequence of this model needs at least {need} "
            f"with prefill_chunk_tokens {settings.prefill_chunk_tokens}: raise the memory or lower the chunk"
        )
    return MemoryPlan(
        num_full_pages=num_full, num_swa_pages=num_swa, max_context=min(context, num_full * size)
    )


@dataclass(frozen=True, kw_only=True)
class Dtypes:
    """Of activations and KV, and of the weight matrices."""

    activations: torch.dtype
    weights: torch.dtype


def resolve_dtypes(settings: EngineSettings) -> Dtypes:
    """What the settings' dtype stands for on this device."""
    if settings.dtype == "float32":
        return Dtypes(activations=torch.float32, weights=torch.float32)
    is_slow_bf16 = False
    if settings.dtype == "auto" and torch.device(settings.device).type == "cpu":
        capabilities = torch.cpu.get_capabilities()
        is_slow_bf16 = not (capabilities.get("amx_bf16") or capabilities.get("avx512_bf16"))
    activations = torch.float32 if is_slow_bf16 else torch.bfloat16
    return Dtypes(activations=activations, weights=torch.bfloat16)
