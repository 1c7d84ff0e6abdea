"""The one signature of the linear op."""

from __future__ import annotations

from typing import Protocol

from torch import Tensor


class LinearOp(Protocol):
    def __call__(self, x_RI: Tensor, weight_OI: Tensor) -> Tensor:
        """x W^T.

        Args:
            x_RI: [R, I], float32 or the weights' dtype.
            weight_OI: [O, I], float32 or bfloat16.

        Returns:
            [R, O] in x's dtype. With bfloat16 weights and float32 input a backend may round x to bfloat16.
        """
        ...
