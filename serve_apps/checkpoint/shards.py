"""Writes safetensors files tensor by tensor: at most one tensor is in memory at a time.

The format puts all shapes in a header before the data, so the specs come first and the values when their turn
comes. Knows the file format and the hub's shard naming; knows nothing of models.
"""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Callable, Mapping
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open

from llm_core.weights import TensorSpec

_DTYPE_NAMES = {torch.float32: "F32", torch.bfloat16: "BF16"}
INDEX_NAME = "model.safetensors.index.json"


def num_bytes(spec: TensorSpec) -> int:
    """Bytes of the stored tensor."""
    return math.prod(spec.shape) * spec.dtype.itemsize


def write_weights(
    folder: Path,
    tensors: Mapping[str, TensorSpec],
    values: Callable[[str, TensorSpec], torch.Tensor],
    *,
    max_shard_bytes: int,
    metadata: Mapping[str, str],
) -> None:
    """Writes model.safetensors, or shards with an index when one file would pass `max_shard_bytes`.

    Args:
        tensors: by name, each with at least one dimension.
        values: called once per tensor, in the order of the file; must return that shape and dtype.
        metadata: goes into every file's header.
    """
    groups: list[dict[str, TensorSpec]] = [{}]
    filled = 0
    for name, spec in tensors.items():
        if groups[-1] and filled + num_bytes(spec) > max_shard_bytes:
            groups.append({})
            filled = 0
        groups[-1][name] = spec
        filled += num_bytes(spec)
    # Wide elements first keeps every tensor aligned to its own element size.
    groups = [dict(sorted(group.items(), key=lambda item: -item[1].dtype.itemsize)) for group in groups]
    if len(groups) == 1:
        names = ["model.safetensors"]
    else:
        total = len(groups)
        names = [f"model-{number:05d}-of-{total:05d}.safetensors" for number in range(1, total + 1)]
    for file_name, group in zip(names, groups, strict=True):
        _write_file(folder / file_name, group, values, metadata)
    if len(groups) > 1:
        index = {
            "metadata": {"total_size": sum(num_bytes(spec) for spec in tensors.values())},
            "weight_map": {name: file for file, group in zip(names, groups, strict=True) for name in group},
        }
        (folder / INDEX_NAME).write_text(json.dumps(index, indent=2) + "\n")


def read_metadata(path: Path) -> dict[str, str]:
    """The metadata of a safetensors file's header; empty when the file has none or is no such file."""
    try:
        with safe_open(path, framework="pt") as file:
            return file.metadata() or {}
    except (OSError, SafetensorError):
        return {}


def _write_file(
    path: Path,
    tensors: Mapping[str, TensorSpec],
    values: Callable[[str, TensorSpec], torch.Tensor],
    metadata: Mapping[str, str],
) -> None:
    header: dict[str, object] = {"__metadata__": {"format": "pt", **metadata}}
    offset = 0
    for name, spec in tensors.items():
        end = offset + num_bytes(spec)
        header[name] = {
            "dtype": _DTYPE_NAMES[spec.dtype],
            "shape": list(spec.shape),
            "data_offsets": [offset, end],
        }
        offset = end
    encoded = json.dumps(header, separators=(",", ":")).encode()
    # Readers map the file: the data starts at a multiple of 8.
    encoded += b" " * (-len(encoded) % 8)
    with path.open("wb") as file:
        file.write(struct.pack("<Q", len(encoded)))
        file.write(encoded)
        for name, spec in tensors.items():
            tensor = values(name, spec)
            assert tensor.shape == spec.shape, name
            assert tensor.dtype == spec.dtype, name
            file.write(tensor.contiguous().view(torch.uint8).numpy().data)
