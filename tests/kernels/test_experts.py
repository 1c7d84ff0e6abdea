"""The grouped experts op against its definition."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from kernels.experts import create_experts


@given(
    num_tokens=st.integers(1, 50),
    num_experts=st.integers(1, 9),
    top_k=st.integers(1, 4),
    seed=st.integers(0, 2**31),
)
@settings(max_examples=60, deadline=None)
def test_cpu_is_the_definition(num_tokens: int, num_experts: int, top_k: int, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    top_k = min(top_k, num_experts)
    x = torch.randn(num_tokens, 10, generator=generator)
    gate_up = torch.randn(num_experts, 14, 10, generator=generator)
    down = torch.randn(num_experts, 10, 7, generator=generator)
    ids = torch.rand(num_tokens, num_experts, generator=generator).topk(top_k).indices
    weights = torch.rand(num_tokens, top_k, generator=generator)
    expected = create_experts("reference")(x, gate_up, down, weights, ids)
    actual = create_experts("cpu")(x, gate_up, down, weights, ids)
    torch.testing.assert_close(actual, expected, atol=2e-4, rtol=1e-5)


def test_a_token_does_not_depend_on_its_neighbours() -> None:
    x, gate_up, down = torch.randn(20, 16), torch.randn(4, 24, 16), torch.randn(4, 16, 12)
    ids = torch.rand(20, 4).topk(2).indices
    weights = torch.rand(20, 2)
    op = create_experts("cpu")
    together = op(x, gate_up, down, weights, ids)
    for row in range(20):
        one = slice(row, row + 1)
        alone = op(x[one], gate_up, down, weights[one], ids[one])
        torch.testing.assert_close(together[one], alone, atol=1e-4, rtol=1e-5)


def test_an_unknown_backend_is_refused() -> None:
    with pytest.raises(ValueError, match="no experts backend 'cuda'; there are reference, cpu"):
        create_experts("cuda")


@pytest.mark.parametrize("num_tokens", [1, 2, 12])
def test_experts_stored_in_bfloat16(num_tokens: int) -> None:
    x = torch.randn(num_tokens, 32)
    gate_up, down = (torch.randn(4, 48, 32) / 6).bfloat16(), (torch.randn(4, 32, 24) / 5).bfloat16()
    ids = torch.rand(num_tokens, 4).topk(2).indices
    weights = torch.rand(num_tokens, 2)
    expected = create_experts("reference")(x, gate_up, down, weights, ids)
    actual = create_experts("cpu")(x, gate_up, down, weights, ids)
    assert actual.dtype == torch.float32
    torch.testing.assert_close(actual, expected, atol=3e-2, rtol=3e-2)
