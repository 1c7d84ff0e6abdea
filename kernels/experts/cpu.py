"""The experts op grouped by expert: one pass of two matrix products per expert that has tokens."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor


def experts(
    x_TH: Tensor, gate_up_E2IH: Tensor, down_EHI: Tensor, weights_TK: Tensor, ids_TK: Tensor
) -> Tensor:
    """See `kernels.experts.base.ExpertsOp`."""
    num_tokens, top_k = ids_TK.shape
    width = down_EHI.shape[2]
    if num_tokens == 1:
        return _single_token(x_TH, gate_up_E2IH, down_EHI, weights_TK, ids_TK)
    flat_ids = ids_TK.reshape(-1)
    order = torch.argsort(flat_ids, stable=True)
    token_of = order // top_k
    counts = torch.bincount(flat_ids, minlength=gate_up_E2IH.shape[0]).tolist()
    x_sorted = x_TH.index_select(0, token_of)
    weight_sorted = weights_TK.reshape(-1).index_select(0, order).unsqueeze(1)
    out_sorted = torch.empty_like(x_sorted)
    begin = 0
    for expert, count in enumerate(counts):
        if count == 0:
            continue
        end = begin + count
        gate_up = F.linear(x_sorted[begin:end], gate_up_E2IH[expert])
        hidden = F.silu(gate_up[:, :width]).mul_(gate_up[:, width:])
        torch.mm(hidden, down_EHI[expert].t(), out=out_sorted[begin:end])
        begin = end
    # Back to the tokens' own order, then a sum over K: the order of additions does not depend on the batch.
    out_TKH = torch.empty_like(out_sorted)
    out_TKH.index_copy_(0, order, (out_sorted * weight_sorted).to(x_TH.dtype))
    return out_TKH.view(num_tokens, top_k, -1).sum(dim=1)


def _single_token(
    x_TH: Tensor, gate_up_E2IH: Tensor, down_EHI: Tensor, weights_TK: Tensor, ids_TK: Tensor
) -> Tensor:
    """Decode of one sequence: matrix-vector products straight on the weights, nothing sorted or copied."""
    width = down_EHI.shape[2]
    x = x_TH[0]
    weights = weights_TK[0].tolist()
    total: Tensor | None = None
    for expert, weight in zip(ids_TK[0].tolist(), weights, strict=True):
        gate_up = torch.mv(gate_up_E2IH[expert], x)
        hidden = F.silu(gate_up[:width]).mul_(gate_up[width:])
        if total is None:
            total = torch.mv(down_EHI[expert], hidden).mul_(weight)
        else:
            total = torch.addmv(total, down_EHI[expert], hidden, alpha=weight)
    assert total is not None
    return total.unsqueeze(0)
