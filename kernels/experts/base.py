"""The one signature of the experts op.

Shape suffixes: T tokens, H hidden, E experts, I expert width, K experts per token.
"""

from __future__ import annotations

from typing import Protocol

from torch import Tensor


class ExpertsOp(Protocol):
    def __call__(
        self,
        x_TH: Tensor,
        gate_up_E2IH: Tensor,
        down_EHI: Tensor,
        weights_TK: Tensor,
        ids_TK: Tensor,
    ) -> Tensor:
        """sum_k weights[t, k] * down[e] (silu(gate[e] x[t]) * up[e] x[t]), e = ids[t, k].

        Args:
            x_TH: [T, H], float32 or the weights' dtype.
            gate_up_E2IH: [E, 2 * I, H], gate rows before up rows; float32 or bfloat16.
            down_EHI: [E, H, I].
            weights_TK: [T, K] float32.
            ids_TK: [T, K] int64, distinct within a row.

        Returns:
            [T, H] in x's dtype.
        """
        ...
