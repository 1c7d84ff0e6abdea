"""The experts of a mixture-of-experts layer: SwiGLU, weighted and summed per token."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kernels.experts.base import ExpertsOp

BACKENDS = ("reference", "cpu")


def create_experts(backend: str) -> ExpertsOp:
    """The op of a backend.

    Raises:
        ValueError: an unknown backend.
    """
    if backend == "reference":
        from kernels.experts.reference import experts

        return experts
    if backend == "cpu":
        from kernels.experts.cpu import experts as cpu_experts

        return cpu_experts
    raise ValueError(f"no experts backend {backend!r}; there are {', '.join(BACKENDS)}")
