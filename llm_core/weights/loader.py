"""Fills a decoder from a checkpoint, tensor by tensor: at no time are two copies of the model in memory."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

import torch
from torch import Tensor

from kernels.fp8 import dequantize_blocks
from llm_core.config import AttentionSpec, DecoderConfig
from llm_core.errors import CheckpointError
from llm_core.model import HybridDecoder
from llm_core.weights.mimo_v2 import (
    FOREIGN_PREFIXES,
    MTP_PREFIX,
    SCALE_SUFFIX,
    Placement,
    placements,
    split_chunks,
)

_MAX_NAMES_SHOWN = 8


class TensorSource(Protocol):
    """What `CheckpointFolder` and `safetensors.safe_open` have in common."""

    def keys(self) -> Iterable[str]: ...

    def get_tensor(self, name: str) -> Tensor: ...


def _show(names: list[str]) -> str:
    more = len(names) - _MAX_NAMES_SHOWN
    return ", ".join(names[:_MAX_NAMES_SHOWN]) + (f" and {more} more" if more > 0 else "")


def check_names(config: DecoderConfig, names: Iterable[str]) -> bool:
    """Whether the checkpoint has MTP layers.

    Raises:
        CheckpointError: tensors missing or left over; the message names them. MTP tensors may be absent
            altogether, not in part.
    """
    own = {name for name in names if not name.startswith(FOREIGN_PREFIXES)}
    has_mtp = any(name.startswith(MTP_PREFIX) for name in own)
    expected = placements(config, with_mtp=has_mtp)
    scales = {name for name in own if name.endswith(SCALE_SUFFIX)}
    missing = sorted(expected.keys() - own)
    if missing:
        raise CheckpointError(f"the checkpoint lacks {len(missing)} tensors: {_show(missing)}")
    allowed_scales = {name + SCALE_SUFFIX for name, place in expected.items() if place.is_quantizable}
    unexpected = sorted((own - scales - expected.keys()) | (scales - allowed_scales))
    if unexpected:
        raise CheckpointError(
            f"the checkpoint has {len(unexpected)} tensors that its config does not describe: {_show(unexpected)}"
        )
    return has_mtp


def load_decoder(
    config: DecoderConfig,
    source: TensorSource,
    *,
    dtype: torch.dtype,
    weight_dtype: torch.dtype | None = None,
    device: torch.device | str = "cpu",
    backend: str = "cpu",
    with_mtp: bool = False,
) -> HybridDecoder:
    """A decoder with the weights of `source`.

    Args:
        dtype: of activations, norms and sinks. Routers stay float32.
        weight_dtype: of the matrices, by default the same. fp8 blocks are expanded to it.
        with_mtp: load the multi-token-prediction layers too, where the checkpoint has them.

    Raises:
        CheckpointError: tensors missing, left over, of the wrong shape, or fp8 without scales.
    """
    names = set(source.keys())
    has_mtp = check_names(config, names)
    with torch.device("meta"):
        model = HybridDecoder(config, backend=backend, with_mtp=with_mtp and has_mtp)
    plan = placements(config, with_mtp=with_mtp and has_mtp)
    float32_targets = {place.target for place in plan.values() if place.is_float32}
    for name, parameter in model.named_parameters():
        owner, _, leaf = name.rpartition(".")
        kept = dtype if parameter.dim() == 1 else weight_dtype or dtype
        if name in float32_targets:
            kept = torch.float32
        empty = torch.empty(parameter.shape, dtype=kept, device=device)
        setattr(model.get_submodule(owner), leaf, torch.nn.Parameter(empty, requires_grad=False))
    parameters = dict(model.named_parameters())
    for name, place in plan.items():
        target: Tensor = parameters[place.target]
        if place.expert is not None:
            target = target[place.expert]
        target[place.row : place.row + place.shape[0]].copy_(_read(config, source, names, name, place))
    return model.eval()


def _read(
    config: DecoderConfig, source: TensorSource, names: set[str], name: str, place: Placement
) -> Tensor:
    tensor = source.get_tensor(name)
    if tuple(tensor.shape) != place.shape:
        raise CheckpointError(
            f"tensor {name} has shape {tuple(tensor.shape)}; the config asks for {place.shape}"
        )
    if tensor.dtype == torch.float8_e4m3fn:
        scale = name + SCALE_SUFFIX
        if scale not in names or config.fp8 is None:
            raise CheckpointError(f"tensor {name} is fp8 but the checkpoint has no block scales for it")
        block = (config.fp8.rows, config.fp8.columns)
        tensor = dequantize_blocks(tensor, source.get_tensor(scale), block, chunks=place.chunks)
    if place.chunks > 1:
        tensor = split_chunks(tensor, _spec_of(config, place), place.chunks)
    return tensor


def _spec_of(config: DecoderConfig, place: Placement) -> AttentionSpec:
    """Geometry of the layer a fused projection belongs to."""
    family, index = place.target.split(".")[:2]
    return config.swa if family == "mtp" else config.attention(config.layers[int(index)].kind)
