"""Torch tensors in the Ray object store, read without a copy.

The store maps numpy buffers straight into the reading process, and numpy has no bfloat16: a tensor travels as
an array of integers of the same width plus the name of its dtype.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import torch

_CARRIERS = {
    torch.float32: torch.int32,
    torch.bfloat16: torch.int16,
    torch.float16: torch.int16,
}
_DTYPES = {str(dtype): dtype for dtype in _CARRIERS}


@dataclass(frozen=True, kw_only=True)
class PackedTensor:
    """A tensor ready for the object store. `array` has the tensor's shape; `dtype` is its torch name."""

    array: npt.NDArray[np.generic] = field(repr=False)
    dtype: str


def pack_tensor(tensor: torch.Tensor) -> PackedTensor:
    """Any float tensor, from any device. A contiguous CPU tensor is not copied: do not write to it afterwards.

    Raises ValueError for a dtype that does not travel.
    """
    carrier = _CARRIERS.get(tensor.dtype)
    if carrier is None:
        raise ValueError(f"dtype is {tensor.dtype}; one of {', '.join(_DTYPES)} can be packed")
    plain = tensor.detach().cpu().contiguous()
    return PackedTensor(array=plain.view(carrier).numpy(), dtype=str(tensor.dtype))


def unpack_tensor(packed: PackedTensor) -> torch.Tensor:
    """The tensor, over the same memory. What came from the object store is read-only: never write to it.

    Goes through DLPack because `torch.from_numpy` warns about read-only memory each time.
    """
    return torch.utils.dlpack.from_dlpack(packed.array).view(_DTYPES[packed.dtype])
