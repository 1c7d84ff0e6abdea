"""The decoder of llm_core with gradients: the same mathematics on whole conversations, without caches.

Parameter names are the hub's without `model.`; the exporter fuses the attention projections. Multi-token-prediction
layers are here too. Shape letters: B conversations, S positions of the longest, N positions of all, H hidden size.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import nn

from llm_core.config import AttentionSpec, DecoderConfig, LayerKind, MoeSpec
from samples.demo_training.architecture import initialise
from samples.demo_training.training import sum_over_processes

_BALANCE_RATE = 1e-3


class Decoder(nn.Module):
    """embed_tokens, layers, norm and lm_head; `mtp` beside them."""

    def __init__(self, config: DecoderConfig) -> None:
        super().__init__()
        self.config = config
        size, eps = config.hidden_size, config.norm_eps
        self.embed_tokens = nn.Embedding(config.vocab_size, size)
        self.layers = nn.ModuleList(Layer(config, spec.kind, is_moe=spec.is_moe) for spec in config.layers)
        self.norm = nn.RMSNorm(size, eps=eps)
        self.lm_head = nn.Linear(size, config.vocab_size, bias=False)
        self.mtp = nn.ModuleDict(
            {"layers": nn.ModuleList(MtpLayer(config) for _ in range(config.num_mtp_layers))}
        )
        initialise(self)
        nn.init.normal_(self.embed_tokens.weight)
        nn.init.normal_(self.lm_head.weight, std=0.02)

    def forward(
        self, embedded: torch.Tensor, lengths: Sequence[int], between: Sequence[int] = ()
    ) -> tuple[torch.Tensor, list[torch.Tensor]]:
        """embedded: [N, H], conversations of these lengths back to back.

        Hidden states after the final norm, and what the layers with the numbers `between` put out.
        """
        batch = Batch(self.config, lengths, embedded.device)
        kept = {}
        for number, layer in enumerate(self.layers):
            embedded = layer(embedded, batch)
            kept[number] = embedded
        hidden: torch.Tensor = self.norm(embedded)
        return hidden, [kept[number] for number in between]

    def draft(
        self, layer: int, embedded_next: torch.Tensor, hidden: torch.Tensor, lengths: Sequence[int]
    ) -> torch.Tensor:
        """What multi-token-prediction layer `layer` hands to the head: [N, H].

        embedded_next: [N, H], at position t the embedding of token t + 1 + layer. hidden: `forward`'s at t.
        """
        batch = Batch(self.config, lengths, hidden.device)
        drafted: torch.Tensor = self.mtp["layers"][layer](embedded_next, hidden, batch)  # type: ignore[index]
        return drafted

    def balance(self) -> None:
        """Moves each router's selection bias against its experts' load, as `noaux_tc` training does."""
        routers = [module for module in self.modules() if isinstance(module, Router)]
        sum_over_processes([router.get_buffer("load") for router in routers])
        for router in routers:
            router.balance()


class Batch:
    """Which positions see which, their rotation, and the way from packed rows to padded ones and back."""

    def __init__(self, config: DecoderConfig, lengths: Sequence[int], device: torch.device) -> None:
        longest = max(lengths)
        window = config.attention("swa").window_keys
        assert window is not None
        # Whole windows, so that one that slides meets only its own block of keys and the block before.
        longest = -(-longest // window) * window
        self.shape = len(lengths), longest
        self.rows = torch.cat(
            [torch.arange(length, device=device) + row * longest for row, length in enumerate(lengths)]
        )
        position = torch.arange(longest, device=device)
        # [blocks, rows, columns]: one block of all rows, or each window's rows and its keys and those before it.
        first = torch.arange(0, longest, window, device=device).view(-1, 1, 1)
        row = first + torch.arange(window, device=device)[:, None]
        column = first - window + torch.arange(2 * window, device=device)
        self.hidden: dict[LayerKind, torch.Tensor] = {
            "full": (position[:, None] < position)[None],
            "swa": (row < column) | (row >= column + window) | (column < 0),
        }
        self.rope: dict[LayerKind, tuple[torch.Tensor, torch.Tensor]] = {}
        kinds: tuple[LayerKind, ...] = ("full", "swa")
        for kind in kinds:
            spec = config.attention(kind)
            exponent = torch.arange(0, spec.rope_dim, 2, device=device, dtype=torch.float32) / spec.rope_dim
            angles = position[:, None] * spec.rope_theta**-exponent
            self.rope[kind] = angles.cos(), angles.sin()

    def padded(self, x: torch.Tensor, width: int) -> torch.Tensor:
        """[N, heads * width] to [B, heads, S, width], zeros behind the end of a conversation."""
        rows = x.new_zeros(self.shape[0] * self.shape[1], x.shape[1]).index_copy(0, self.rows, x)
        return rows.view(*self.shape, -1, width).transpose(1, 2)

    def packed(self, x: torch.Tensor) -> torch.Tensor:
        """[B, heads, S, width] to [N, heads * width]."""
        return x.transpose(1, 2).flatten(2).flatten(0, 1).index_select(0, self.rows)


class Attention(nn.Module):
    """Written out: with keys and values of unlike widths, sinks and masks the fused one is no faster on a CPU."""

    def __init__(self, config: DecoderConfig, kind: LayerKind) -> None:
        super().__init__()
        self.kind = kind
        self.spec: AttentionSpec = config.attention(kind)
        self.value_scale = config.value_scale
        size = config.hidden_size
        self.q_proj = nn.Linear(size, self.spec.q_size, bias=False)
        self.k_proj = nn.Linear(size, self.spec.k_size, bias=False)
        self.v_proj = nn.Linear(size, self.spec.v_size, bias=False)
        self.o_proj = nn.Linear(self.spec.num_heads * self.spec.v_head_dim, size, bias=False)
        sinks = nn.Parameter(torch.zeros(self.spec.num_heads)) if self.spec.has_sink else None
        self.attention_sink_bias = sinks

    def forward(self, x: torch.Tensor, batch: Batch) -> torch.Tensor:
        spec, heads = self.spec, self.spec.num_heads
        rope, hidden = batch.rope[self.kind], batch.hidden[self.kind]
        query = _rotated(batch.padded(self.q_proj(x) * spec.head_dim**-0.5, spec.head_dim), spec, rope)
        key = _rotated(batch.padded(self.k_proj(x), spec.head_dim), spec, rope)
        value = batch.padded(self.v_proj(x) * self.value_scale, spec.v_head_dim)
        blocks, rows, columns = hidden.shape
        # [B, KV heads, blocks, rows or columns, width]
        query = query.unflatten(1, (spec.num_kv_heads, -1)).unflatten(3, (-1, rows)).transpose(2, 3)
        key, value = (_blocks(part, rows, columns) for part in (key, value))
        bias = x.new_zeros(hidden.shape).masked_fill(hidden, float("-inf"))
        bias = bias.view(1, blocks, 1, rows, columns).expand(
            spec.num_kv_heads, -1, heads // spec.num_kv_heads, -1, -1
        )
        if self.attention_sink_bias is not None:
            # One more key, all zeros, so that its score is the sink alone; its value is zero, too.
            sink = self.attention_sink_bias.view(spec.num_kv_heads, 1, -1, 1, 1)
            bias = torch.cat([bias, sink.expand(*bias.shape[:-1], 1)], dim=-1)
            key, value = F.pad(key, (0, 0, 0, 1)), F.pad(value, (0, 0, 0, 1))
        scores = query.flatten(3, 4) @ key.mT
        bias = bias.flatten(2, 3)
        attended: torch.Tensor = (scores + bias).softmax(dim=-1) @ value
        # [B, KV heads, blocks, heads of one * rows, width] back to [B, heads, S, width].
        heads_together = attended.unflatten(3, (-1, rows)).transpose(2, 3).flatten(3, 4).flatten(1, 2)
        out: torch.Tensor = self.o_proj(batch.packed(heads_together))
        return out


def _blocks(x: torch.Tensor, rows: int, columns: int) -> torch.Tensor:
    """[B, heads, S, D] to [B, heads, S / rows, columns, D]: for each block of rows the columns up to its end."""
    blocks: torch.Tensor = x.unflatten(2, (-1, rows))
    if columns == rows:
        return blocks
    before = F.pad(blocks, (0, 0, 0, 0, 1, 0))[:, :, :-1]
    return torch.cat([before, blocks], dim=3)


def _rotated(x: torch.Tensor, spec: AttentionSpec, rope: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
    """[B, heads, S, D] with its first rope_dim components rotated, component i paired with i + rope_dim / 2."""
    cos, sin = rope
    half = spec.rope_dim // 2
    low, high, rest = x[..., :half], x[..., half : spec.rope_dim], x[..., spec.rope_dim :]
    return torch.cat([low * cos - high * sin, high * cos + low * sin, rest], dim=-1)


class Mlp(nn.Module):
    def __init__(self, size: int, width: int) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(size, width, bias=False)
        self.up_proj = nn.Linear(size, width, bias=False)
        self.down_proj = nn.Linear(width, size, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))
        return out


class Router(nn.Module):
    """Sigmoid scores; a bias that training moves steers the choice only."""

    def __init__(self, size: int, spec: MoeSpec) -> None:
        super().__init__()
        self.spec = spec
        self.weight = nn.Parameter(torch.zeros(spec.num_experts, size))
        self.register_buffer("e_score_correction_bias", torch.zeros(spec.num_experts))
        self.register_buffer("load", torch.zeros(spec.num_experts), persistent=False)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Weights and ids of the chosen experts, both [N, K]."""
        scores = F.linear(x, self.weight).sigmoid()
        bias, load = self.get_buffer("e_score_correction_bias"), self.get_buffer("load")
        ids = (scores.detach() + bias).topk(self.spec.top_k, dim=-1, sorted=False).indices
        if self.training:
            load += ids.flatten().bincount(minlength=self.spec.num_experts)
        weights = scores.gather(1, ids)
        return weights / (weights.sum(dim=-1, keepdim=True) + 1e-20), ids

    def balance(self) -> None:
        bias, load = self.get_buffer("e_score_correction_bias"), self.get_buffer("load")
        bias += _BALANCE_RATE * (load.mean() - load).sign()
        load.zero_()


class Experts(nn.Module):
    def __init__(self, size: int, spec: MoeSpec) -> None:
        super().__init__()
        self.gate = Router(size, spec)
        self.experts = nn.ModuleList(Mlp(size, spec.intermediate_size) for _ in range(spec.num_experts))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        weights, ids = self.gate(x)
        # Pairs (row, choice) in the order of their experts, so that each expert reads and writes one slice.
        order = ids.flatten().argsort(stable=True)
        counts = ids.flatten().bincount(minlength=len(self.experts)).tolist()
        source = order // ids.shape[1]
        slices = x.index_select(0, source).split(counts)
        outputs = torch.cat([expert(part) for expert, part in zip(self.experts, slices, strict=True)])
        outputs = outputs * weights.flatten().index_select(0, order).unsqueeze(1)
        return torch.zeros_like(x).index_add(0, source, outputs)


class Layer(nn.Module):
    def __init__(self, config: DecoderConfig, kind: LayerKind, *, is_moe: bool) -> None:
        super().__init__()
        size, eps = config.hidden_size, config.norm_eps
        self.input_layernorm = nn.RMSNorm(size, eps=eps)
        self.self_attn = Attention(config, kind)
        self.post_attention_layernorm = nn.RMSNorm(size, eps=eps)
        if is_moe:
            assert config.moe is not None
            self.mlp: nn.Module = Experts(size, config.moe)
        else:
            self.mlp = Mlp(size, config.dense_intermediate_size)

    def forward(self, x: torch.Tensor, batch: Batch) -> torch.Tensor:
        x = x + self.self_attn(self.input_layernorm(x), batch)
        out: torch.Tensor = x + self.mlp(self.post_attention_layernorm(x))
        return out


class MtpLayer(nn.Module):
    def __init__(self, config: DecoderConfig) -> None:
        super().__init__()
        size, eps = config.hidden_size, config.norm_eps
        self.enorm = nn.RMSNorm(size, eps=eps)
        self.hnorm = nn.RMSNorm(size, eps=eps)
        self.eh_proj = nn.Linear(2 * size, size, bias=False)
        self.input_layernorm = nn.RMSNorm(size, eps=eps)
        self.self_attn = Attention(config, "swa")
        self.pre_mlp_layernorm = nn.RMSNorm(size, eps=eps)
        self.mlp = Mlp(size, config.dense_intermediate_size)
        self.final_layernorm = nn.RMSNorm(size, eps=eps)

    def forward(self, embedded: torch.Tensor, hidden: torch.Tensor, batch: Batch) -> torch.Tensor:
        x = self.eh_proj(torch.cat([self.enorm(embedded), self.hnorm(hidden)], dim=-1))
        x = x + self.self_attn(self.input_layernorm(x), batch)
        x = x + self.mlp(self.pre_mlp_layernorm(x))
        out: torch.Tensor = self.final_layernorm(x)
        return out
