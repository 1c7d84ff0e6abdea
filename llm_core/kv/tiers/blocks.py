"""A page as one run of bytes, over all layers of its kind: how it is taken out of the pools and put back."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from llm_core.config import LayerKind
from llm_core.kv.storage import KINDS, KVStorage


class PageBlocks:
    """Reads and writes pages of a storage.

    A block is uint8 [num_bytes(kind)] in host memory: per layer of the kind K [G, P, head_dim], then V
    [G, P, v_head_dim], layers in order. Every layer that the storage holds is in it.
    """

    def __init__(self, storage: KVStorage) -> None:
        self._storage = storage
        self._layer_bytes = {kind: self._measure(kind) for kind in KINDS}

    def num_bytes(self, kind: LayerKind) -> int:
        return self._storage.num_layers(kind) * sum(self._layer_bytes[kind])

    def read(self, kind: LayerKind, page: int) -> Tensor:
        """A copy of the page."""
        parts = [
            part[:, page].reshape(-1)
            for index in range(self._storage.num_layers(kind))
            for part in self._storage.layer(kind, index)
        ]
        # On an accelerator one gather and one copy to the host, behind whatever wrote the page.
        block = torch.cat(parts) if parts else torch.empty(0)
        return block.view(torch.uint8).cpu()

    def gather(self, kind: LayerKind, index: int, blocks: Sequence[Tensor]) -> Tensor:
        """One layer of several blocks: uint8 [blocks, bytes], pinned where the pools are on a GPU."""
        size = sum(self._layer_bytes[kind])
        rows = [block[index * size : (index + 1) * size] for block in blocks]
        is_pinned = self._storage.device.type == "cuda"
        out = torch.empty(len(rows), size, dtype=torch.uint8, pin_memory=is_pinned)
        return torch.stack(rows, out=out)

    def scatter(self, kind: LayerKind, index: int, pages: Tensor, rows: Tensor) -> None:
        """Puts one layer of several blocks into pages int64 [blocks]; rows as `gather` makes them."""
        keys, values = self._storage.layer(kind, index)
        key_bytes, _ = self._layer_bytes[kind]
        for part, cut in ((keys, rows[:, :key_bytes]), (values, rows[:, key_bytes:])):
            groups, _, size, width = part.shape
            if part.device.type == "cpu":
                # numpy copies on this thread; torch would call up a team of threads beside the decoder's.
                bytes_of = part.view(torch.uint8).numpy()
                bytes_of[:, pages.numpy()] = cut.numpy().reshape(len(cut), groups, size, -1).swapaxes(0, 1)
            else:
                source = cut.to(part.device, non_blocking=True).view(part.dtype)
                source = source.view(len(cut), groups, size, width).transpose(0, 1)
                part.index_copy_(1, pages.to(part.device, non_blocking=True), source)

    def _measure(self, kind: LayerKind) -> tuple[int, int]:
        """Bytes of K and of V of one page in one layer."""
        if not self._storage.num_layers(kind):
            return 0, 0
        keys, values = (part[:, :1].nbytes for part in self._storage.layer(kind, 0))
        return keys, values
