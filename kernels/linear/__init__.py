"""A bias-free linear map whose weights may be stored narrower than its input."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kernels.linear.base import LinearOp

BACKENDS = ("reference", "cpu")


def create_linear(backend: str) -> LinearOp:
    """The op of a backend.

    Raises:
        ValueError: an unknown backend.
    """
    if backend == "reference":
        from kernels.linear.reference import linear

        return linear
    if backend == "cpu":
        from kernels.linear.cpu import linear as cpu_linear

        return cpu_linear
    raise ValueError(f"no linear backend {backend!r}; there are {', '.join(BACKENDS)}")
