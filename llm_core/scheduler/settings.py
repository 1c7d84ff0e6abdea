"""How a scheduler orders and cuts its work."""

from __future__ import annotations

from dataclasses import dataclass

from llm_core.scheduler.queue import Policy


@dataclass(frozen=True, kw_only=True)
class SchedulerSettings:
    """Settings of one scheduler.

    Attributes:
        max_running: most sequences at once.
        step_tokens: most tokens of one step. Decodes go first; prompts get the rest, at least one page.
        policy: see `Queue`; "fcfs" is first come, first served.
        waiting_credit: tokens that a second of waiting makes up for, in the compute-aware order.
        priority_tokens: tokens that one level of a request's priority counts for.
        prefix_cache: whether prompts that begin alike share their pages.
        window_stride: a window is kept after every so many tokens of a short prompt.
        short_prompt_tokens: longest prompt that counts as short.
        bucket_bounds: contexts up to the first bound, up to the second and so on are not prefilled in one step.
    """

    max_running: int = 64
    step_tokens: int = 512
    policy: Policy = "compute_aware"
    waiting_credit: float = 200.0
    priority_tokens: int = 100_000
    prefix_cache: bool = True
    window_stride: int = 512
    short_prompt_tokens: int = 8192
    bucket_bounds: tuple[int, ...] = (65_536, 262_144)
