"""The one signature of paged causal attention, and the layout every backend reads.

Shape suffixes: T query tokens of all sequences, B sequences, P tokens per page, N pages in the pool, H query heads,
G KV heads, K width of Q and K heads, V width of V heads.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from torch import Tensor


@dataclass(frozen=True, kw_only=True)
class AttentionLayout:
    """Where the queries and the keys of B sequences lie.

    Sequence b has q_lens[b] queries, the last q_lens[b] of its kv_lens[b] positions. The keys of positions
    [kv_starts[b], kv_lens[b]) are in pages[b]: position p is token (p - kv_starts[b]) % P of page
    pages[b][(p - kv_starts[b]) // P]. Pages behind a window are not listed.

    Attributes:
        q_lens, kv_lens, kv_starts: per sequence; kv_starts are multiples of P. Host integers.
        pages: page ids of each sequence, exactly those that hold its listed positions. Host integers.
        derived: what a backend derives from the layout, kept here so that it is derived once per step and not
            once per layer.
    """

    q_lens: tuple[int, ...]
    kv_lens: tuple[int, ...]
    kv_starts: tuple[int, ...]
    pages: tuple[Sequence[int], ...]
    derived: dict[str, Any] = field(default_factory=dict, repr=False, compare=False)


class AttentionOp(Protocol):
    def __call__(
        self,
        q_THK: Tensor,
        k_cache_NPGK: Tensor,
        v_cache_NPGV: Tensor,
        layout: AttentionLayout,
        *,
        scale: float,
        window_keys: int | None,
        sinks_H: Tensor | None,
    ) -> Tensor:
        """Causal attention of new tokens over the cache, which already holds their own keys.

        A query at position p sees keys at positions (p - window_keys, p], or [0, p] when window_keys is None.
        Query head h reads KV head h // (H // G). With sinks the softmax runs over the scores and sinks[h]; the
        sink's share is dropped. Softmax in float32.

        Args:
            q_THK: [T, H, K], sequences one after the other.
            k_cache_NPGK: [N, P, G, K], any strides. Tokens of a listed page that were never written may hold
                any finite value.
            v_cache_NPGV: [N, P, G, V], any strides.
            scale: factor on the scores.
            sinks_H: [H] or None.

        Returns:
            [T, H, V] in q's dtype.
        """
        ...


@dataclass(frozen=True)
class AttentionOps:
    """`prefill` takes any q_lens; `decode` takes one query per sequence."""

    prefill: AttentionOp
    decode: AttentionOp
