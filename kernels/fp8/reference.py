"""Dequantises e4m3 weights that carry one float32 factor per block."""

from __future__ import annotations

import torch
from torch import Tensor


def dequantize_blocks(weight: Tensor, scale: Tensor, block: tuple[int, int], *, chunks: int = 1) -> Tensor:
    """value[r, c] = float(weight[r, c]) * scale[r // rows, c // columns], within each chunk of rows.

    The checkpoint calls the factor `weight_scale_inv`; it is a multiplier. A fused qkv weight was quantised chunk
    by chunk, so each chunk owns ceil(rows_per_chunk / rows) scale rows and its last block may be partial.

    Args:
        weight: [R, C] float8_e4m3fn.
        scale: [chunks * ceil(R / chunks / rows), ceil(C / columns)] float32.
        block: (rows, columns) of a block.
        chunks: equal parts the rows fall into, each quantised by itself.

    Returns:
        [R, C] float32.

    Raises:
        ValueError: a scale grid that does not fit the weight.
    """
    num_rows, num_columns = weight.shape
    rows, columns = block
    rows_per_chunk = num_rows // chunks
    expected = (chunks * -(-rows_per_chunk // rows), -(-num_columns // columns))
    if num_rows % chunks or tuple(scale.shape) != expected:
        raise ValueError(
            f"a weight of {num_rows} x {num_columns} in {chunks} chunks of {rows} x {columns} blocks needs "
            f"{expected[0]} x {expected[1]} scales; got {tuple(scale.shape)}"
        )
    in_chunk = torch.arange(num_rows, device=weight.device) % rows_per_chunk // rows
    chunk = torch.arange(num_rows, device=weight.device) // rows_per_chunk
    scale_row = chunk * (expected[0] // chunks) + in_chunk
    factors = scale[scale_row].repeat_interleave(columns, dim=1)[:, :num_columns]
    return weight.to(torch.float32) * factors
