"""Packed attention of media encoders: full, causal or windowed inside segments, optional sinks, GQA.

Knows tensors only: no model, no image, no audio.
"""

from __future__ import annotations

import torch

from kernels.encoder_attention.cpu import encoder_attention_cpu
from kernels.encoder_attention.differentiable import encoder_attention_differentiable
from kernels.encoder_attention.reference import encoder_attention_reference

_BACKENDS = {
    "reference": encoder_attention_reference,
    "cpu": encoder_attention_cpu,
    "differentiable": encoder_attention_differentiable,
}


def encoder_attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    cu_seqlens: torch.Tensor,
    *,
    window: int | None = None,
    causal: bool = False,
    sinks: torch.Tensor | None = None,
    backend: str,
) -> torch.Tensor:
    """Each token attends to the tokens of its own segment: both ways, or with `causal` to none after itself.

    query: [T, Hq, D]. key: [T, Hkv, D]. value: [T, Hkv, Dv]; query head h reads key head h // (Hq // Hkv).
    cu_seqlens: int32 or int64 [S + 1], starts at 0, ends at T; segment s is [cu_seqlens[s], cu_seqlens[s + 1]).
    window: token i sees j only where |i - j| <= window, counted in this order; None sees the whole segment.
    causal: token i sees j only where j <= i; with a window these are window + 1 tokens, itself included.
    sinks: [Hq], one logit per query head that joins the softmax's denominator and has no value.
    Scores are scaled by D ** -0.5. Returns [T, Hq, Dv] in query's dtype; softmax runs in float32.
    backend: "reference" is the definition, "cpu" the fast form, "differentiable" the one to train with.
    Raises ValueError for another backend, or for shapes, dtypes, devices or segments that do not fit.
    """
    if backend not in _BACKENDS:
        raise ValueError(f"encoder attention backend {backend!r} is unknown; use one of {sorted(_BACKENDS)}")
    _check(query, key, value, cu_seqlens, window, sinks)
    return _BACKENDS[backend](query, key, value, cu_seqlens, window, causal, sinks)


def _check(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    cu_seqlens: torch.Tensor,
    window: int | None,
    sinks: torch.Tensor | None,
) -> None:
    shapes = f"query {tuple(query.shape)}, key {tuple(key.shape)}, value {tuple(value.shape)}"
    if query.dim() != 3 or key.dim() != 3 or value.dim() != 3:
        raise ValueError(f"{shapes}: each must be [tokens, heads, width]")
    if not query.shape[0] == key.shape[0] == value.shape[0] or key.shape[1] != value.shape[1]:
        raise ValueError(f"{shapes}: token counts must agree, and the heads of key and value")
    if query.shape[2] != key.shape[2] or query.shape[1] % key.shape[1]:
        raise ValueError(f"{shapes}: query and key need one width, and query heads a multiple of key heads")
    if not query.dtype == key.dtype == value.dtype or not query.dtype.is_floating_point:
        raise ValueError(
            f"query {query.dtype}, key {key.dtype}, value {value.dtype}: need one floating dtype"
        )
    if len({tensor.device for tensor in (query, key, value)}) != 1:
        raise ValueError(
            f"query on {query.device}, key on {key.device}, value on {value.device}: need one device"
        )
    if cu_seqlens.dim() != 1 or cu_seqlens.numel() < 1 or cu_seqlens.dtype not in (torch.int32, torch.int64):
        raise ValueError(
            f"cu_seqlens is {cu_seqlens.dtype} {tuple(cu_seqlens.shape)}; need int32 or int64 [S + 1]"
        )
    bounds: list[int] = cu_seqlens.tolist()
    if bounds[0] != 0 or bounds[-1] != query.shape[0] or bounds != sorted(bounds):
        raise ValueError(
            f"cu_seqlens must rise from 0 to {query.shape[0]} tokens; it runs {bounds[0]}..{bounds[-1]}"
        )
    if window is not None and window < 0:
        raise ValueError(f"window is {window}; need 0 or more, or None for full attention")
    if sinks is not None and (sinks.shape != (query.shape[1],) or sinks.device != query.device):
        raise ValueError(
            f"sinks is {tuple(sinks.shape)} on {sinks.device}; need [{query.shape[1]}] on {query.device}"
        )
