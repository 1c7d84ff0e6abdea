"""The linear op for CPUs without bfloat16 matrix instructions.

Such CPUs multiply bfloat16 matrices many times slower than float32 ones, yet reading a weight costs half as much in
bfloat16. So weights stay bfloat16 in memory: one or two rows of input go through torch's bfloat16 matrix-vector
product, which is bound by that reading; more rows widen the weights block by block into a buffer that stays in
the cache and multiply in float32.
"""

from __future__ import annotations

import threading

import torch
import torch.nn.functional as F
from torch import Tensor

# Above it, widening once is cheaper than reading the weights once per row.
_MAX_VECTOR_ROWS = 2
_BLOCK_ELEMENTS = 1 << 20


class _Buffer(threading.local):
    """One float32 buffer per thread, so that no product pays for fresh memory."""

    def __init__(self) -> None:
        # A buffer made in inference mode could not be written to outside of it.
        with torch.inference_mode(False):
            self.elements = torch.empty(0)

    def widened(self, weight_OI: Tensor) -> Tensor:
        """float32 copy of a block; valid until the next call on this thread."""
        count = weight_OI.numel()
        if self.elements.numel() < count:
            with torch.inference_mode(False):
                self.elements = torch.empty(max(count, _BLOCK_ELEMENTS))
        return self.elements[:count].view(weight_OI.shape).copy_(weight_OI)


_buffer = _Buffer()


def linear(x_RI: Tensor, weight_OI: Tensor) -> Tensor:
    """See `kernels.linear.base.LinearOp`."""
    if x_RI.dtype == weight_OI.dtype:
        return F.linear(x_RI, weight_OI)
    rows, width = x_RI.shape
    if rows <= _MAX_VECTOR_ROWS:
        products = [torch.mv(weight_OI, row) for row in x_RI.to(weight_OI.dtype).unbind()]
        return (products[0].unsqueeze(0) if rows == 1 else torch.stack(products)).to(x_RI.dtype)
    num_outputs = weight_OI.shape[0]
    out_RO = x_RI.new_empty(rows, num_outputs)
    step = max(1, _BLOCK_ELEMENTS // width)
    for begin in range(0, num_outputs, step):
        block = _buffer.widened(weight_OI[begin : begin + step])
        torch.mm(x_RI, block.t(), out=out_RO[:, begin : begin + step])
    return out_RO
