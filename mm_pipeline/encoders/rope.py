"""Rotary position embedding with half-split pairs. Knows angles, not what they stand for."""

from __future__ import annotations

from typing import NamedTuple

import torch


class Rope(NamedTuple):
    """cos and sin, float32 [T, 1, D]."""

    cos: torch.Tensor
    sin: torch.Tensor


def rope_of(angles: torch.Tensor) -> Rope:
    """From float32 angles [T, D / 2]; dimension i pairs with i + D / 2."""
    both = torch.cat([angles, angles], dim=1)[:, None]
    return Rope(both.cos(), both.sin())


def rotate(x: torch.Tensor, rope: Rope) -> torch.Tensor:
    """x: [T, heads, D]. Computed in float32, returned in x's dtype."""
    wide = x.float()
    first, second = wide.chunk(2, dim=-1)
    return (wide * rope.cos + torch.cat([-second, first], dim=-1) * rope.sin).to(x.dtype)
