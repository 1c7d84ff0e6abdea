"""The norm op against its definition: one row, several, other dtypes, rows near zero."""

from __future__ import annotations

import pytest
import torch

from kernels.norm import create_norm


@pytest.mark.parametrize("rows", [1, 2, 17])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_cpu_equals_the_definition(rows: int, dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(rows)
    weight = torch.randn(48, generator=generator).to(dtype)
    for scale in (1e-4, 1.0, 1e4):
        x = (scale * torch.randn(rows, 48, generator=generator)).to(dtype)
        wide = x.float()
        exact = wide * (wide.square().mean(-1, keepdim=True) + 1e-5).rsqrt()
        expected = exact.to(dtype) * weight
        for backend in ("reference", "cpu"):
            actual = create_norm(backend)(x, weight, 1e-5)
            assert actual.dtype == dtype
            torch.testing.assert_close(actual, expected)


def test_the_input_is_not_written_to() -> None:
    x = torch.ones(1, 8)
    create_norm("cpu")(x, torch.full((8,), 3.0), 1e-5)
    assert torch.equal(x, torch.ones(1, 8))


def test_unknown_backend() -> None:
    with pytest.raises(ValueError, match="no norm backend 'cuda'; there are reference, cpu"):
        create_norm("cuda")
