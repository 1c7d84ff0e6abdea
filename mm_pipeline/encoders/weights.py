"""Fills encoder modules with named tensors. Knows names, shapes and digests; no architecture."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import torch
from blake3 import blake3

if TYPE_CHECKING:
    from torch import nn

    from mm_pipeline.encoders.base import TensorSource


def load_module(
    module: nn.Module,
    source: TensorSource,
    *,
    is_ours: Callable[[str], bool],
    prefix: str = "",
    what: str,
    dtype: torch.dtype,
    device: torch.device,
) -> str:
    """Fills a module built on the meta device, tensor by tensor; returns a digest of names, shapes and bytes.

    is_ours: whether a name of the source belongs to the module, whose own names lack `prefix`.
    what: the tensors in the words of an error.
    Raises ValueError for missing or unexpected tensors, by name, or for a wrong shape.
    """
    expected = {name: tuple(tensor.shape) for name, tensor in module.state_dict().items()}
    found = {name.removeprefix(prefix) for name in source.keys() if is_ours(name)}  # noqa: SIM118
    missing, unexpected = sorted(expected.keys() - found), sorted(found - expected.keys())
    if missing or unexpected:
        raise ValueError(
            f"{what} do not fit the config: "
            f"missing {_some(prefix, missing)}; unexpected {_some(prefix, unexpected)}"
        )
    hasher = blake3(max_threads=blake3.AUTO)
    for name, shape in sorted(expected.items()):
        tensor = source.get_tensor(prefix + name)
        if tuple(tensor.shape) != shape:
            raise ValueError(f"{prefix}{name} has shape {tuple(tensor.shape)}; the config needs {shape}")
        hasher.update(f"{name}|{tensor.dtype}|{shape}|".encode())
        hasher.update(tensor.contiguous().flatten().view(torch.uint8).numpy().data)
        module.load_state_dict({name: tensor.to(device=device, dtype=dtype)}, strict=False, assign=True)
    for parameter in module.parameters():
        parameter.requires_grad_(False)
    module.eval()
    return hasher.hexdigest()


def _some(prefix: str, names: list[str]) -> str:
    shown = ", ".join(prefix + name for name in names[:8])
    more = f" and {len(names) - 8} more" if len(names) > 8 else ""
    return shown + more if names else "none"
