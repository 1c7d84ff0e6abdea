"""Encoder attention for training: gradients for queries, keys, values and sinks. Plain torch, fused calls only."""

from __future__ import annotations

from itertools import groupby, pairwise

import torch
import torch.nn.functional as F


def encoder_attention_differentiable(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    cu_seqlens: torch.Tensor,
    window: int | None,
    causal: bool,
    sinks: torch.Tensor | None,
) -> torch.Tensor:
    """As `encoder_attention`, whose checks have passed. Segments of one length are fastest side by side."""
    lengths = [end - start for start, end in pairwise(cu_seqlens.tolist())]
    runs = [(length, len(list(run))) for length, run in groupby(lengths) if length]
    rows = [length * count for length, count in runs]
    parts = zip(runs, query.split(rows), key.split(rows), value.split(rows), strict=True)
    outputs = [
        _equal_segments(queries, keys, values, length, window, causal, sinks)
        for (length, _), queries, keys, values in parts
    ]
    return torch.cat(outputs) if outputs else query.new_zeros(0, query.shape[1], value.shape[2])


def _equal_segments(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    length: int,
    window: int | None,
    causal: bool,
    sinks: torch.Tensor | None,
) -> torch.Tensor:
    group = query.shape[1] // key.shape[1]
    queries, keys, values = (
        tensor.unflatten(0, (-1, length)).transpose(1, 2)
        for tensor in (query, key.repeat_interleave(group, dim=1), value.repeat_interleave(group, dim=1))
    )
    scale = query.shape[2] ** -0.5
    visible = _visible(length, window, causal, query.device)
    if sinks is not None:
        # One more key whose score is the sink, in a dimension of its own, and whose value is zero. The values get
        # that dimension too: the fused kernel wants one width.
        queries = F.pad(queries, (0, 1), value=1.0)
        keys = F.pad(keys, (0, 1, 0, 1))
        sink = F.pad((sinks / scale).view(1, -1, 1, 1), (query.shape[2], 0, length, 0))
        keys, values = keys + sink.to(keys.dtype), F.pad(values, (0, 1, 0, 1))
        if visible is not None:
            visible = F.pad(visible, (0, 1), value=True)
    attended = F.scaled_dot_product_attention(queries, keys, values, attn_mask=visible, scale=scale)
    attended = attended[..., : value.shape[2]]
    return attended.transpose(1, 2).flatten(0, 1)


def _visible(length: int, window: int | None, causal: bool, device: torch.device) -> torch.Tensor | None:
    """bool [length, length], or None where everything is seen."""
    if not causal and (window is None or window >= length - 1):
        return None
    position = torch.arange(length, device=device)
    behind = position[:, None] - position[None, :]
    visible = behind.abs() <= (length if window is None else window)
    return visible & (behind >= 0) if causal else visible
