"""Encoder attention for CPUs: segments of equal length in one fused call, windows as banded blocks.

Plain torch, so it runs on any device, and is tuned for the CPU. Work and memory of a window grow with
tokens x (block + 2 x window), never with tokens squared.
"""

from __future__ import annotations

from itertools import pairwise

import torch
import torch.nn.functional as F

# Queries per banded block: large enough for good matrix products, small enough to waste little beside the window.
_BLOCK = 64
# Scores held at a time, in numbers.
_MAX_SCORES = 1 << 24


def encoder_attention_cpu(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    cu_seqlens: torch.Tensor,
    window: int | None,
    causal: bool,
    sinks: torch.Tensor | None,
) -> torch.Tensor:
    """As `encoder_attention`, whose checks have passed."""
    out = query.new_empty(query.shape[0], query.shape[1], value.shape[2])
    bounds: list[int] = cu_seqlens.tolist()
    if window is not None and _longest(bounds) > window + 1:
        _banded(query, key, value, cu_seqlens, window, causal, sinks, out)
        return out
    # A window that reaches across every segment hides nothing.
    for start, count, length in _equal_runs(bounds):
        rows = slice(start, start + count * length)
        if sinks is None:
            _full(query[rows], key[rows], value[rows], count, causal, out[rows])
        else:
            _full_with_sinks(query[rows], key[rows], value[rows], count, causal, sinks, out[rows])
    return out


def _longest(bounds: list[int]) -> int:
    return max((end - start for start, end in pairwise(bounds)), default=0)


def _equal_runs(bounds: list[int]) -> list[tuple[int, int, int]]:
    """Neighbouring segments of one length as (first token, number of segments, length), empty ones left out."""
    runs: list[tuple[int, int, int]] = []
    for start, end in pairwise(bounds):
        if start == end:
            continue
        if runs and runs[-1][2] == end - start:
            runs[-1] = (runs[-1][0], runs[-1][1] + 1, end - start)
        else:
            runs.append((start, 1, end - start))
    return runs


def _full(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    count: int,
    causal: bool,
    out: torch.Tensor,
) -> None:
    """`count` segments of equal length, no window, no sinks."""
    queries, keys, values = (
        tensor.unflatten(0, (count, -1)).transpose(1, 2) for tensor in (query, key, value)
    )
    attended = F.scaled_dot_product_attention(
        queries, keys, values, is_causal=causal, enable_gqa=query.shape[1] != key.shape[1]
    )
    out.copy_(attended.transpose(1, 2).flatten(0, 1))


def _full_with_sinks(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    count: int,
    causal: bool,
    sinks: torch.Tensor,
    out: torch.Tensor,
) -> None:
    """Like `_full`, blocks of queries against all keys of their segment."""
    length = query.shape[0] // count
    step = max(1, _MAX_SCORES // (query.shape[1] * length))
    for segment in range(count):
        first = segment * length
        for start in range(first, first + length, step):
            end = min(start + step, first + length)
            keys = slice(first, end if causal else first + length)
            visible = _causal(first, start, end, query.device) if causal else None
            out[start:end] = _attend(
                query[None, start:end], key[None, keys], value[None, keys], visible, sinks
            )[0]


def _causal(first: int, start: int, end: int, device: torch.device) -> torch.Tensor:
    """[1, end - start, end - first]: which of the keys [first, end) each query in [start, end) sees."""
    queries = torch.arange(start, end, device=device)
    return (torch.arange(first, end, device=device) <= queries[:, None])[None]


def _banded(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    cu_seqlens: torch.Tensor,
    window: int,
    causal: bool,
    sinks: torch.Tensor | None,
    out: torch.Tensor,
) -> None:
    """The packed tokens in blocks of queries, each against the keys from `window` before it to `after` after it.

    `after` is 0 where nothing later is seen, else `window`. Block b owns queries [b * B, (b + 1) * B) and reads
    keys [b * B - window, (b + 1) * B + after); a mask keeps segments apart.
    """
    after = 0 if causal else window
    num_tokens = query.shape[0]
    num_blocks = -(-num_tokens // _BLOCK)
    padding = num_blocks * _BLOCK - num_tokens
    span = _BLOCK + window + after
    # Zeros, not garbage: a masked weight of 0 times NaN would be NaN.
    queries = F.pad(query, (0, 0, 0, 0, 0, padding)).unflatten(0, (num_blocks, _BLOCK))
    keys, values = (
        F.pad(tensor, (0, 0, 0, 0, window, after + padding)).unfold(0, span, _BLOCK).permute(0, 3, 1, 2)
        for tensor in (key, value)
    )
    device = query.device
    segment = torch.bucketize(
        torch.arange(num_tokens, device=device), cu_seqlens.to(device, torch.int64), right=True
    )
    query_segment = F.pad(segment, (0, padding), value=-1).unflatten(0, (num_blocks, _BLOCK))
    key_segment = F.pad(segment, (window, after + padding), value=-2).unfold(0, span, _BLOCK)
    key_offset = torch.arange(span, device=device) - window
    offset = key_offset[None, :] - torch.arange(_BLOCK, device=device)[:, None]
    near = (offset >= -window) & (offset <= after)

    step = max(1, _MAX_SCORES // (query.shape[1] * _BLOCK * span))
    for start in range(0, num_blocks, step):
        blocks = slice(start, start + step)
        visible = near & (query_segment[blocks, :, None] == key_segment[blocks, None, :])
        # Rows past the end see everything, so that their softmax is finite; they are cut off below.
        visible |= (query_segment[blocks] == -1)[:, :, None]
        attended = _attend(queries[blocks], keys[blocks], values[blocks], visible, sinks).flatten(0, 1)
        first = start * _BLOCK
        last = min(first + attended.shape[0], num_tokens)
        out[first:last] = attended[: last - first]


def _attend(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    visible: torch.Tensor | None,
    sinks: torch.Tensor | None,
) -> torch.Tensor:
    """query [B, Q, Hq, D], key [B, K, Hkv, D], value [B, K, Hkv, Dv], visible [B, Q, K] to [B, Q, Hq, Dv]."""
    batch, num_queries, num_heads, width = query.shape
    kv_heads = key.shape[2]
    group = num_heads // kv_heads
    # [B, Hkv, group * Q, D]: the heads of a group share one matrix product.
    queries = query.unflatten(2, (kv_heads, group)).permute(0, 2, 3, 1, 4).flatten(2, 3)
    scores = torch.matmul(queries, key.permute(0, 2, 3, 1)).float().mul_(width**-0.5)
    scores = scores.view(batch, kv_heads, group, num_queries, -1)
    if visible is not None:
        scores.masked_fill_(~visible[:, None, None], float("-inf"))
    largest = scores.amax(dim=-1, keepdim=True)
    if sinks is None:
        weights = scores.sub_(largest).exp_()
        weights /= weights.sum(dim=-1, keepdim=True)
    else:
        logits = sinks.float().view(1, kv_heads, group, 1, 1)
        largest = torch.maximum(largest, logits)
        weights = scores.sub_(largest).exp_()
        weights /= weights.sum(dim=-1, keepdim=True) + (logits - largest).exp()
    attended = torch.matmul(weights.flatten(2, 3).to(value.dtype), value.transpose(1, 2))
    return attended.view(batch, kv_heads, group, num_queries, -1).permute(0, 3, 1, 2, 4).flatten(2, 3)
