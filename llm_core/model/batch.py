"""What one forward pass reads besides weights: tokens, positions, and where keys and values lie."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

from kernels.attention.base import AttentionLayout
from llm_core.config import LayerKind


@dataclass(frozen=True, kw_only=True)
class TokenRange:
    """Tokens [begin, end) of the batch, run by one attention op over one layout per layer kind."""

    begin: int
    end: int
    is_decode: bool
    layouts: Mapping[LayerKind, AttentionLayout]


@dataclass(frozen=True, kw_only=True)
class ForwardBatch:
    """Tokens of several sequences, one after the other.

    Attributes:
        positions: [T] int64.
        slots: per layer kind [T] int64, the cache token (page * page size + offset) each token is written to.
        ranges: cover [0, T) in order: decodes first, then prefill chunks.
    """

    positions: Tensor
    slots: Mapping[LayerKind, Tensor]
    ranges: tuple[TokenRange, ...]


class KVCaches(Protocol):
    """The K and V caches of every layer; see `llm_core.kv.storage`."""

    def keys(self, kind: LayerKind, index: int) -> Tensor:
        """[N, P, G, K] of the index-th layer of a kind."""
        ...

    def values(self, kind: LayerKind, index: int) -> Tensor:
        """[N, P, G, V] of the index-th layer of a kind."""
        ...

    def write(self, kind: LayerKind, index: int, slots: Tensor, k_TGK: Tensor, v_TGV: Tensor) -> None:
        """Stores the keys and values of T tokens."""
        ...
