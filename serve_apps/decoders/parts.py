"""Decoded parts on their way between processes: their tensors travel as buffers that are mapped, not copied.

Knows that a part is a dataclass. Does not know which kinds of parts there are.
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import Any

import torch

from serve_apps.deployments.tensors import PackedTensor, pack_tensor, unpack_tensor


@dataclass(frozen=True, kw_only=True)
class PackedPart:
    """The class of a part and its fields, tensors packed."""

    kind: type[Any]
    values: dict[str, Any] = field(repr=False)


def pack_part(part: Any) -> PackedPart:
    """Ready for the object store. CPU tensors are not copied: do not write to them afterwards."""
    values = {item.name: getattr(part, item.name) for item in fields(part)}
    return PackedPart(
        kind=type(part),
        values={
            name: pack_tensor(value) if isinstance(value, torch.Tensor) else value
            for name, value in values.items()
        },
    )


def unpack_part(packed: PackedPart) -> Any:
    """The part. Its tensors are read-only: never write to them."""
    return packed.kind(
        **{
            name: unpack_tensor(value) if isinstance(value, PackedTensor) else value
            for name, value in packed.values.items()
        }
    )
