"""Block-scaled fp8 against the golden fixtures, and its bad input."""

from __future__ import annotations

import pytest
import torch

from kernels.fp8 import dequantize_blocks
from tests.golden import load_golden, load_golden_json


@pytest.fixture(scope="module")
def golden() -> dict[str, torch.Tensor]:
    return load_golden("golden_fp8")


def test_all_256_codes(golden) -> None:
    weight = golden["codes.weight"]
    values = dequantize_blocks(weight, torch.ones(1, 1), (128, 128))
    torch.testing.assert_close(values, golden["codes.float32"], equal_nan=True, atol=0, rtol=0)


def test_partial_edge_blocks(golden) -> None:
    values = dequantize_blocks(golden["plain.weight"], golden["plain.weight_scale_inv"], (128, 128))
    torch.testing.assert_close(values, golden["plain.dequant"], atol=1e-6, rtol=1e-6)


@pytest.mark.parametrize("kind", ["full", "swa"])
def test_fused_projections_are_scaled_chunk_by_chunk(golden, kind: str) -> None:
    sizes = load_golden_json("config_fp8")["qkv_fixture"][kind]
    chunks = sizes["chunks"]
    values = dequantize_blocks(
        golden[f"qkv_{kind}.weight"], golden[f"qkv_{kind}.weight_scale_inv"], (128, 128), chunks=chunks
    )
    if f"qkv_{kind}.dequant_chunk_order" in golden:
        torch.testing.assert_close(values, golden[f"qkv_{kind}.dequant_chunk_order"], atol=1e-6, rtol=1e-6)
    parts = values.view(chunks, -1, values.shape[1])
    # Each chunk's rows must equal that chunk dequantised alone: scales are indexed within the chunk.
    scale = golden[f"qkv_{kind}.weight_scale_inv"].view(chunks, -1, 2)
    weight = golden[f"qkv_{kind}.weight"].view(chunks, -1, 256)
    for chunk in range(chunks):
        alone = dequantize_blocks(weight[chunk], scale[chunk], (128, 128))
        assert torch.equal(parts[chunk], alone)


def test_a_scale_grid_that_does_not_fit_is_refused() -> None:
    weight = torch.zeros(300, 200).to(torch.float8_e4m3fn)
    with pytest.raises(ValueError, match="needs 3 x 2 scales; got \\(2, 2\\)"):
        dequantize_blocks(weight, torch.ones(2, 2), (128, 128))
