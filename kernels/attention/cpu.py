"""Paged causal attention for CPUs, as few large matrix products as the layout allows.

Prefill of a full layer goes over blocks of queries, each against all keys it can see. Prefill of a windowed layer
cuts queries into blocks and multiplies each with its own band of keys, so its cost grows with the window and not
with the context. Decode gathers the sequences' pages and runs one batched product per group of similar lengths.

The caches are fastest when a KV head's tokens are contiguous ([G, N, P, *] in memory, seen as [N, P, G, *]).
Products run in the cache's dtype, the softmax in float32.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from kernels.attention.base import AttentionLayout

# Scores of one block of queries stay under this, so that they are still in the cache when the softmax reads them.
_MAX_SCORE_ELEMENTS = 4 * 1024 * 1024
_BAND_BLOCK = 64
# A decode group holds sequences whose page counts differ by at most this factor: padding costs less than a pass.
_MAX_PADDING = 1.25


def _head_major(cache_NPGD: Tensor) -> Tensor:
    """[G, N, P, D] view of a cache."""
    return cache_NPGD.permute(2, 0, 1, 3)


def _gather(cache_GNPD: Tensor, pages: Sequence[int]) -> Tensor:
    """[G, len(pages) * P, D] of one sequence, a view where its pages follow one another in the pool."""
    num_kv_heads, _, page_size, width = cache_GNPD.shape
    first, count = pages[0], len(pages)
    if pages[-1] - first == count - 1 and list(pages) == list(range(first, first + count)):
        return cache_GNPD[:, first : first + count].reshape(num_kv_heads, count * page_size, width)
    index = torch.tensor(pages, device=cache_GNPD.device)
    return cache_GNPD.index_select(1, index).view(num_kv_heads, count * page_size, width)


def _softmax_with_sink(scores: Tensor, sink: Tensor | None, dtype: torch.dtype) -> Tensor:
    """Softmax over the last dimension, whose last column is overwritten with the sink and dropped."""
    if sink is None:
        return scores.softmax(dim=-1, dtype=torch.float32).to(dtype)
    scores[..., -1] = sink
    return scores.softmax(dim=-1, dtype=torch.float32)[..., :-1].to(dtype)


def prefill(
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
    k_GNPK, v_GNPV = _head_major(k_cache_NPGK), _head_major(v_cache_NPGV)
    out_THV = q_THK.new_empty(q_THK.shape[0], q_THK.shape[1], v_GNPV.shape[-1])
    begin = 0
    for pages, q_len, kv_len, kv_start in zip(
        layout.pages, layout.q_lens, layout.kv_lens, layout.kv_starts, strict=True
    ):
        k_GSK = _gather(k_GNPK, pages)[:, : kv_len - kv_start]
        v_GSV = _gather(v_GNPV, pages)[:, : kv_len - kv_start]
        rows = slice(begin, begin + q_len)
        if window_keys is None:
            _causal(q_THK[rows], k_GSK, v_GSV, out_THV[rows], scale, sinks_H)
        else:
            first_key = kv_start - (kv_len - q_len)
            _banded(q_THK[rows], k_GSK, v_GSV, out_THV[rows], scale, window_keys, sinks_H, first_key)
        begin += q_len
    return out_THV


def _causal(
    q_THK: Tensor, k_GSK: Tensor, v_GSV: Tensor, out_THV: Tensor, scale: float, sinks_H: Tensor | None
) -> None:
    """Blocks of queries against every key before them. The queries are the last T of the S positions."""
    num_queries, num_heads, width = q_THK.shape
    num_kv_heads, num_keys, _ = k_GSK.shape
    group = num_heads // num_kv_heads
    block = max(16, min(num_queries, _MAX_SCORE_ELEMENTS // (num_heads * num_keys)))
    future = torch.ones(block, block, dtype=torch.bool, device=q_THK.device).triu_(1)
    sink = None if sinks_H is None else sinks_H.float().view(num_kv_heads, group, 1)
    for begin in range(0, num_queries, block):
        end = min(begin + block, num_queries)
        rows, visible = end - begin, num_keys - num_queries + end
        q_GRK = (q_THK[begin:end] * scale).view(rows, num_kv_heads, group, width).permute(1, 2, 0, 3)
        q_GRK = q_GRK.reshape(num_kv_heads, group * rows, width)
        columns = visible if sink is None else visible + 1
        scores = q_GRK.new_empty(num_kv_heads, group * rows, columns)
        torch.bmm(q_GRK, k_GSK[:, :visible].transpose(1, 2), out=scores[:, :, :visible])
        scores = scores.view(num_kv_heads, group, rows, columns)
        scores[..., visible - rows : visible].masked_fill_(future[:rows, :rows], float("-inf"))
        probs = _softmax_with_sink(scores, sink, v_GSV.dtype).flatten(1, 2)
        out = torch.bmm(probs, v_GSV[:, :visible]).view(num_kv_heads, group, rows, -1)
        out_THV[begin:end] = out.permute(2, 0, 1, 3).flatten(1, 2)


def _banded(
    q_THK: Tensor,
    k_GSK: Tensor,
    v_GSV: Tensor,
    out_THV: Tensor,
    scale: float,
    window_keys: int,
    sinks_H: Tensor | None,
    first_key: int,
) -> None:
    """Blocks of queries, each against the band of keys that any of its queries can see.

    first_key is the position of k_GSK[:, 0] relative to the first query. Block i covers queries
    [i * block, (i + 1) * block) and keys [i * block - window_keys + 1, (i + 1) * block); positions outside
    the sequence are zero rows that the mask hides.
    """
    num_queries, num_heads, width = q_THK.shape
    num_kv_heads = k_GSK.shape[0]
    group = num_heads // num_kv_heads
    reach = window_keys - 1
    block = min(_BAND_BLOCK, num_queries)
    num_blocks = -(-num_queries // block)
    padded = num_blocks * block
    span = block + reach
    skip = max(0, -reach - first_key)
    lead = reach + first_key + skip

    def band(keys_GSD: Tensor) -> Tensor:
        keys = keys_GSD.new_zeros(num_kv_heads, reach + padded, keys_GSD.shape[2])
        keys[:, lead : reach + num_queries] = keys_GSD[:, skip:]
        return keys.unfold(1, span, block)

    q_pad = q_THK.new_zeros(padded, num_heads, width)
    torch.mul(q_THK, scale, out=q_pad[:num_queries])
    q_GBRK = q_pad.view(num_blocks, block, num_kv_heads, group, width).permute(2, 0, 3, 1, 4)
    q_GBRK = q_GBRK.reshape(num_kv_heads, num_blocks, group * block, width)
    k_GBKS, v_GBVS = band(k_GSK), band(v_GSV)

    columns = span if sinks_H is None else span + 1
    scores = q_pad.new_empty(num_kv_heads, num_blocks, group * block, columns)
    for head in range(num_kv_heads):
        torch.bmm(q_GBRK[head], k_GBKS[head], out=scores[head, :, :, :span])
    scores = scores.view(num_kv_heads, num_blocks, group, block, columns)
    key = torch.arange(span, device=q_THK.device)
    query = torch.arange(block, device=q_THK.device).unsqueeze(1)
    scores[..., :span].masked_fill_((key < query) | (key > query + reach), float("-inf"))
    for i in range(min(num_blocks, -(-lead // block))):
        scores[:, i, :, :, : lead - i * block] = float("-inf")
    sink = None if sinks_H is None else sinks_H.float().view(num_kv_heads, 1, group, 1)
    probs = _softmax_with_sink(scores, sink, v_GSV.dtype).flatten(2, 3)
    out = q_pad.new_empty(num_kv_heads, num_blocks, group * block, v_GSV.shape[2])
    for head in range(num_kv_heads):
        torch.bmm(probs[head], v_GBVS[head].transpose(1, 2), out=out[head])
    out = out.view(num_kv_heads, num_blocks, group, block, -1).permute(1, 3, 0, 2, 4)
    out_THV.copy_(out.flatten(2, 3).flatten(0, 1)[:num_queries])


@dataclass(frozen=True)
class _DecodeGroup:
    """Sequences of similar length: their rows in the batch, where their pages lie, and which keys they see.

    Of the S tokens on the pages, [first, last) are multiplied and those of hidden_1B1S among them left out.
    """

    rows: Tensor | None
    batch: int
    run: tuple[int, int] | None
    index: Tensor | None
    first: int
    last: int
    hidden_1B1S: Tensor | None


def _padded(pages: Sequence[int], count: int) -> list[int]:
    """The pages and the last of them again, `count` in all."""
    return [*pages, *[pages[-1]] * (count - len(pages))]


def _decode_groups(
    layout: AttentionLayout, window_keys: int | None, page_size: int, device: torch.device
) -> list[_DecodeGroup]:
    """Sequences sorted by page count and cut where padding would exceed `_MAX_PADDING`."""
    pages = layout.pages
    order = sorted(range(len(pages)), key=lambda b: len(pages[b]))
    cuts: list[list[int]] = []
    for b in order:
        if cuts and len(pages[b]) <= max(len(pages[cuts[-1][0]]) * _MAX_PADDING, 4):
            cuts[-1].append(b)
        else:
            cuts.append([b])
    groups = []
    for members in cuts:
        begins, ends = [], []
        for b in members:
            lowest = 0 if window_keys is None else max(0, layout.kv_lens[b] - window_keys)
            begins.append(max(0, lowest - layout.kv_starts[b]))
            ends.append(layout.kv_lens[b] - layout.kv_starts[b])
        rows = None if members == list(range(len(pages))) else torch.tensor(members, device=device)
        if len(members) == 1:
            groups.append(_single(pages[members[0]], begins[0], ends[0], rows, page_size, device))
            continue
        first, last = min(begins), max(ends)
        hidden = None
        if min(ends) != last or max(begins) != first:
            key = torch.arange(first, last)
            begin_B1, end_B1 = torch.tensor(begins).unsqueeze(1), torch.tensor(ends).unsqueeze(1)
            hidden = ((key < begin_B1) | (key >= end_B1))[None, :, None, :].to(device)
        # Padding repeats a page of the same sequence: what it holds is finite, and weighed with zero.
        most = max(len(pages[b]) for b in members)
        flat = [page for b in members for page in _padded(pages[b], most)]
        groups.append(
            _DecodeGroup(
                rows=rows,
                batch=len(members),
                run=None,
                index=torch.tensor(flat, device=device),
                first=first,
                last=last,
                hidden_1B1S=hidden,
            )
        )
    return groups


def _single(
    pages: Sequence[int], first: int, last: int, rows: Tensor | None, page_size: int, device: torch.device
) -> _DecodeGroup:
    """A group of one sequence. Pages that fill a run of the pool are read in place, whatever their order: a
    softmax does not depend on the order of its keys."""
    low, count = min(pages), len(pages)
    is_run = max(pages) - low == count - 1
    index = hidden = None
    if not is_run:
        index = torch.tensor(pages, device=device)
    elif pages[0] != low or pages[-1] != low + count - 1:
        token = torch.arange(count * page_size).view(count, page_size)
        seen = (token >= first) & (token < last)
        hidden = torch.empty_like(seen)
        hidden[torch.tensor(pages) - low] = ~seen
        hidden = hidden.view(1, 1, 1, -1).to(device)
        first, last = 0, count * page_size
    return _DecodeGroup(
        rows=rows,
        batch=1,
        run=(low, low + count) if is_run else None,
        index=index,
        first=first,
        last=last,
        hidden_1B1S=hidden,
    )


def _gather_group(cache_GNPD: Tensor, group: _DecodeGroup) -> Tensor:
    """[G * B, last - first, D] of a group's sequences."""
    num_kv_heads, width = cache_GNPD.shape[0], cache_GNPD.shape[-1]
    if group.run is not None:
        keys = cache_GNPD[:, group.run[0] : group.run[1]]
    else:
        assert group.index is not None
        keys = cache_GNPD.index_select(1, group.index)
    return keys.reshape(num_kv_heads * group.batch, -1, width)[:, group.first : group.last]


def decode(
    q_THK: Tensor,
    k_cache_NPGK: Tensor,
    v_cache_NPGV: Tensor,
    layout: AttentionLayout,
    *,
    scale: float,
    window_keys: int | None,
    sinks_H: Tensor | None,
) -> Tensor:
    """See `kernels.attention.base.AttentionOp`; every sequence has one query."""
    k_GNPK, v_GNPV = _head_major(k_cache_NPGK), _head_major(v_cache_NPGV)
    num_kv_heads, _, page_size, width = k_GNPK.shape
    num_queries, num_heads, _ = q_THK.shape
    heads, v_width = num_heads // num_kv_heads, v_GNPV.shape[-1]
    if "decode" not in layout.derived:
        layout.derived["decode"] = _decode_groups(layout, window_keys, page_size, q_THK.device)
    groups: list[_DecodeGroup] = layout.derived["decode"]
    sink = None if sinks_H is None else sinks_H.float().view(num_kv_heads, 1, heads)
    # Written once, the scale and the order that the products want.
    q_GTKh = torch.mul(q_THK.view(num_queries, num_kv_heads, heads, width).permute(1, 0, 3, 2), scale)
    out_THV = q_THK.new_empty(num_queries, num_heads, v_width)
    for group in groups:
        num_keys = group.last - group.first
        q_GBKh = q_GTKh if group.rows is None else q_GTKh[:, group.rows]
        columns = num_keys if sink is None else num_keys + 1
        scores = q_THK.new_empty(num_kv_heads, group.batch, heads, columns)
        # Keys times queries is the faster way round: the long side comes first.
        products = torch.bmm(_gather_group(k_GNPK, group), q_GBKh.flatten(0, 1))
        scores.flatten(0, 1)[..., :num_keys] = products.transpose(1, 2)
        if group.hidden_1B1S is not None:
            scores[..., :num_keys].masked_fill_(group.hidden_1B1S, float("-inf"))
        probs = _softmax_with_sink(scores, sink, v_GNPV.dtype).flatten(0, 1)
        out = torch.bmm(probs, _gather_group(v_GNPV, group)).view(num_kv_heads, group.batch, heads, v_width)
        out_BHV = out.transpose(0, 1).reshape(group.batch, num_heads, v_width)
        if group.rows is None:
            out_THV = out_BHV
        else:
            out_THV[group.rows] = out_BHV
    return out_THV
