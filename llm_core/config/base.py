"""The decoder's shape, whatever family it comes from."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

LayerKind = Literal["full", "swa"]


@dataclass(frozen=True, kw_only=True)
class AttentionSpec:
    """Geometry of one kind of attention layer.

    Attributes:
        head_dim: width of Q and K heads. Scores are scaled by head_dim ** -0.5.
        v_head_dim: width of V heads.
        rope_dim: the first rope_dim components of each Q and K head rotate, the rest pass through.
        window_keys: keys a query sees, itself included; None sees all.
        has_sink: one learned logit per query head joins the softmax denominator.
    """

    num_heads: int
    num_kv_heads: int
    head_dim: int
    v_head_dim: int
    rope_dim: int
    rope_theta: float
    window_keys: int | None
    has_sink: bool

    @property
    def q_size(self) -> int:
        return self.num_heads * self.head_dim

    @property
    def k_size(self) -> int:
        return self.num_kv_heads * self.head_dim

    @property
    def v_size(self) -> int:
        return self.num_kv_heads * self.v_head_dim

    @property
    def kv_elements_per_token(self) -> int:
        """Elements one token holds in one layer's K and V caches."""
        return self.k_size + self.v_size


@dataclass(frozen=True, kw_only=True)
class MoeSpec:
    """Routing and size of the mixture-of-experts layers (`topk_method` noaux_tc, `scoring_func` sigmoid)."""

    num_experts: int
    top_k: int
    intermediate_size: int
    num_groups: int
    top_k_groups: int
    normalize: bool
    scaling_factor: float


@dataclass(frozen=True, kw_only=True)
class LayerSpec:
    kind: LayerKind
    is_moe: bool


@dataclass(frozen=True, kw_only=True)
class Fp8Blocks:
    """Weights stored as e4m3 with one float32 factor per block of rows x columns."""

    rows: int
    columns: int


@dataclass(frozen=True, kw_only=True)
class DecoderConfig:
    """A hybrid decoder: full and sliding-window layers, dense and MoE feed-forward.

    Attributes:
        value_scale: V is multiplied by this before it enters the cache.
        qkv_chunks: how many [q|k|v] chunks the checkpoint's fused projection has; 0 for split q, k, v files.
        num_mtp_layers: multi-token-prediction layers the checkpoint may carry.
        max_context: tokens of prompt and answer together.
    """

    family: str
    vocab_size: int
    hidden_size: int
    norm_eps: float
    full: AttentionSpec
    swa: AttentionSpec
    value_scale: float
    layers: tuple[LayerSpec, ...]
    dense_intermediate_size: int
    moe: MoeSpec | None
    qkv_chunks: int
    num_mtp_layers: int
    tie_embeddings: bool
    fp8: Fp8Blocks | None
    max_context: int
    eos_token_ids: tuple[int, ...]

    def attention(self, kind: LayerKind) -> AttentionSpec:
        return self.full if kind == "full" else self.swa

    def num_layers(self, kind: LayerKind) -> int:
        return sum(layer.kind == kind for layer in self.layers)
