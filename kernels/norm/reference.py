"""The definition of the norm op."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor


def rms_norm(x_RH: Tensor, weight_H: Tensor, eps: float) -> Tensor:
    """See `kernels.norm.base.NormOp`."""
    return F.rms_norm(x_RH.float(), weight_H.shape, None, eps).to(x_RH.dtype) * weight_H
