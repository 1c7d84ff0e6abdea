"""The definition of the experts op: every chosen pair of token and expert on its own, summed in float32."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor


def experts(
    x_TH: Tensor, gate_up_E2IH: Tensor, down_EHI: Tensor, weights_TK: Tensor, ids_TK: Tensor
) -> Tensor:
    """See `kernels.experts.base.ExpertsOp`."""
    gate_up_TK2I = torch.einsum("th,tkih->tki", x_TH, gate_up_E2IH[ids_TK].to(x_TH.dtype))
    gate_TKI, up_TKI = gate_up_TK2I.chunk(2, dim=-1)
    out_TKH = torch.einsum("tki,tkhi->tkh", F.silu(gate_TKI) * up_TKI, down_EHI[ids_TK].to(x_TH.dtype))
    return (out_TKH.float() * weights_TK.unsqueeze(-1)).sum(dim=1).to(x_TH.dtype)
