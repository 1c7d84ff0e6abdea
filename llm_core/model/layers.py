"""Norm, rotary embedding, dense and mixture-of-experts feed-forward."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from llm_core.config import AttentionSpec, DecoderConfig, MoeSpec
from llm_core.model.ops import Ops


class RMSNorm(nn.Module):
    """w * x / sqrt(mean(x^2) + eps)."""

    def __init__(self, size: int, eps: float, ops: Ops) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(size), requires_grad=False)
        self.eps = eps
        self.op = ops.norm

    def forward(self, x_TH: Tensor) -> Tensor:
        return self.op(x_TH, self.weight, self.eps)


class Linear(nn.Module):
    """x W^T; the weight may be stored narrower than x."""

    def __init__(self, in_features: int, out_features: int, ops: Ops) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(out_features, in_features), requires_grad=False)
        self.op = ops.linear

    def forward(self, x_RI: Tensor) -> Tensor:
        return self.op(x_RI, self.weight)


def rope_tables(positions: Tensor, spec: AttentionSpec, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """cos and sin, each [T, 1, rope_dim / 2], of angles position * theta^(-2i / rope_dim)."""
    exponent = torch.arange(0, spec.rope_dim, 2, device=positions.device, dtype=torch.float32) / spec.rope_dim
    angles = positions.float().unsqueeze(1) * spec.rope_theta**-exponent
    return angles.cos().to(dtype).unsqueeze(1), angles.sin().to(dtype).unsqueeze(1)


def rotate_(x_THK: Tensor, rope_dim: int, tables: tuple[Tensor, Tensor]) -> None:
    """Rotates the first rope_dim components of each head in place, component i paired with i + rope_dim / 2."""
    cos, sin = tables
    half = rope_dim // 2
    low, high = x_THK[..., :half], x_THK[..., half:rope_dim]
    new_low = torch.addcmul(low * cos, high, sin, value=-1)
    high.mul_(cos).addcmul_(low, sin)
    low.copy_(new_low)


class DenseMLP(nn.Module):
    """down(silu(gate x) * up x). gate_up_proj holds the gate rows before the up rows."""

    def __init__(self, hidden_size: int, intermediate_size: int, ops: Ops) -> None:
        super().__init__()
        self.gate_up_proj = Linear(hidden_size, 2 * intermediate_size, ops)
        self.down_proj = Linear(intermediate_size, hidden_size, ops)

    def forward(self, x_TH: Tensor) -> Tensor:
        gate, up = self.gate_up_proj(x_TH).chunk(2, dim=-1)
        out: Tensor = self.down_proj(F.silu(gate).mul_(up))
        return out


class Router(nn.Module):
    """Sigmoid routing with a selection-only bias (`noaux_tc`), in float32."""

    def __init__(self, hidden_size: int, spec: MoeSpec) -> None:
        super().__init__()
        self.spec = spec
        self.weight = nn.Parameter(
            torch.empty(spec.num_experts, hidden_size, dtype=torch.float32), requires_grad=False
        )
        self.e_score_correction_bias = nn.Parameter(
            torch.empty(spec.num_experts, dtype=torch.float32), requires_grad=False
        )

    def forward(self, x_TH: Tensor) -> tuple[Tensor, Tensor]:
        """Combine weights [T, K] float32 and expert ids [T, K] int64."""
        spec = self.spec
        scores_TE = F.linear(x_TH.float(), self.weight).sigmoid_()
        choice_TE = scores_TE + self.e_score_correction_bias
        if spec.num_groups > 1:
            choice_TE = self._only_best_groups(choice_TE)
        ids_TK = choice_TE.topk(spec.top_k, dim=-1, sorted=False).indices
        weights_TK = scores_TE.gather(1, ids_TK)
        if spec.normalize:
            weights_TK = weights_TK / (weights_TK.sum(dim=-1, keepdim=True) + 1e-20)
        if spec.scaling_factor != 1.0:
            weights_TK = weights_TK * spec.scaling_factor
        return weights_TK, ids_TK

    def _only_best_groups(self, choice_TE: Tensor) -> Tensor:
        """Experts outside the best groups (by the sum of a group's two best) cannot be chosen."""
        spec = self.spec
        grouped = choice_TE.view(choice_TE.shape[0], spec.num_groups, -1)
        group_scores = grouped.topk(2, dim=-1).values.sum(dim=-1)
        best = group_scores.topk(spec.top_k_groups, dim=-1, sorted=False).indices
        outside = torch.ones_like(group_scores, dtype=torch.bool).scatter_(1, best, False)
        return grouped.masked_fill(outside.unsqueeze(-1), float("-inf")).flatten(1)


class Experts(nn.Module):
    """Stacked expert weights."""

    def __init__(self, hidden_size: int, spec: MoeSpec) -> None:
        super().__init__()
        self.gate_up_proj = nn.Parameter(
            torch.empty(spec.num_experts, 2 * spec.intermediate_size, hidden_size), requires_grad=False
        )
        self.down_proj = nn.Parameter(
            torch.empty(spec.num_experts, hidden_size, spec.intermediate_size), requires_grad=False
        )


class MoeMLP(nn.Module):
    """Router and experts; no shared expert."""

    def __init__(self, config: DecoderConfig, ops: Ops) -> None:
        super().__init__()
        assert config.moe is not None
        self.gate = Router(config.hidden_size, config.moe)
        self.experts = Experts(config.hidden_size, config.moe)
        self.op = ops.experts

    def forward(self, x_TH: Tensor) -> Tensor:
        weights_TK, ids_TK = self.gate(x_TH)
        return self.op(x_TH, self.experts.gate_up_proj, self.experts.down_proj, weights_TK, ids_TK)
