"""The tensors of both pools: K and V of their own widths, head counts by layer kind."""

from __future__ import annotations

import math
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from llm_core.config import DecoderConfig, LayerKind

KINDS: tuple[LayerKind, LayerKind] = ("full", "swa")


def page_bytes(config: DecoderConfig, kind: LayerKind, page_size: int, dtype: torch.dtype) -> int:
    """Bytes one page holds over all layers of a kind."""
    per_token = config.attention(kind).kv_elements_per_token * config.num_layers(kind)
    return per_token * page_size * dtype.itemsize


def _zeros(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device | str) -> Tensor:
    if torch.device(device).type != "cpu":
        return torch.zeros(shape, dtype=dtype, device=device)
    # numpy asks the system for zeroed memory and does not touch it; torch writes the zeros itself.
    buffer = np.zeros(math.prod(shape) * dtype.itemsize, dtype=np.uint8)
    return torch.from_numpy(buffer).view(dtype).view(shape)


class Loading(Protocol):
    """A copy into the pools that is under way."""

    def wait(self, layer: tuple[LayerKind, int]) -> None:
        """Until the index-th layer of a kind is there."""
        ...


class KVStorage:
    """K [N, P, G, head_dim] and V [N, P, G, v_head_dim] of every layer.

    In memory a layer's tensor is [G, N, P, width]: the tokens of one head follow one another, which is what the
    CPU's matrix products want. Zero-filled: attention may read, and weigh with zero, tokens nobody has written.
    On a CPU the zeros cost no memory until a page is used.
    """

    def __init__(
        self,
        config: DecoderConfig,
        *,
        num_pages: dict[LayerKind, int],
        page_size: int,
        dtype: torch.dtype,
        device: torch.device | str = "cpu",
    ) -> None:
        self.page_size = page_size
        self.loading: Loading | None = None
        self._device = device
        self._keys: dict[LayerKind, list[Tensor]] = {}
        self._values: dict[LayerKind, list[Tensor]] = {}
        for kind in KINDS:
            spec = config.attention(kind)
            shape = (spec.num_kv_heads, num_pages[kind], page_size)
            layers = range(config.num_layers(kind))
            self._keys[kind] = [_zeros((*shape, spec.head_dim), dtype, device) for _ in layers]
            self._values[kind] = [_zeros((*shape, spec.v_head_dim), dtype, device) for _ in layers]

    @property
    def device(self) -> torch.device:
        return torch.device(self._device)

    def num_layers(self, kind: LayerKind) -> int:
        return len(self._keys[kind])

    def layer(self, kind: LayerKind, index: int) -> tuple[Tensor, Tensor]:
        """K and V of the index-th layer of a kind as they lie in memory: [G, N, P, width]."""
        return self._keys[kind][index], self._values[kind][index]

    def keys(self, kind: LayerKind, index: int) -> Tensor:
        """[N, P, G, head_dim] of the index-th layer of a kind, once what is loaded into it is there."""
        if self.loading is not None:
            self.loading.wait((kind, index))
        return self._keys[kind][index].permute(1, 2, 0, 3)

    def values(self, kind: LayerKind, index: int) -> Tensor:
        """[N, P, G, v_head_dim] of the index-th layer of a kind."""
        return self._values[kind][index].permute(1, 2, 0, 3)

    def write(self, kind: LayerKind, index: int, slots: Tensor, k_TGK: Tensor, v_TGV: Tensor) -> None:
        """Stores T tokens at slots [T] int64 (page * page_size + offset)."""
        self._keys[kind][index].flatten(1, 2).index_copy_(1, slots, k_TGK.transpose(0, 1))
        self._values[kind][index].flatten(1, 2).index_copy_(1, slots, v_TGV.transpose(0, 1))

    def num_bytes(self, kind: LayerKind, num_pages: int) -> int:
        """Bytes of `num_pages` pages over all layers of a kind, measured on the tensors."""
        tensors = self._keys[kind] + self._values[kind]
        return sum(tensor[:, :num_pages].numel() * tensor.element_size() for tensor in tensors)
