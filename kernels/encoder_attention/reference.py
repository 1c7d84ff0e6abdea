"""The definition of encoder attention: dense scores, segment by segment, in float32."""

from __future__ import annotations

from itertools import pairwise

import torch


def encoder_attention_reference(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    cu_seqlens: torch.Tensor,
    window: int | None,
    causal: bool,
    sinks: torch.Tensor | None,
) -> torch.Tensor:
    """As `encoder_attention`, whose checks have passed."""
    group = query.shape[1] // key.shape[1]
    out = query.new_empty(query.shape[0], query.shape[1], value.shape[2])
    bounds: list[int] = cu_seqlens.tolist()
    for start, end in pairwise(bounds):
        queries = query[start:end].float()
        keys = key[start:end].float().repeat_interleave(group, dim=1)
        values = value[start:end].float().repeat_interleave(group, dim=1)
        scores = torch.einsum("ihd,jhd->hij", queries, keys) * query.shape[2] ** -0.5
        position = torch.arange(end - start, device=query.device)
        behind = position[:, None] - position[None, :]
        if window is not None:
            scores = scores.masked_fill(behind.abs() > window, float("-inf"))
        if causal:
            scores = scores.masked_fill(behind < 0, float("-inf"))
        if sinks is not None:
            column = sinks.float().view(-1, 1, 1).expand(-1, end - start, 1)
            scores = torch.cat([scores, column], dim=2)
        weights = scores.softmax(dim=2)[:, :, : end - start]
        out[start:end] = torch.einsum("hij,jhd->ihd", weights, values).to(query.dtype)
    return out
