"""The definition of paged causal attention, one sequence after the other with an explicit mask."""

from __future__ import annotations

import torch
from torch import Tensor

from kernels.attention.base import AttentionLayout


def attention(
    q_THK: Tensor,
    k_cache_NPGK: Tensor,
    v_cache_NPGV: Tensor,
    layout: AttentionLayout,
    *,
    scale: float,
    window_keys: int | None,
    sinks_H: Tensor | None,
) -> Tensor:
    """See `kernels.attention.base.AttentionOp`."""
    num_heads = q_THK.shape[1]
    group = num_heads // k_cache_NPGK.shape[2]
    outputs = []
    begin = 0
    for pages_b, q_len, kv_len, kv_start in zip(
        layout.pages, layout.q_lens, layout.kv_lens, layout.kv_starts, strict=True
    ):
        pages = torch.tensor(pages_b, device=q_THK.device)
        k_SGK = k_cache_NPGK[pages].flatten(0, 1)[: kv_len - kv_start].float()
        v_SGV = v_cache_NPGV[pages].flatten(0, 1)[: kv_len - kv_start].float()
        q_QHK = q_THK[begin : begin + q_len].float()
        begin += q_len

        scores_HQS = torch.einsum("qhk,shk->hqs", q_QHK, k_SGK.repeat_interleave(group, dim=1)) * scale
        query_pos = torch.arange(kv_len - q_len, kv_len, device=q_THK.device)[:, None]
        key_pos = torch.arange(kv_start, kv_len, device=q_THK.device)[None, :]
        visible = key_pos <= query_pos
        if window_keys is not None:
            visible &= key_pos > query_pos - window_keys
        scores_HQS = scores_HQS.masked_fill(~visible, float("-inf"))
        if sinks_H is not None:
            sink_HQ1 = sinks_H.float()[:, None, None].expand(-1, q_len, 1)
            scores_HQS = torch.cat([scores_HQS, sink_HQ1], dim=-1)
        probs_HQS = scores_HQS.softmax(dim=-1)[..., : kv_len - kv_start]
        out_QHV = torch.einsum("hqs,shv->qhv", probs_HQS, v_SGV.repeat_interleave(group, dim=1))
        outputs.append(out_QHV.to(q_THK.dtype))
    return torch.cat(outputs)
