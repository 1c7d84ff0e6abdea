"""Paged causal attention with grouped heads, windows and sinks: prefill over a cached prefix, and decode."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kernels.attention.base import AttentionOps

BACKENDS = ("reference", "cpu")


def create_attention(backend: str) -> AttentionOps:
    """The prefill and decode ops of a backend.

    Raises:
        ValueError: an unknown backend.
    """
    from kernels.attention.base import AttentionOps

    if backend == "reference":
        from kernels.attention import reference

        return AttentionOps(prefill=reference.attention, decode=reference.attention)
    if backend == "cpu":
        from kernels.attention import cpu

        return AttentionOps(prefill=cpu.prefill, decode=cpu.decode)
    raise ValueError(f"no attention backend {backend!r}; there are {', '.join(BACKENDS)}")
