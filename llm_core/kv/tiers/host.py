"""The tier in host memory: the least recently used blocks go first."""

from __future__ import annotations

import threading
from collections import OrderedDict
from typing import TypeAlias

from torch import Tensor

from llm_core.config import LayerKind

Name: TypeAlias = tuple[LayerKind, bytes]
"""Kind and key of a page."""


class HostTier:
    """Blocks up to `max_bytes`. Safe to use from several threads."""

    def __init__(self, max_bytes: int) -> None:
        self.max_bytes = max_bytes
        self.num_bytes = 0
        self._lock = threading.Lock()
        self._blocks: OrderedDict[Name, Tensor] = OrderedDict()

    def __contains__(self, name: Name) -> bool:
        return name in self._blocks

    def get(self, name: Name) -> Tensor | None:
        """The block, which counts as used now. Evicting it later does not touch what was handed out."""
        with self._lock:
            block = self._blocks.get(name)
            if block is not None:
                self._blocks.move_to_end(name)
            return block

    def put(self, name: Name, block: Tensor) -> list[tuple[Name, Tensor]]:
        """Keeps a block as the last one used; what had to go for it, itself where it is larger than the tier."""
        evicted = []
        with self._lock:
            self._forget(name)
            self._blocks[name] = block
            self.num_bytes += block.nbytes
            while self.num_bytes > self.max_bytes:
                oldest = next(iter(self._blocks))
                evicted.append((oldest, self._blocks[oldest]))
                self._forget(oldest)
        return evicted

    def check(self) -> None:
        """Asserts that the bytes are those of the blocks, and within the bound."""
        assert self.num_bytes == sum(block.nbytes for block in self._blocks.values()), "bytes are miscounted"
        assert self.num_bytes <= self.max_bytes, "the bound is broken"

    def _forget(self, name: Name) -> None:
        block = self._blocks.pop(name, None)
        if block is not None:
            self.num_bytes -= block.nbytes
