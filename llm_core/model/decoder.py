"""The decoder: embedding, hybrid layers, final norm and head, and the multi-token-prediction layers' weights."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from llm_core.config import DecoderConfig, LayerKind
from llm_core.model.attention import Attention
from llm_core.model.batch import ForwardBatch, KVCaches
from llm_core.model.layers import DenseMLP, Linear, MoeMLP, RMSNorm, rope_tables
from llm_core.model.ops import Ops, create_ops


class DecoderLayer(nn.Module):
    """Pre-norm attention and feed-forward on the residual stream."""

    def __init__(self, config: DecoderConfig, index: int, cache_index: int, ops: Ops) -> None:
        super().__init__()
        spec = config.layers[index]
        self.kind: LayerKind = spec.kind
        self.input_layernorm = RMSNorm(config.hidden_size, config.norm_eps, ops)
        self.self_attn = Attention(config, spec.kind, cache_index, ops)
        self.post_attention_layernorm = RMSNorm(config.hidden_size, config.norm_eps, ops)
        self.mlp: nn.Module = (
            MoeMLP(config, ops)
            if spec.is_moe
            else DenseMLP(config.hidden_size, config.dense_intermediate_size, ops)
        )

    def forward(
        self, x_TH: Tensor, batch: ForwardBatch, caches: KVCaches, rope: tuple[Tensor, Tensor]
    ) -> Tensor:
        x_TH = x_TH + self.self_attn(self.input_layernorm(x_TH), batch, caches, rope)
        out: Tensor = x_TH + self.mlp(self.post_attention_layernorm(x_TH))
        return out


class MtpLayer(nn.Module):
    """Weights of one multi-token-prediction layer: sliding-window geometry and a dense feed-forward."""

    def __init__(self, config: DecoderConfig, cache_index: int, ops: Ops) -> None:
        super().__init__()
        size, eps = config.hidden_size, config.norm_eps
        self.enorm = RMSNorm(size, eps, ops)
        self.hnorm = RMSNorm(size, eps, ops)
        self.eh_proj = Linear(2 * size, size, ops)
        self.input_layernorm = RMSNorm(size, eps, ops)
        self.self_attn = Attention(config, "swa", cache_index, ops)
        self.pre_mlp_layernorm = RMSNorm(size, eps, ops)
        self.mlp = DenseMLP(size, config.dense_intermediate_size, ops)
        self.final_layernorm = RMSNorm(size, eps, ops)


class HybridDecoder(nn.Module):
    """A decoder of `config`'s shape. Built on the meta device by the loader, which then fills it.

    Args:
        backend: of the attention and experts ops ("reference" or "cpu").
        with_mtp: also hold the multi-token-prediction layers.
    """

    def __init__(self, config: DecoderConfig, *, backend: str, with_mtp: bool = False) -> None:
        super().__init__()
        self.config = config
        ops = create_ops(backend)
        self.linear = ops.linear
        self.embed_tokens = nn.Embedding(config.vocab_size, config.hidden_size)
        self.embed_tokens.weight.requires_grad_(False)
        seen: dict[LayerKind, int] = {"full": 0, "swa": 0}
        layers = []
        for index, spec in enumerate(config.layers):
            layers.append(DecoderLayer(config, index, seen[spec.kind], ops))
            seen[spec.kind] += 1
        self.layers = nn.ModuleList(layers)
        self.norm = RMSNorm(config.hidden_size, config.norm_eps, ops)
        self.lm_head = None if config.tie_embeddings else Linear(config.hidden_size, config.vocab_size, ops)
        num_mtp = config.num_mtp_layers if with_mtp else 0
        self.mtp = nn.ModuleList(MtpLayer(config, seen["swa"] + k, ops) for k in range(num_mtp))

    def embed(self, token_ids: Tensor) -> Tensor:
        """[T, hidden] of [T] ids, in the activations' dtype."""
        return F.embedding(token_ids, self.embed_tokens.weight).to(self.dtype)

    def forward(self, x_TH: Tensor, batch: ForwardBatch, caches: KVCaches) -> Tensor:
        """Hidden states [T, hidden] after the final norm, from embeddings [T, hidden]."""
        tables = {
            kind: rope_tables(batch.positions, self.config.attention(kind), x_TH.dtype)
            for kind in batch.slots
        }
        for layer in self.layers:
            assert isinstance(layer, DecoderLayer)
            x_TH = layer(x_TH, batch, caches, tables[layer.kind])
        out: Tensor = self.norm(x_TH)
        return out

    def logits(self, hidden_NH: Tensor) -> Tensor:
        """[N, vocab] float32."""
        head = self.embed_tokens.weight if self.lm_head is None else self.lm_head.weight
        return self.linear(hidden_NH, head).float()

    @property
    def cached_layers(self) -> list[tuple[LayerKind, int]]:
        """Kind of each layer, and the how manyth of its kind it is, in the order in which they run."""
        layers = [layer for layer in self.layers if isinstance(layer, DecoderLayer)]
        return [(layer.kind, layer.self_attn.cache_index) for layer in layers]

    def num_parameters(self) -> int:
        return sum(parameter.numel() for parameter in self.parameters())

    @property
    def dtype(self) -> torch.dtype:
        """Of the activations; the weights may be narrower."""
        return self.norm.weight.dtype
