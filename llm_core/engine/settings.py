"""How an engine runs, and how its memory is divided."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from llm_core.kv.tiers.settings import TierSettings, TierStats
from llm_core.scheduler import Policy

Dtype = Literal["auto", "float32", "bfloat16"]


@dataclass(frozen=True, kw_only=True)
class EngineSettings:
    """Settings of one engine.

    Attributes:
        dtype: of weights, activations and KV. "auto" is bfloat16 on a GPU and on CPUs with bfloat16 matrix
            instructions; on other CPUs it keeps the weights in bfloat16 and computes in float32.
        device: torch device.
        backend: of the attention and experts ops.
        max_context: most tokens of prompt and answer together; 0 takes the model's. Never more than the KV holds.
        kv_memory_bytes: for both pools together.
        page_size: tokens per KV page.
        max_running: most sequences decoded at once.
        max_queued: most requests that wait; one more is refused with a retry time.
        prefill_chunk_tokens: most tokens per step; prompts get what the answers leave.
        prefix_cache: whether prompts that begin alike share their keys and values.
        scheduling: "compute_aware" takes first what has least to run, with a credit for waiting; "fcfs" first come,
            first served.
        waiting_credit: tokens that a second of waiting makes up for.
        prefix_window_stride: tokens between the places where a short prompt can be gone on from by others.
        tiers: where pages go that the device has no room for.
        check_invariants: assert after each step that the pools' accounting is exact (slow; for tests).
    """

    dtype: Dtype = "auto"
    device: str = "cpu"
    backend: str = "cpu"
    max_context: int = 0
    kv_memory_bytes: int = 1 << 30
    page_size: int = 16
    max_running: int = 64
    max_queued: int = 256
    prefill_chunk_tokens: int = 512
    prefix_cache: bool = True
    scheduling: Policy = "compute_aware"
    waiting_credit: float = 200.0
    prefix_window_stride: int = 512
    tiers: TierSettings = field(default_factory=TierSettings)
    check_invariants: bool = False

    def __post_init__(self) -> None:
        for name in (
            "kv_memory_bytes",
            "page_size",
            "max_running",
            "max_queued",
            "prefill_chunk_tokens",
            "prefix_window_stride",
        ):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} is {getattr(self, name)}; it must be at least 1")
        if self.waiting_credit <= 0:
            raise ValueError(
                f"waiting_credit is {self.waiting_credit}; it must be more than 0, or nobody is sure to run"
            )
        if self.tiers.host_bytes and not self.prefix_cache:
            raise ValueError("the KV tiers keep prefixes: they need prefix_cache")
        if self.max_context < 0:
            raise ValueError(f"max_context is {self.max_context}; it must be 0 (the model's) or more")


@dataclass(frozen=True, kw_only=True)
class EngineStats:
    """A reading of the engine, consistent in itself.

    Pages used are those of requests under way; cached ones are kept for later, as long as nobody needs the room.
    """

    num_running: int
    num_waiting: int
    num_finished: int
    num_steps: int
    full_pages_used: int
    full_pages_total: int
    swa_pages_used: int
    swa_pages_total: int
    kv_bytes_used: int
    full_pages_cached: int
    swa_pages_cached: int
    num_preemptions: int
    num_prompt_tokens: int
    num_cached_tokens: int
    tiers: TierStats = field(default_factory=TierStats)
