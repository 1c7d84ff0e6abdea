"""MiMo-V2.5's audio encoder on the language-model side: audio codes to embeddings.

State dict keys are the hub's names. Knows nothing of waveforms or of the tokenizer that makes the codes.

Shape letters: G groups of S = `group_size` code rows, C code channels, E local width.
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


@dataclass(frozen=True, kw_only=True)
class MimoAudioConfig:
    """Fields of the checkpoint's `audio_config` without their `input_local_` prefix."""

    num_channels: int
    vocab_size: int
    group_size: int
    num_layers: int
    dim: int
    num_heads: int
    head_dim: int
    intermediate_size: int
    out_hidden_size: int
    rope_theta: float

    @classmethod
    def from_dict(cls, config: Mapping[str, Any]) -> MimoAudioConfig:
        """From `audio_config`. Raises KeyError for a missing field, ValueError for a variant not covered here."""
        required = {
            "input_full_attention": True,
            "add_post_norm": True,
            "projection_layers": 2,
            "partial_rotary_factor": 1.0,
        }
        for name, value in required.items():
            if config.get(name, value) != value:
                raise ValueError(f"audio_config: {name} is {config[name]!r}; only {value!r} is supported")
        return cls(
            num_channels=config["audio_channels"],
            vocab_size=int(config["speech_vocab_size"]),
            group_size=config["group_size"],
            num_layers=config["input_local_layers"],
            dim=config["input_local_dim"],
            num_heads=config["input_local_attn_heads"],
            head_dim=config["input_local_head_dim"],
            intermediate_size=config["input_local_intermediate_size"],
            out_hidden_size=config["out_hidden_size"],
            rope_theta=float(config["rope_theta"]),
        )


class MimoAudioEncoder(nn.Module):
    """Sums the code embeddings of a row, mixes the rows of a group, projects a group to one embedding."""

    def __init__(self, config: MimoAudioConfig, *, attention_backend: str = "cpu") -> None:
        super().__init__()
        self.config = config
        self.speech_embeddings = nn.ModuleList(
            nn.Embedding(config.vocab_size, config.dim) for _ in range(config.num_channels)
        )
        self.audio_encoder = nn.ModuleDict(
            {
                "input_local_transformer": LocalTransformer(config, attention_backend),
                "projection": Projection(config),
            }
        )

    def forward(self, codes: torch.Tensor) -> torch.Tensor:
        """codes: int64 [G, S, C], each group of one item. Returns [G, out_hidden_size]."""
        return self.project(self.mix(self.embed(codes)))

    def embed(self, codes: torch.Tensor) -> torch.Tensor:
        """[G, S, C] to [G, S, E], the sum over channels."""
        total: torch.Tensor = self.speech_embeddings[0](codes[..., 0])
        for channel in range(1, self.config.num_channels):
            total = total + self.speech_embeddings[channel](codes[..., channel])
        return total

    def mix(self, embedded: torch.Tensor) -> torch.Tensor:
        """[G, S, E] to [G, S, E], attention inside each group."""
        mixed: torch.Tensor = self.audio_encoder["input_local_transformer"](embedded)
        return mixed

    def project(self, mixed: torch.Tensor) -> torch.Tensor:
        """[G, S, E] to [G, out_hidden_size]."""
        projected: torch.Tensor = self.audio_encoder["projection"](mixed.flatten(1))
        return projected


def group_codes(codes: torch.Tensor, group_size: int) -> torch.Tensor:
    """[T, C] of one item to [ceil(T / S), S, C]; the last row repeats to fill the last group."""
    if codes.shape[0] == 0:
        raise ValueError("there are no audio codes to group; need at least one row")
    missing = -codes.shape[0] % group_size
    padded = torch.cat([codes, codes[-1:].expand(missing, -1)])
    return padded.view(-1, group_size, codes.shape[1])


class LocalTransformer(nn.Module):
    """Qwen2 blocks, bidirectional, over sequences of one group each."""

    def __init__(self, config: MimoAudioConfig, backend: str) -> None:
        super().__init__()
        self.config = config
        self.layers = nn.ModuleList(LocalLayer(config, backend) for _ in range(config.num_layers))
        self.norm = nn.RMSNorm(config.dim, eps=_EPS)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        groups, size, _ = x.shape
        exponent = torch.arange(0, self.config.head_dim, 2, dtype=torch.float32) / self.config.head_dim
        frequency = torch.tensor(self.config.rope_theta, dtype=torch.float32) ** -exponent
        angles = torch.arange(size, dtype=torch.float32)[:, None] * frequency
        rope = rope_of(angles.repeat(groups, 1).to(x.device))
        cu_seqlens = torch.arange(0, groups * size + 1, size, dtype=torch.int32)
        rows = x.flatten(0, 1)
        for layer in self.layers:
            rows = layer(rows, cu_seqlens, rope)
        normed: torch.Tensor = self.norm(rows)
        return normed.view(groups, size, -1)


class LocalAttention(nn.Module):
    def __init__(self, config: MimoAudioConfig, backend: str) -> None:
        super().__init__()
        self.head_dim = config.head_dim
        self.backend = backend
        width = config.num_heads * config.head_dim
        self.q_proj = nn.Linear(config.dim, width)
        self.k_proj = nn.Linear(config.dim, width)
        self.v_proj = nn.Linear(config.dim, width)
        self.o_proj = nn.Linear(width, config.dim, bias=False)

    def forward(self, x: torch.Tensor, cu_seqlens: torch.Tensor, rope: Rope) -> torch.Tensor:
        query, key, value = (
            proj(x).unflatten(-1, (-1, self.head_dim)) for proj in (self.q_proj, self.k_proj, self.v_proj)
        )
        attended = encoder_attention(
            rotate(query, rope), rotate(key, rope), value, cu_seqlens, backend=self.backend
        )
        projected: torch.Tensor = self.o_proj(attended.flatten(1))
        return projected


class LocalMlp(nn.Module):
    def __init__(self, config: MimoAudioConfig) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(config.dim, config.intermediate_size, bias=False)
        self.up_proj = nn.Linear(config.dim, config.intermediate_size, bias=False)
        self.down_proj = nn.Linear(config.intermediate_size, config.dim, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))
        return out


class LocalLayer(nn.Module):
    def __init__(self, config: MimoAudioConfig, backend: str) -> None:
        super().__init__()
        self.input_layernorm = nn.RMSNorm(config.dim, eps=_EPS)
        self.self_attn = LocalAttention(config, backend)
        self.post_attention_layernorm = nn.RMSNorm(config.dim, eps=_EPS)
        self.mlp = LocalMlp(config)

    def forward(self, x: torch.Tensor, cu_seqlens: torch.Tensor, rope: Rope) -> torch.Tensor:
        x = x + self.self_attn(self.input_layernorm(x), cu_seqlens, rope)
        out: torch.Tensor = x + self.mlp(self.post_attention_layernorm(x))
        return out


class Projection(nn.Module):
    def __init__(self, config: MimoAudioConfig) -> None:
        super().__init__()
        width = config.group_size * config.dim
        self.mlp = nn.Sequential(
            nn.Linear(width, 4 * width, bias=False),
            nn.GELU(),
            nn.Linear(4 * width, config.out_hidden_size, bias=False),
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        projected: torch.Tensor = self.mlp(x)
        return projected
