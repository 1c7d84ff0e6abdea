"""MiMo-V2.5's vision encoder: patches to language-model embeddings.

State dict keys are the hub's names without `visual.`. Knows the architecture and the patch order; knows nothing of
files, batching across requests or the language model.

Shape letters: P patches of all items (rows), G = P / 4 groups of 2 x 2 patches, E hidden size, D head width.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from kernels.encoder_attention import encoder_attention
from mm_pipeline.encoders.rope import Rope, rope_of, rotate

_EPS = 1e-6
_ROPE_THETA = 10_000.0
# `qk_channels` when the config leaves it out: the hub's own default, and not hidden_size / num_heads.
_DEFAULT_HEAD_DIM = 64


@dataclass(frozen=True, kw_only=True)
class MimoVisionConfig:
    """Fields of the checkpoint's `vision_config`, under shorter names where they have one here.

    window: patches seen to each side in windowed blocks. full_blocks: blocks with full attention.
    column_blocks: blocks that run in column order (`vit_window_attn_types` 1).
    """

    depth: int
    hidden_size: int
    intermediate_size: int
    num_heads: int
    num_key_value_heads: int
    head_dim: int
    patch_size: int
    temporal_patch_size: int
    merge_size: int
    in_channels: int
    out_hidden_size: int
    window: int
    full_blocks: frozenset[int]
    column_blocks: frozenset[int]
    use_sink: bool

    def __post_init__(self) -> None:
        if self.num_heads % self.num_key_value_heads or self.head_dim % 4:
            raise ValueError(
                f"vision_config: num_heads {self.num_heads} must be a multiple of num_key_value_heads "
                f"{self.num_key_value_heads}, and the head width {self.head_dim} of 4"
            )

    @classmethod
    def from_dict(cls, config: Mapping[str, Any]) -> MimoVisionConfig:
        """From `vision_config`. Raises KeyError for a missing field, ValueError for a variant not covered here."""
        if config.get("hidden_act", "silu") != "silu":
            raise ValueError(
                f"vision_config: hidden_act is {config['hidden_act']!r}; only 'silu' is supported"
            )
        types = list(config["vit_window_attn_types"])
        if len(types) != config["depth"] or not set(types) <= {-1, 0, 1}:
            raise ValueError(
                f"vision_config: vit_window_attn_types has {len(types)} entries {sorted(set(types))}; need one of "
                f"-1, 0, 1 for each of {config['depth']} blocks"
            )
        return cls(
            depth=config["depth"],
            hidden_size=config["hidden_size"],
            intermediate_size=config["intermediate_size"],
            num_heads=config["num_heads"],
            num_key_value_heads=config["num_key_value_heads"],
            head_dim=config.get("qk_channels") or _DEFAULT_HEAD_DIM,
            patch_size=config["patch_size"],
            temporal_patch_size=config["temporal_patch_size"],
            merge_size=config["spatial_merge_size"],
            in_channels=config["in_chans"],
            out_hidden_size=config["out_hidden_size"],
            window=config["visual_token_window_size"],
            full_blocks=frozenset(config["fullatt_block_indexes"]),
            column_blocks=frozenset(index for index, kind in enumerate(types) if kind == 1),
            use_sink=config["use_sink"],
        )


class MimoVisionEncoder(nn.Module):
    """Packed forward over any number of items; nothing attends across frame groups or items."""

    def __init__(self, config: MimoVisionConfig, *, attention_backend: str = "cpu") -> None:
        super().__init__()
        self.config = config
        self.patch_embed = PatchEmbed(config)
        self.blocks = nn.ModuleList(Block(config, index, attention_backend) for index in range(config.depth))
        self.merger = Merger(config)

    def forward(self, patches: torch.Tensor, grids: list[tuple[int, int, int]]) -> torch.Tensor:
        """patches: [P, 3 * T * 16 * 16], items back to back. grids: (t, h, w) in patches per item.

        Returns [G, out_hidden_size] in the model's dtype. Raises ValueError when rows and grids disagree.
        """
        num_rows = sum(t * h * w for t, h, w in grids)
        if num_rows != patches.shape[0]:
            raise ValueError(f"{patches.shape[0]} patches came for grids {grids}, which need {num_rows}")
        merge = self.config.merge_size
        if any(h % merge or w % merge for _, h, w in grids):
            raise ValueError(f"grids {grids}: heights and widths must be multiples of {merge}")
        device = patches.device
        plan = _plan(grids, merge)
        row_rope = _rope(plan.position, self.config.head_dim, device)
        column_order = plan.column_order.to(device)
        row_order = column_order.argsort()
        column_rope = Rope(
            _reorder(row_rope[0], column_order, merge), _reorder(row_rope[1], column_order, merge)
        )

        x = self.patch_embed(patches)
        in_columns = False
        for index, block in enumerate(self.blocks):
            columns = index in self.config.column_blocks
            if columns != in_columns:
                x = _reorder(x, column_order if columns else row_order, merge)
                in_columns = columns
            x = block(x, plan.cu_seqlens, column_rope if columns else row_rope)
        if in_columns:
            x = _reorder(x, row_order, merge)
        merged: torch.Tensor = self.merger(x)
        return merged


@dataclass(frozen=True, kw_only=True)
class _Plan:
    """position: int64 [P, 2], (row, column) of each patch. cu_seqlens: int32, one segment per frame group.
    column_order: int64 [G], the group that comes at each place in column order."""

    position: torch.Tensor
    cu_seqlens: torch.Tensor
    column_order: torch.Tensor


def _plan(grids: list[tuple[int, int, int]], merge: int) -> _Plan:
    positions, orders, lengths = [], [], []
    first_group = 0
    for frames, height, width in grids:
        row = torch.arange(height).view(height, 1).expand(height, width)
        column = torch.arange(width).view(1, width).expand(height, width)
        blocks = torch.stack([row, column], dim=-1)
        blocks = blocks.reshape(height // merge, merge, width // merge, merge, 2).transpose(1, 2)
        positions.append(blocks.reshape(1, -1, 2).expand(frames, -1, -1).reshape(-1, 2))
        num_groups = (height // merge) * (width // merge)
        by_column = torch.arange(num_groups).view(height // merge, width // merge).t().flatten()
        starts = first_group + num_groups * torch.arange(frames)
        orders.append((starts[:, None] + by_column).flatten())
        first_group += frames * num_groups
        lengths += [height * width] * frames
    cu_seqlens = torch.tensor([0, *torch.tensor(lengths).cumsum(0).tolist()], dtype=torch.int32)
    return _Plan(position=torch.cat(positions), cu_seqlens=cu_seqlens, column_order=torch.cat(orders))


def _reorder(x: torch.Tensor, order: torch.Tensor, merge: int) -> torch.Tensor:
    """Moves whole 2 x 2 groups of rows; the patches inside a group keep their order."""
    groups = x.reshape(-1, merge * merge, *x.shape[1:])
    return groups.index_select(0, order).flatten(0, 1)


def _rope(position: torch.Tensor, head_dim: int, device: torch.device) -> Rope:
    """Angles float32 [P, D / 2]: the first half from the row, the second from the column."""
    frequency = _ROPE_THETA ** (-torch.arange(0, head_dim // 2, 2, dtype=torch.float32) / (head_dim // 2))
    angles = (position.float()[:, :, None] * frequency).flatten(1)
    return rope_of(angles.to(device))


class PatchEmbed(nn.Module):
    """A convolution whose kernel is one patch, so a linear map of flattened patches."""

    def __init__(self, config: MimoVisionConfig) -> None:
        super().__init__()
        size = (config.temporal_patch_size, config.patch_size, config.patch_size)
        self.proj = nn.Conv3d(config.in_channels, config.hidden_size, size, stride=size, bias=False)

    def forward(self, patches: torch.Tensor) -> torch.Tensor:
        weight = self.proj.weight
        return F.linear(patches.to(weight.dtype), weight.flatten(1))


class Attention(nn.Module):
    def __init__(self, config: MimoVisionConfig, index: int, backend: str) -> None:
        super().__init__()
        self.heads = (config.num_heads, config.num_key_value_heads, config.num_key_value_heads)
        self.head_dim = config.head_dim
        self.window = None if index in config.full_blocks else config.window
        self.backend = backend
        self.qkv = nn.Linear(config.hidden_size, sum(self.heads) * config.head_dim)
        self.proj = nn.Linear(config.num_heads * config.head_dim, config.hidden_size)
        has_sinks = config.use_sink and self.window is not None
        self.sinks = nn.Parameter(torch.zeros(config.num_heads)) if has_sinks else None

    def forward(self, x: torch.Tensor, cu_seqlens: torch.Tensor, rope: Rope) -> torch.Tensor:
        query, key, value = self.qkv(x).unflatten(-1, (-1, self.head_dim)).split(self.heads, dim=1)
        attended = encoder_attention(
            rotate(query, rope),
            rotate(key, rope),
            value,
            cu_seqlens,
            window=self.window,
            sinks=self.sinks,
            backend=self.backend,
        )
        projected: torch.Tensor = self.proj(attended.flatten(1))
        return projected


class SwiGlu(nn.Module):
    def __init__(self, config: MimoVisionConfig) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(config.hidden_size, config.intermediate_size)
        self.up_proj = nn.Linear(config.hidden_size, config.intermediate_size)
        self.down_proj = nn.Linear(config.intermediate_size, config.hidden_size)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))
        return out


class Block(nn.Module):
    def __init__(self, config: MimoVisionConfig, index: int, backend: str) -> None:
        super().__init__()
        self.norm1 = nn.RMSNorm(config.hidden_size, eps=_EPS)
        self.norm2 = nn.RMSNorm(config.hidden_size, eps=_EPS)
        self.attn = Attention(config, index, backend)
        self.mlp = SwiGlu(config)

    def forward(self, x: torch.Tensor, cu_seqlens: torch.Tensor, rope: Rope) -> torch.Tensor:
        x = x + self.attn(self.norm1(x), cu_seqlens, rope)
        out: torch.Tensor = x + self.mlp(self.norm2(x))
        return out


class Merger(nn.Module):
    """Normalises each patch, then maps each group of 2 x 2 patches to one embedding."""

    def __init__(self, config: MimoVisionConfig) -> None:
        super().__init__()
        self.group = config.merge_size**2
        width = config.hidden_size * self.group
        self.ln_q = nn.LayerNorm(config.hidden_size, eps=_EPS, bias=False)
        self.mlp = nn.Sequential(
            nn.Linear(width, width, bias=False),
            nn.GELU(),
            nn.Linear(width, config.out_hidden_size, bias=False),
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        merged: torch.Tensor = self.mlp(self.ln_q(x).unflatten(0, (-1, self.group)).flatten(1))
        return merged
