"""The norm op for CPUs: few dispatches for one row, where they cost more than the arithmetic."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from kernels.norm.reference import rms_norm as reference


def rms_norm(x_RH: Tensor, weight_H: Tensor, eps: float) -> Tensor:
    """See `kernels.norm.base.NormOp`."""
    if x_RH.dtype != torch.float32:
        return reference(x_RH, weight_H, eps)
    if x_RH.shape[0] != 1:
        return F.rms_norm(x_RH, weight_H.shape, weight_H, eps)
    row_H = x_RH[0]
    mean_square = torch.dot(row_H, row_H).item() / row_H.numel()
    return torch.mul(x_RH, (mean_square + eps) ** -0.5).mul_(weight_H)
