"""Where each tensor of a MiMo-V2 checkpoint goes in a `HybridDecoder`.

The one source of the hub's names: the loader, the checkpoint maker and the name tests all read it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch

from llm_core.config import AttentionSpec, DecoderConfig

SCALE_SUFFIX = "_scale_inv"
# Tensors of the encoders, which are not the decoder's to read.
FOREIGN_PREFIXES = ("visual.", "audio_encoder.", "audio_tokenizer.", "speech_embeddings.")
MTP_PREFIX = "model.mtp."


@dataclass(frozen=True, kw_only=True)
class TensorSpec:
    """Shape and dtype of a stored tensor."""

    shape: tuple[int, ...]
    dtype: torch.dtype


@dataclass(frozen=True, kw_only=True)
class Placement:
    """A stored tensor fills rows [row, row + shape[0]) of parameter `target` (of its `expert`-th matrix).

    Attributes:
        chunks: the stored rows are this many [q|k|v] chunks, each quantised by itself; 1 for plain rows.
        is_quantizable: stored as fp8 blocks when the checkpoint is quantised.
        is_float32: kept in float32 whatever the model's dtype.
    """

    target: str
    shape: tuple[int, ...]
    row: int = 0
    expert: int | None = None
    chunks: int = 1
    is_quantizable: bool = False
    is_float32: bool = False


def placements(config: DecoderConfig, *, with_mtp: bool = True) -> dict[str, Placement]:
    """Hub name -> placement of every text tensor, and of the MTP layers' when asked for."""
    return dict(_all(config, with_mtp))


def _all(config: DecoderConfig, with_mtp: bool) -> Iterator[tuple[str, Placement]]:
    size = config.hidden_size
    matrix = (config.vocab_size, size)
    yield "model.embed_tokens.weight", Placement(target="embed_tokens.weight", shape=matrix)
    yield "model.norm.weight", Placement(target="norm.weight", shape=(size,))
    if not config.tie_embeddings:
        yield "lm_head.weight", Placement(target="lm_head.weight", shape=matrix)
    for index, layer in enumerate(config.layers):
        hub, own = f"model.layers.{index}.", f"layers.{index}."
        for norm in ("input_layernorm.weight", "post_attention_layernorm.weight"):
            yield hub + norm, Placement(target=own + norm, shape=(size,))
        yield from _attention(config, config.attention(layer.kind), hub + "self_attn.", own + "self_attn.")
        if layer.is_moe:
            yield from _moe(config, hub + "mlp.", own + "mlp.")
        else:
            yield from _dense(config, hub + "mlp.", own + "mlp.")
    for k in range(config.num_mtp_layers if with_mtp else 0):
        hub, own = f"{MTP_PREFIX}layers.{k}.", f"mtp.{k}."
        for norm in ("enorm", "hnorm", "input_layernorm", "pre_mlp_layernorm", "final_layernorm"):
            yield f"{hub}{norm}.weight", Placement(target=f"{own}{norm}.weight", shape=(size,))
        yield hub + "eh_proj.weight", Placement(target=own + "eh_proj.weight", shape=(size, 2 * size))
        yield from _attention(config, config.swa, hub + "self_attn.", own + "self_attn.")
        yield from _dense(config, hub + "mlp.", own + "mlp.")


def _attention(
    config: DecoderConfig, spec: AttentionSpec, hub: str, own: str
) -> Iterator[tuple[str, Placement]]:
    size = config.hidden_size
    rows = {"q": spec.q_size, "k": spec.k_size, "v": spec.v_size}
    if config.qkv_chunks:
        yield (
            hub + "qkv_proj.weight",
            Placement(
                target=own + "qkv_proj.weight",
                shape=(sum(rows.values()), size),
                chunks=config.qkv_chunks,
                is_quantizable=True,
            ),
        )
    else:
        row = 0
        for name, count in rows.items():
            yield (
                f"{hub}{name}_proj.weight",
                Placement(target=own + "qkv_proj.weight", shape=(count, size), row=row, is_quantizable=True),
            )
            row += count
    out_shape = (size, spec.num_heads * spec.v_head_dim)
    yield hub + "o_proj.weight", Placement(target=own + "o_proj.weight", shape=out_shape)
    if spec.has_sink:
        sink = Placement(target=own + "attention_sink_bias", shape=(spec.num_heads,))
        yield hub + "attention_sink_bias", sink


def _swiglu(hub: str, own: str, size: int, width: int, expert: int | None) -> Iterator[tuple[str, Placement]]:
    suffix = ".weight" if expert is None else ""
    for name, row in (("gate_proj", 0), ("up_proj", width)):
        yield (
            f"{hub}{name}.weight",
            Placement(
                target=f"{own}gate_up_proj{suffix}",
                shape=(width, size),
                row=row,
                expert=expert,
                is_quantizable=True,
            ),
        )
    yield (
        hub + "down_proj.weight",
        Placement(target=f"{own}down_proj{suffix}", shape=(size, width), expert=expert, is_quantizable=True),
    )


def _dense(config: DecoderConfig, hub: str, own: str) -> Iterator[tuple[str, Placement]]:
    return _swiglu(hub, own, config.hidden_size, config.dense_intermediate_size, None)


def _moe(config: DecoderConfig, hub: str, own: str) -> Iterator[tuple[str, Placement]]:
    moe = config.moe
    assert moe is not None
    gate_shape = (moe.num_experts, config.hidden_size)
    yield hub + "gate.weight", Placement(target=own + "gate.weight", shape=gate_shape, is_float32=True)
    yield (
        hub + "gate.e_score_correction_bias",
        Placement(target=own + "gate.e_score_correction_bias", shape=(moe.num_experts,), is_float32=True),
    )
    for expert in range(moe.num_experts):
        yield from _swiglu(
            f"{hub}experts.{expert}.", own + "experts.", config.hidden_size, moe.intermediate_size, expert
        )


def decoder_tensors(config: DecoderConfig) -> dict[str, TensorSpec]:
    """Every text and MTP tensor of a checkpoint of this configuration, by hub name.

    With fp8 blocks each quantised weight is float8_e4m3fn and has a float32 `..._scale_inv` beside it.
    """
    specs: dict[str, TensorSpec] = {}
    for name, place in placements(config).items():
        if config.fp8 is None or not place.is_quantizable:
            dtype = torch.float32 if place.is_float32 else torch.bfloat16
            specs[name] = TensorSpec(shape=place.shape, dtype=dtype)
            continue
        rows, columns = place.shape
        grid = (
            place.chunks * -(-(rows // place.chunks) // config.fp8.rows),
            -(-columns // config.fp8.columns),
        )
        specs[name] = TensorSpec(shape=place.shape, dtype=torch.float8_e4m3fn)
        specs[name + SCALE_SUFFIX] = TensorSpec(shape=grid, dtype=torch.float32)
    return specs


def split_chunks(rows: torch.Tensor, spec: AttentionSpec, chunks: int) -> torch.Tensor:
    """[q|k|v] chunks of a fused projection -> all q rows, all k rows, all v rows.

    Args:
        rows: [q + k + v rows, hidden] in checkpoint order.
    """
    parts = rows.view(chunks, -1, rows.shape[1]).split(
        [spec.q_size // chunks, spec.k_size // chunks, spec.v_size // chunks], dim=1
    )
    return torch.cat([part.flatten(0, 1) for part in parts])
