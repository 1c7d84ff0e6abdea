"""The decoder of llm_core with gradients: the same mathematics on whole conversations, without caches.

Parameter names are the hub's without `model.`; the exporter fuses the attention projections. Multi-token-prediction
layers are here too. Shape letters: N positions of all conversations, W of a window, H hidden size.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import nn

from llm_core.config import AttentionSpec, DecoderConfig, LayerKind, MoeSpec
from samples.demo_training.architecture import initialise
from samples.demo_training.processes import sum_over_processes

_BALANCE_RATE = 1e-3
# Products in bfloat16 are compiled for each number of rows, which takes longer than some of them: few numbers occur
# when rows are filled up to a multiple of these.
_ROW_STEP, _EXPERT_ROW_STEP = 128, 64


def _row_step(step: int) -> int:
    return step if torch.is_autocast_enabled("cpu") else 1


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

        Hidden states after the final norm, and what the layers with the numbers `between` put out; that of layer -1
        is what goes into the first.
        """
        rows = len(embedded)
        filler = -rows % _row_step(_ROW_STEP)
        if filler:
            # One more conversation; what is routed in it is like the rest.
            again = torch.arange(filler, device=embedded.device) % rows
            embedded = torch.cat([embedded, embedded.detach()[again]])
            lengths = [*lengths, filler]
        batch = Batch(self.config, lengths, embedded.device)
        kept = {-1: embedded}
        for number, layer in enumerate(self.layers):
            embedded = layer(embedded, batch)
            kept[number] = embedded
        hidden: torch.Tensor = self.norm(embedded)
        return hidden[:rows], [kept[number][:rows] for number in between]

    def looks(
        self,
        layer: int,
        embedded: torch.Tensor,
        rows: torch.Tensor,
        heads: Sequence[int],
        lengths: Sequence[int],
    ) -> torch.Tensor:
        """`Attention.looks` of a layer. embedded: [N, H], what goes into it."""
        module = self.layers[layer]
        assert isinstance(module, Layer)
        batch = Batch(self.config, lengths, embedded.device)
        return module.self_attn.looks(module.input_layernorm(embedded), rows, heads, batch)

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
    """Where the positions of packed conversations lie in windows, which of them see which, and their rotation.

    Attributes:
        lengths: of the conversations.
        places: int64 [N], where each position lies when every conversation begins a window of its own.
        num_windows: of all conversations; W positions each.
        bias: [windows, 1, 1, W, 2 W], minus infinity where a row of a window may not see a column of it and the
            window before.
        rope: cos and sin by layer kind, [N, 1, rope_dim / 2].
    """

    def __init__(self, config: DecoderConfig, lengths: Sequence[int], device: torch.device) -> None:
        window = config.attention("swa").window_keys
        assert window is not None
        self.lengths = list(lengths)
        self.window = window
        counts = torch.tensor([-(-length // window) for length in lengths], device=device)
        self.num_windows = int(counts.sum())
        firsts = counts.cumsum(0) - counts
        position = torch.cat([torch.arange(length, device=device) for length in lengths])
        self.places = position + window * firsts.repeat_interleave(torch.tensor(lengths, device=device))
        row = torch.arange(window, device=device)[:, None]
        column = torch.arange(-window, window, device=device)
        hidden = ((row < column) | (row >= column + window)).repeat(self.num_windows, 1, 1)
        hidden[firsts] |= column < 0
        self.bias = torch.zeros(hidden.shape, device=device).masked_fill(hidden, float("-inf"))[:, None, None]
        self.rope: dict[LayerKind, tuple[torch.Tensor, torch.Tensor]] = {}
        kinds: tuple[LayerKind, ...] = ("full", "swa")
        for kind in kinds:
            spec = config.attention(kind)
            exponent = torch.arange(0, spec.rope_dim, 2, device=device, dtype=torch.float32) / spec.rope_dim
            angles = (position[:, None] * spec.rope_theta**-exponent)[:, None]
            self.rope[kind] = angles.cos(), angles.sin()

    def in_windows(self, x: torch.Tensor) -> torch.Tensor:
        """[N, heads, width] to [windows, heads, W, width], zeros behind the end of a conversation."""
        rows = x.new_zeros(self.num_windows * self.window, *x.shape[1:]).index_copy(0, self.places, x)
        return rows.view(self.num_windows, self.window, *x.shape[1:]).transpose(1, 2)

    def packed(self, x: torch.Tensor) -> torch.Tensor:
        """[windows, heads, W, width] to [N, heads, width]."""
        return x.transpose(1, 2).flatten(0, 1).index_select(0, self.places)


class Attention(nn.Module):
    """Keys, values, rotation, sinks and window as in the engine, without a cache."""

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
        spec, rope = self.spec, batch.rope[self.kind]
        query = _rotated(self.q_proj(x).unflatten(1, (-1, spec.head_dim)), spec, rope)
        key = _rotated(self.k_proj(x).unflatten(1, (-1, spec.head_dim)), spec, rope)
        value = (self.v_proj(x) * self.value_scale).unflatten(1, (-1, spec.v_head_dim))
        attend = self._attend_all if spec.window_keys is None else self._attend_window
        out: torch.Tensor = self.o_proj(attend(query, key, value, batch).flatten(1))
        return out

    def looks(self, x: torch.Tensor, rows: torch.Tensor, heads: Sequence[int], batch: Batch) -> torch.Tensor:
        """Logarithm of how much some heads at some positions attend to every one: [rows, heads, N]. rows: int64.

        Minus infinity where a position does not see another; windows and sinks do not count.
        """
        rope, spec = batch.rope[self.kind], self.spec
        ratio = spec.num_heads // spec.num_kv_heads
        query = self.q_proj(x[rows]).unflatten(1, (-1, spec.head_dim))[:, list(heads)]
        query = _rotated(query, spec, (rope[0][rows], rope[1][rows])) * spec.head_dim**-0.5
        key = self.k_proj(x).unflatten(1, (-1, spec.head_dim))[:, [head // ratio for head in heads]]
        scores = torch.einsum("rhd,nhd->rhn", query, _rotated(key, spec, rope))
        number = torch.arange(len(batch.lengths), device=x.device)
        owner = number.repeat_interleave(torch.tensor(batch.lengths, device=x.device))
        place = torch.arange(len(x), device=x.device)
        unseen = (owner[rows, None] != owner) | (place > rows[:, None])
        return scores.float().masked_fill(unseen[:, None], float("-inf")).log_softmax(dim=-1)

    def _attend_all(
        self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, batch: Batch
    ) -> torch.Tensor:
        """[N, heads, width] each; a conversation at a time, as lengths differ."""
        assert self.attention_sink_bias is None
        width = value.shape[2]
        # The fused attention of CPUs wants values as wide as keys.
        value = F.pad(value, (0, self.spec.head_dim - width)).to(query.dtype)
        heads_first = (part.transpose(0, 1)[None].split(batch.lengths, dim=2) for part in (query, key, value))
        # In bfloat16 its gradient takes twice as long.
        with torch.autocast("cpu", enabled=False):
            outputs = [
                F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
                for q, k, v in zip(*heads_first, strict=True)
            ]
        return torch.cat(outputs, dim=2)[0].transpose(0, 1)[..., :width]

    def _attend_window(
        self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, batch: Batch
    ) -> torch.Tensor:
        """[N, heads, width] each; a window of rows meets its own columns and those of the window before.

        Written out: with a mask and a sink the fused attention is no faster on a CPU.
        """
        groups, rows = self.spec.num_kv_heads, batch.window
        query = batch.in_windows(query * self.spec.head_dim**-0.5)
        key, value = (_with_window_before(batch.in_windows(part)) for part in (key, value))
        bias = batch.bias
        if self.attention_sink_bias is not None:
            # One more key, all zeros, so that its score is the sink alone; its value is zero, too.
            sink = self.attention_sink_bias.view(1, groups, -1, 1, 1)
            shape = batch.num_windows, groups, sink.shape[2], rows
            bias = torch.cat([bias.expand(*shape, -1), sink.expand(*shape, -1)], dim=-1)
            key, value = F.pad(key, (0, 0, 0, 1)), F.pad(value, (0, 0, 0, 1))
        # All rows of the heads that share a key.
        query = query.unflatten(1, (groups, -1)).flatten(2, 3)
        scores = (query @ key.mT).unflatten(2, (-1, rows)) + bias
        attended = scores.softmax(dim=-1).flatten(2, 3) @ value
        return batch.packed(attended.unflatten(2, (-1, rows)).flatten(1, 2))


def _with_window_before(x: torch.Tensor) -> torch.Tensor:
    """[windows, heads, W, width] to [windows, heads, 2 W, width]; a first window's is not its conversation's, and
    hidden."""
    return torch.cat([x.roll(1, dims=0), x], dim=2)


def _rotated(x: torch.Tensor, spec: AttentionSpec, rope: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
    """[N, heads, D] with its first rope_dim components rotated, component i paired with i + rope_dim / 2."""
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

    def forward(self, x: torch.Tensor, weight: torch.Tensor | None = None) -> torch.Tensor:
        """weight: [N, 1], of each row's output."""
        inner = F.silu(self.gate_proj(x)) * self.up_proj(x)
        # Where the rows are narrow.
        out: torch.Tensor = self.down_proj(inner if weight is None else inner * weight)
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
        # Whatever the other products are made in: so does the engine.
        with torch.autocast("cpu", enabled=False):
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
        counts = ids.flatten().bincount(minlength=len(self.experts))
        step = _row_step(_EXPERT_ROW_STEP)
        padded = (counts + step - 1) // step * step
        # Where each pair stands when every expert's slice is filled up with zeros.
        before = (padded - counts).cumsum(0) - (padded - counts)
        place = torch.arange(len(order), device=x.device) + before.repeat_interleave(counts)
        source = order // ids.shape[1]
        rows = x.new_zeros(int(padded.sum()), x.shape[1]).index_copy(0, place, x.index_select(0, source))
        share = weights.flatten().index_select(0, order).unsqueeze(1)
        shares = share.new_zeros(len(rows), 1).index_copy(0, place, share)
        sizes = padded.tolist()
        outputs = [
            expert(*parts)
            for expert, *parts in zip(self.experts, rows.split(sizes), shares.split(sizes), strict=True)
        ]
        chosen = torch.cat(outputs).index_select(0, place).to(x.dtype)
        return torch.zeros_like(x).index_add(0, source, chosen)


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
