"""The device operations one model runs on, all of one backend."""

from __future__ import annotations

from dataclasses import dataclass

from kernels.attention import create_attention
from kernels.attention.base import AttentionOps
from kernels.experts import create_experts
from kernels.experts.base import ExpertsOp
from kernels.linear import create_linear
from kernels.linear.base import LinearOp
from kernels.norm import create_norm
from kernels.norm.base import NormOp


@dataclass(frozen=True, kw_only=True)
class Ops:
    attention: AttentionOps
    experts: ExpertsOp
    linear: LinearOp
    norm: NormOp


def create_ops(backend: str) -> Ops:
    """Every operation in a backend's form.

    Raises:
        ValueError: an unknown backend.
    """
    return Ops(
        attention=create_attention(backend),
        experts=create_experts(backend),
        linear=create_linear(backend),
        norm=create_norm(backend),
    )
