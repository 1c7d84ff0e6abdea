"""MiMo's audio tokenizer: the mel frames of one segment to residual codes, 20 per 40 ms.

State dict keys are the hub's names in the checkpoint's tokenizer folder. Knows nothing of waveforms, of the vocoder
that the real tokenizer also has, or of what the codes are for.

Shape letters: L mel frames, T rows after the stride of 2, P rows after pooling, M mels, E width, Q quantizers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from kernels.encoder_attention import encoder_attention
from mm_pipeline.encoders.rope import Rope, rope_of, rotate

_EPS = 1e-5
_KERNEL, _STRIDE, _POOL = 3, 2, 2
# Of the features, relative: more than four times what another order of float32 sums changes.
_NEAR = 1e-5


@dataclass(frozen=True, kw_only=True)
class MimoAudioTokenizerConfig:
    """Fields of the tokenizer folder's config.json without their `encoder_` prefix.

    windows: per layer, how many rows before itself a row sees; None sees all of them.
    codebook_sizes: one per quantizer.
    skip_layer: number of the layer, from 1, whose output is added to the last one's; None adds nothing.
    """

    num_mels: int
    dim: int
    num_heads: int
    intermediate_size: int
    windows: tuple[int | None, ...]
    skip_layer: int | None
    codebook_sizes: tuple[int, ...]
    rope_theta: float

    @property
    def head_dim(self) -> int:
        return self.dim // self.num_heads

    @classmethod
    def from_dict(cls, config: Mapping[str, Any]) -> MimoAudioTokenizerConfig:
        """Raises KeyError for a missing field, ValueError for a variant not covered here."""
        required = {
            "kernel_size": _KERNEL,
            "stride_size": _STRIDE,
            "avg_pooler": _POOL,
            "activation_function": "gelu",
            "encoder_causal": True,
            "position_embedding_type": "rope",
            "rope_type": "default",
            "ln_type": "LayerNorm",
        }
        for name, value in required.items():
            if config.get(name, value) != value:
                raise ValueError(
                    f"the audio tokenizer's {name} is {config[name]!r}; only {value!r} is supported"
                )
        if config["d_model"] % config["encoder_attention_heads"]:
            raise ValueError(
                f"the audio tokenizer's d_model {config['d_model']} is no multiple of its "
                f"{config['encoder_attention_heads']} encoder_attention_heads"
            )
        return cls(
            num_mels=config["n_mels"],
            dim=config["d_model"],
            num_heads=config["encoder_attention_heads"],
            intermediate_size=config["encoder_ffn_dim"],
            windows=_windows(config),
            skip_layer=config.get("encoder_skip_layer_id"),
            codebook_sizes=_codebook_sizes(config),
            rope_theta=float(config["rope_theta"]),
        )


def _windows(config: Mapping[str, Any]) -> tuple[int | None, ...]:
    """With `hybrid_attention` every `swa_per_block`-th layer, from the first, has the window; else all have it."""
    before, after = config.get("encoder_attn_window_size", (-1, 0))
    if after != 0 or before < -1:
        raise ValueError(
            f"the audio tokenizer's encoder_attn_window_size is {[before, after]}; "
            "only [rows before, 0] is supported, with -1 for no window"
        )
    window = None if before == -1 else before
    every = config["swa_per_block"] if config.get("hybrid_attention", False) else 1
    return tuple(None if layer % every else window for layer in range(config["encoder_layers"]))


def _codebook_sizes(config: Mapping[str, Any]) -> tuple[int, ...]:
    """A list shorter than `num_quantizers` goes on with its last entry."""
    sizes = config["codebook_size"]
    sizes = [sizes] if isinstance(sizes, int) else list(sizes)
    missing = config["num_quantizers"] - len(sizes)
    return tuple(sizes[: config["num_quantizers"]] + [sizes[-1]] * missing)


class MimoAudioTokenizer(nn.Module):
    """Codes of segments, in float32: a segment's codes depend on nothing else, bit for bit.

    A packed batch may round differently, and a code that is nearly tied would come out as its rival. A segment with
    such a code is therefore done again alone.
    """

    def __init__(self, config: MimoAudioTokenizerConfig, *, attention_backend: str = "cpu") -> None:
        super().__init__()
        self.config = config
        self.encoder = Encoder(config, attention_backend)

    def forward(self, mel: torch.Tensor) -> torch.Tensor:
        """mel: float32 [L, M], the log mel of one segment. Returns int64 [P, Q], P = ceil(((L - 1) // 2 + 1) / 2).

        Raises ValueError for another shape, or no frames.
        """
        return self._alone(self._checked(mel))

    def many(self, mels: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """What `forward` returns for each of at least one segment, which share one pass. Raises as it does."""
        checked = [self._checked(mel) for mel in mels]
        if len(checked) == 1:
            return [self._alone(checked[0])]
        features, lengths = self.encoder.many(checked)
        codes, is_near = self.encoder.quantizer.with_near(features)
        return [
            self._alone(mel) if near else own
            for mel, own, near in zip(
                checked,
                codes.split(lengths),
                [bool(rows.any()) for rows in is_near.cpu().split(lengths)],
                strict=True,
            )
        ]

    def _alone(self, mel: torch.Tensor) -> torch.Tensor:
        codes: torch.Tensor = self.encoder.quantizer(self.encoder(mel))
        return codes

    def _checked(self, mel: torch.Tensor) -> torch.Tensor:
        if mel.dim() != 2 or mel.shape[0] == 0 or mel.shape[1] != self.config.num_mels:
            raise ValueError(
                f"the mel segment is {tuple(mel.shape)}; "
                f"need [frames, {self.config.num_mels}] with at least one frame"
            )
        return mel.float()


class Encoder(nn.Module):
    """Convolutions, transformer, pooling: everything before the codes. Owns the quantizer, as the names say."""

    def __init__(self, config: MimoAudioTokenizerConfig, backend: str) -> None:
        super().__init__()
        self.config = config
        self.conv1 = nn.Conv1d(config.num_mels, config.dim, _KERNEL, padding=1)
        self.conv2 = nn.Conv1d(config.dim, config.dim, _KERNEL, stride=_STRIDE, padding=1)
        self.layers = nn.ModuleList(Layer(config, window, backend) for window in config.windows)
        self.layer_norm = nn.LayerNorm(config.dim, eps=_EPS)
        self.down_sample_layer = nn.Sequential(
            nn.Conv1d(config.dim, config.dim, _POOL, stride=_POOL, bias=False)
        )
        self.down_sample_norm = nn.LayerNorm(config.dim, eps=_EPS)
        self.quantizer = Quantizer(config)

    def forward(self, mel: torch.Tensor) -> torch.Tensor:
        """[L, M] to the continuous features [P, E]."""
        return self.many([mel])[0]

    def many(self, mels: Sequence[torch.Tensor]) -> tuple[torch.Tensor, list[int]]:
        """Segments [L, M] to their features back to back, and each segment's P."""
        x, lengths = _convolve(mels, self.conv1, [(1, 1)] * len(mels))
        x, lengths = _convolve(F.gelu(x).split(lengths), self.conv2, [(1, 1)] * len(mels))
        x = F.gelu(x)
        longest = _rope(max(lengths), self.config, x.device)
        rope = Rope(*(torch.cat([part[:length] for length in lengths]) for part in longest))
        cu_seqlens = torch.tensor([0, *accumulate(lengths)], dtype=torch.int32)
        skipped = None
        for number, layer in enumerate(self.layers, 1):
            x = layer(x, cu_seqlens, rope)
            if number == self.config.skip_layer:
                skipped = x
        x = self.layer_norm(x if skipped is None else x + skipped)
        pool = self.down_sample_layer[0]
        assert isinstance(pool, nn.Conv1d)
        pooled, rows = _convolve(x.split(lengths), pool, [(0, length % _POOL) for length in lengths])
        features: torch.Tensor = self.down_sample_norm(F.gelu(pooled))
        return features, rows


def _convolve(
    segments: Sequence[torch.Tensor], conv: nn.Conv1d, padding: Sequence[tuple[int, int]]
) -> tuple[torch.Tensor, list[int]]:
    """Each [rows, channels] through a convolution over rows, as one matrix product, which never runs in TF32 by
    default. Returns all rows back to back and their number in each segment.

    padding: zero rows before each segment's first and after its last.
    """
    size, stride = conv.kernel_size[0], conv.stride[0]
    # [rows out, channels, kernel], the layout of the weight.
    taps = [
        F.pad(x, (0, 0, *rows)).unfold(0, size, stride).flatten(1)
        for x, rows in zip(segments, padding, strict=True)
    ]
    return F.linear(torch.cat(taps), conv.weight.flatten(1), conv.bias), [len(rows) for rows in taps]


def _rope(length: int, config: MimoAudioTokenizerConfig, device: torch.device) -> Rope:
    exponent = torch.arange(0, config.head_dim, 2, dtype=torch.float32) / config.head_dim
    frequency = torch.tensor(config.rope_theta, dtype=torch.float32) ** -exponent
    angles = torch.arange(length, dtype=torch.float32)[:, None] * frequency
    return rope_of(angles.to(device))


class Attention(nn.Module):
    def __init__(self, config: MimoAudioTokenizerConfig, window: int | None, backend: str) -> None:
        super().__init__()
        self.head_dim = config.head_dim
        self.window = window
        self.backend = backend
        self.q_proj = nn.Linear(config.dim, config.dim)
        self.k_proj = nn.Linear(config.dim, config.dim, bias=False)
        self.v_proj = nn.Linear(config.dim, config.dim)
        self.out_proj = nn.Linear(config.dim, config.dim)

    def forward(self, x: torch.Tensor, cu_seqlens: torch.Tensor, rope: Rope) -> torch.Tensor:
        query, key, value = (
            proj(x).unflatten(-1, (-1, self.head_dim)) for proj in (self.q_proj, self.k_proj, self.v_proj)
        )
        query, key = rotate(query, rope), rotate(key, rope)
        # One call for each segment: its sums then run in the same order as when it is alone.
        attended = torch.cat(
            [
                encoder_attention(
                    query[start:end],
                    key[start:end],
                    value[start:end],
                    torch.tensor([0, end - start], dtype=torch.int32),
                    window=self.window,
                    causal=True,
                    backend=self.backend,
                )
                for start, end in pairwise(cu_seqlens.tolist())
            ]
        )
        projected: torch.Tensor = self.out_proj(attended.flatten(1))
        return projected


class Layer(nn.Module):
    def __init__(self, config: MimoAudioTokenizerConfig, window: int | None, backend: str) -> None:
        super().__init__()
        self.self_attn_layer_norm = nn.LayerNorm(config.dim, eps=_EPS)
        self.self_attn = Attention(config, window, backend)
        self.final_layer_norm = nn.LayerNorm(config.dim, eps=_EPS)
        self.fc1 = nn.Linear(config.dim, config.intermediate_size)
        self.fc2 = nn.Linear(config.intermediate_size, config.dim)

    def forward(self, x: torch.Tensor, cu_seqlens: torch.Tensor, rope: Rope) -> torch.Tensor:
        x = x + self.self_attn(self.self_attn_layer_norm(x), cu_seqlens, rope)
        out: torch.Tensor = x + self.fc2(F.gelu(self.fc1(self.final_layer_norm(x))))
        return out


class Quantizer(nn.Module):
    """Residual vector quantization: each stage codes what the stages before it left over."""

    def __init__(self, config: MimoAudioTokenizerConfig) -> None:
        super().__init__()
        self.vq = nn.ModuleDict(
            {"layers": nn.ModuleList(Stage(size, config.dim) for size in config.codebook_sizes)}
        )

    def forward(self, features: torch.Tensor) -> torch.Tensor:
        """[P, E] to int64 [P, Q]: per stage the nearest entry of its codebook, the first of equally near ones."""
        return self._codes(features, None)

    def with_near(self, features: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Also bool [P]: rows in which another rounding of the features might have chosen another entry."""
        is_near = torch.zeros(len(features), dtype=torch.bool, device=features.device)
        return self._codes(features, is_near), is_near

    def _codes(self, features: torch.Tensor, is_near: torch.Tensor | None) -> torch.Tensor:
        """Sets `is_near` where a choice was close."""
        residual = features
        codes = []
        stages = self.vq["layers"]
        assert isinstance(stages, nn.ModuleList)
        for stage in stages:
            entries = stage.get_parameter("_codebook.embed")
            # |r - e|^2 without |r|^2, which is the same for every entry.
            distance = entries.square().sum(dim=1) - 2 * residual @ entries.t()
            code = distance.argmin(dim=1)
            if is_near is not None and len(entries) > 1:
                # An error of the features moves the difference of two distances by at most 4 x error x entry.
                nearest = distance.topk(2, dim=1, largest=False).values
                margin = nearest[:, 1] - nearest[:, 0]
                is_near |= margin <= _NEAR * features.norm(dim=1) * entries.norm(dim=1).amax()
            residual = residual - entries[code]
            codes.append(code)
        return torch.stack(codes, dim=1)


class Stage(nn.Module):
    def __init__(self, size: int, dim: int) -> None:
        super().__init__()
        self._codebook = Codebook(size, dim)


class Codebook(nn.Module):
    def __init__(self, size: int, dim: int) -> None:
        super().__init__()
        self.embed = nn.Parameter(torch.zeros(size, dim))
