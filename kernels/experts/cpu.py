"""The experts op grouped by expert: one pass of two matrix products per expert that has tokens."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from kernels.linear.cpu import linear


def experts(
    x_TH: Tensor, gate_up_E2IH: Tensor, down_EHI: Tensor, weights_TK: Tensor, ids_TK: Tensor
) -> Tensor:
    """See `kernels.experts.base.ExpertsOp`."""
    num_tokens, top_k = ids_TK.shape
    if num_tokens == 1:
        return _single_token(x_TH, gate_up_E2IH, down_EHI, weights_TK, ids_TK)
    flat_ids = ids_TK.reshape(-1)
    order = torch.argsort(flat_ids, stable=True)
    counts = torch.bincount(flat_ids, minlength=gate_up_E2IH.shape[0]).tolist()
    x_sorted = x_TH.index_select(0, order // top_k)
    out_sorted = torch.empty_like(x_sorted)
    begin = 0
    for expert, count in enumerate(counts):
        if count:
            end = begin + count
            hidden = _swiglu(linear(x_sorted[begin:end], gate_up_E2IH[expert]))
            out_sorted[begin:end] = linear(hidden, down_EHI[expert])
            begin = end
    out_sorted *= weights_TK.reshape(-1).index_select(0, order).unsqueeze(1)
    # Back to the tokens' own order, then a sum over K: the order of additions does not depend on the batch.
    out_TKH = torch.empty_like(out_sorted).index_copy_(0, order, out_sorted)
    return out_TKH.view(num_tokens, top_k, -1).sum(dim=1)


def _swiglu(gate_up_R2I: Tensor) -> Tensor:
    gate, up = gate_up_R2I.chunk(2, dim=-1)
    return F.silu(gate).mul_(up)


def _single_token(
    x_TH: Tensor, gate_up_E2IH: Tensor, down_EHI: Tensor, weights_TK: Tensor, ids_TK: Tensor
) -> Tensor:
    """Decode of one sequence: matrix-vector products straight on the weights, nothing sorted or copied."""
    x = x_TH[0].to(gate_up_E2IH.dtype)
    ids = ids_TK[0].tolist()
    gate_up_K2I = x.new_empty(len(ids), gate_up_E2IH.shape[1])
    out_KH = x.new_empty(len(ids), down_EHI.shape[1])
    for row, expert in zip(gate_up_K2I.unbind(), ids, strict=True):
        torch.mv(gate_up_E2IH[expert], x, out=row)
    for row, hidden, expert in zip(out_KH.unbind(), _swiglu(gate_up_K2I).unbind(), ids, strict=True):
        torch.mv(down_EHI[expert], hidden, out=row)
    # [1, K] x [K, H], in the routing weights' float32.
    return torch.mm(weights_TK, out_KH.float()).to(x_TH.dtype)
