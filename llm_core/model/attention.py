"""One attention layer: fused projection, partial rope, cache write, attention, output projection."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from llm_core.config import AttentionSpec, DecoderConfig, LayerKind
from llm_core.model.batch import ForwardBatch, KVCaches
from llm_core.model.layers import Linear, rotate_
from llm_core.model.ops import Ops


class Attention(nn.Module):
    """Attention of one layer kind. qkv_proj holds all q rows, then all k rows, then all v rows, in head order."""

    def __init__(self, config: DecoderConfig, kind: LayerKind, cache_index: int, ops: Ops) -> None:
        super().__init__()
        spec = config.attention(kind)
        self.spec: AttentionSpec = spec
        self.kind: LayerKind = kind
        self.cache_index = cache_index
        self.ops = ops.attention
        self.value_scale = config.value_scale
        self.qkv_proj = Linear(config.hidden_size, spec.q_size + spec.k_size + spec.v_size, ops)
        self.o_proj = Linear(spec.num_heads * spec.v_head_dim, config.hidden_size, ops)
        self.attention_sink_bias = (
            nn.Parameter(torch.empty(spec.num_heads), requires_grad=False) if spec.has_sink else None
        )

    def forward(
        self, x_TH: Tensor, batch: ForwardBatch, caches: KVCaches, rope: tuple[Tensor, Tensor]
    ) -> Tensor:
        spec = self.spec
        num_tokens = x_TH.shape[0]
        qkv = self.qkv_proj(x_TH)
        qk_THK = qkv[:, : spec.q_size + spec.k_size].view(num_tokens, -1, spec.head_dim)
        rotate_(qk_THK, spec.rope_dim, rope)
        q_THK, k_TGK = qk_THK[:, : spec.num_heads], qk_THK[:, spec.num_heads :]
        v_TGV = qkv[:, spec.q_size + spec.k_size :].mul_(self.value_scale)
        v_TGV = v_TGV.view(num_tokens, spec.num_kv_heads, spec.v_head_dim)
        caches.write(self.kind, self.cache_index, batch.slots[self.kind], k_TGK, v_TGV)

        k_cache = caches.keys(self.kind, self.cache_index)
        v_cache = caches.values(self.kind, self.cache_index)
        outputs = []
        for part in batch.ranges:
            op = self.ops.decode if part.is_decode else self.ops.prefill
            outputs.append(
                op(
                    q_THK[part.begin : part.end],
                    k_cache,
                    v_cache,
                    part.layouts[self.kind],
                    scale=spec.head_dim**-0.5,
                    window_keys=spec.window_keys,
                    sinks_H=self.attention_sink_bias,
                )
            )
        out_THV = outputs[0] if len(outputs) == 1 else torch.cat(outputs)
        result: Tensor = self.o_proj(out_THV.flatten(1))
        return result
