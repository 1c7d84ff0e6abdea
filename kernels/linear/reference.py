"""The definition of the linear op."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor


def linear(x_RI: Tensor, weight_OI: Tensor) -> Tensor:
    """See `kernels.linear.base.LinearOp`."""
    return F.linear(x_RI, weight_OI.to(x_RI.dtype))
