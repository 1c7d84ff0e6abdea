"""The one signature of the norm op."""

from __future__ import annotations

from typing import Protocol

from torch import Tensor


class NormOp(Protocol):
    def __call__(self, x_RH: Tensor, weight_H: Tensor, eps: float) -> Tensor:
        """w * x / sqrt(mean(x^2) + eps) of each row, computed in float32 and rounded to x's dtype before the gain.

        Args:
            x_RH: [R, H].
            weight_H: [H], in x's dtype.

        Returns:
            [R, H] in x's dtype.
        """
        ...
