"""Root-mean-square normalisation."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kernels.norm.base import NormOp

BACKENDS = ("reference", "cpu")


def create_norm(backend: str) -> NormOp:
    """The op of a backend.

    Raises:
        ValueError: an unknown backend.
    """
    if backend == "reference":
        from kernels.norm.reference import rms_norm

        return rms_norm
    if backend == "cpu":
        from kernels.norm.cpu import rms_norm as cpu_rms_norm

        return cpu_rms_norm
    raise ValueError(f"no norm backend {backend!r}; there are {', '.join(BACKENDS)}")
