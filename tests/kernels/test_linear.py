"""The linear op against its definition, with weights of x's dtype and narrower ones."""

from __future__ import annotations

import threading

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from kernels.linear import cpu as cpu_linear
from kernels.linear import create_linear


@given(
    rows=st.integers(1, 9), width=st.integers(1, 40), outputs=st.integers(1, 70), seed=st.integers(0, 2**31)
)
@settings(max_examples=60, deadline=None)
def test_cpu_is_the_definition(rows: int, width: int, outputs: int, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(rows, width, generator=generator)
    weight = torch.randn(outputs, width, generator=generator)
    for stored, tolerance in ((weight, 1e-5), (weight.bfloat16(), 2e-2)):
        expected = create_linear("reference")(x, stored)
        actual = create_linear("cpu")(x, stored)
        assert actual.dtype == torch.float32
        scale = (x.norm(dim=1, keepdim=True) * weight.norm(dim=1)).clamp_min(1.0)
        assert ((actual - expected) / scale).abs().max() < tolerance


def test_more_rows_than_a_vector_lose_nothing_in_any_block(monkeypatch) -> None:
    """Widened weights multiply in float32: exact but for rounding, also where blocks are cut."""
    monkeypatch.setattr(cpu_linear, "_BLOCK_ELEMENTS", 64)
    x, weight = torch.randn(5, 16), torch.randn(37, 16).bfloat16()
    torch.testing.assert_close(cpu_linear.linear(x, weight), x @ weight.float().T, atol=1e-5, rtol=1e-5)


def test_threads_do_not_share_the_buffer() -> None:
    inputs = [(torch.randn(8, 64), torch.randn(500, 64).bfloat16()) for _ in range(4)]
    wrong = []

    def work(x: torch.Tensor, weight: torch.Tensor) -> None:
        expected = x @ weight.float().T
        for _ in range(50):
            wrong.append((cpu_linear.linear(x, weight) - expected).abs().max() > 1e-3)  # noqa: PERF401

    threads = [threading.Thread(target=work, args=pair) for pair in inputs]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(wrong) == 200
    assert not any(wrong)


def test_an_unknown_backend_is_refused() -> None:
    with pytest.raises(ValueError, match="no linear backend 'cuda'; there are reference, cpu"):
        create_linear("cuda")
