"""Every backend of paged attention against its definition, and the definition against torch's own attention."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st

from kernels.attention import create_attention
from kernels.attention.base import AttentionLayout

NUM_PAGES = 400
ATOL = 2e-5


@st.composite
def cases(draw: st.DrawFn, *, is_decode: bool):
    generator = torch.Generator().manual_seed(draw(st.integers(0, 2**31)))
    page_size = draw(st.sampled_from([1, 3, 16]))
    num_kv_heads, group = draw(st.sampled_from([(1, 4), (2, 1), (2, 3), (4, 2)]))
    window = draw(st.sampled_from([None, 1, 2, 5, 33, 129]))
    sinks = torch.randn(num_kv_heads * group, generator=generator) if draw(st.booleans()) else None
    pages = (
        torch.randperm(NUM_PAGES, generator=generator).tolist()
        if draw(st.booleans())
        else list(range(NUM_PAGES))
    )
    max_tokens = 16 * page_size
    q_lens, kv_lens, kv_starts, rows = [], [], [], []
    for _ in range(draw(st.integers(1, 5))):
        q_len = 1 if is_decode else draw(st.integers(1, max_tokens))
        kv_len = q_len + draw(st.one_of(st.just(0), st.integers(0, 2 * max_tokens)))
        first_seen = 0 if window is None else max(0, kv_len - q_len - window + 1)
        kv_start = first_seen // page_size * page_size
        count = -(-(kv_len - kv_start) // page_size)
        q_lens.append(q_len)
        kv_lens.append(kv_len)
        kv_starts.append(kv_start)
        rows.append([pages.pop(0) for _ in range(count)])
    # Pages nobody lists hold NaN: reading one shows.
    k_cache = torch.full((num_kv_heads, NUM_PAGES, page_size, 12), float("nan"))
    v_cache = torch.full((num_kv_heads, NUM_PAGES, page_size, 8), float("nan"))
    for row in rows:
        k_cache[:, row] = torch.randn(num_kv_heads, len(row), page_size, 12, generator=generator)
        v_cache[:, row] = torch.randn(num_kv_heads, len(row), page_size, 8, generator=generator)
    layout = AttentionLayout(
        q_lens=tuple(q_lens),
        kv_lens=tuple(kv_lens),
        kv_starts=tuple(kv_starts),
        pages=tuple(rows),
    )
    q = torch.randn(sum(q_lens), num_kv_heads * group, 12, generator=generator)
    arguments = (q, k_cache.permute(1, 2, 0, 3), v_cache.permute(1, 2, 0, 3), layout)
    return arguments, {"scale": 12**-0.5, "window_keys": window, "sinks_H": sinks}


@given(case=cases(is_decode=False))
@settings(max_examples=80, deadline=None)
def test_cpu_prefill_is_the_definition(case) -> None:
    arguments, options = case
    expected = create_attention("reference").prefill(*arguments, **options)
    torch.testing.assert_close(
        create_attention("cpu").prefill(*arguments, **options), expected, atol=ATOL, rtol=0
    )


@given(case=cases(is_decode=True))
@settings(max_examples=80, deadline=None)
def test_cpu_decode_is_the_definition(case) -> None:
    arguments, options = case
    expected = create_attention("reference").decode(*arguments, **options)
    torch.testing.assert_close(
        create_attention("cpu").decode(*arguments, **options), expected, atol=ATOL, rtol=0
    )


@pytest.mark.parametrize("backend", ["reference", "cpu"])
def test_without_cache_prefix_it_is_scaled_dot_product_attention(backend: str) -> None:
    q, k, v = torch.randn(40, 4, 12), torch.randn(40, 2, 12), torch.randn(40, 2, 8)
    layout = AttentionLayout(q_lens=(40,), kv_lens=(40,), kv_starts=(0,), pages=(range(10),))
    out = create_attention(backend).prefill(
        q,
        k.view(10, 4, 2, 12),
        v.view(10, 4, 2, 8),
        layout,
        scale=12**-0.5,
        window_keys=None,
        sinks_H=None,
    )
    expected = F.scaled_dot_product_attention(
        q.transpose(0, 1),
        k.repeat_interleave(2, 1).transpose(0, 1),
        v.repeat_interleave(2, 1).transpose(0, 1),
        is_causal=True,
    ).transpose(0, 1)
    torch.testing.assert_close(out, expected, atol=ATOL, rtol=0)


def test_an_infinite_sink_takes_everything_and_minus_infinity_nothing() -> None:
    q, k, v = torch.randn(5, 2, 12), torch.randn(1, 16, 2, 12), torch.randn(1, 16, 2, 8)
    layout = AttentionLayout(q_lens=(5,), kv_lens=(5,), kv_starts=(0,), pages=([0],))
    for backend in ("reference", "cpu"):
        prefill = create_attention(backend).prefill

        def run(sinks: torch.Tensor | None, prefill=prefill) -> torch.Tensor:
            return prefill(q, k, v, layout, scale=0.3, window_keys=3, sinks_H=sinks)

        assert run(torch.full((2,), 1e4)).abs().max() == 0
        torch.testing.assert_close(run(torch.full((2,), -1e4)), run(None))


def test_an_unknown_backend_is_refused() -> None:
    with pytest.raises(ValueError, match="no attention backend 'cuda'; there are reference, cpu"):
        create_attention("cuda")


@given(
    case=st.booleans().flatmap(lambda is_decode: st.tuples(st.just(is_decode), cases(is_decode=is_decode)))
)
@settings(max_examples=30, deadline=None)
def test_bfloat16_stays_near_float32(case) -> None:
    is_decode, ((q, k, v, layout), options) = case
    q, k, v = q.bfloat16(), k.bfloat16(), v.bfloat16()
    expected = create_attention("reference").prefill(q.float(), k.float(), v.float(), layout, **options)
    ops = create_attention("cpu")
    actual = (ops.decode if is_decode else ops.prefill)(q, k, v, layout, **options)
    assert actual.dtype == torch.bfloat16
    torch.testing.assert_close(actual.float(), expected, atol=5e-2, rtol=5e-2)
