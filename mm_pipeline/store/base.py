"""What an embedding store is: encoded media by content key, under a bound in bytes, with leases.

Knows no torch at run time and no place where embeddings lie.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import TracebackType
from typing import TYPE_CHECKING, Protocol, Self

from mm_pipeline.prompt.layout import VideoLayout

if TYPE_CHECKING:
    import torch

    from mm_pipeline.pipeline.media import EncodedMedia


@dataclass(frozen=True, kw_only=True)
class Entry:
    """What is known of encoded media besides the embeddings [num_tokens, hidden_size] themselves.

    dtype: torch's name for it, such as "torch.bfloat16". num_bytes: of the embeddings. layout, notes: see
    `EncodedMedia`.
    """

    key: str
    num_tokens: int
    hidden_size: int
    dtype: str
    num_bytes: int
    modality: str
    layout: VideoLayout | None = None
    notes: tuple[str, ...] = ()


class Lease:
    """Stored embeddings while somebody needs them: until `release`, or until the lease is garbage.

    embeddings: [num_tokens, hidden_size]; others read the same memory, so never write to it.
    """

    def __init__(self, entry: Entry, embeddings: torch.Tensor, release: Callable[[], object]) -> None:
        """release: ends the pin. It may run in the garbage collector, so it must not take a lock."""
        self.entry = entry
        self.embeddings = embeddings
        # Callable once, and called when the lease is garbage: a forgotten lease pins nothing for ever.
        self._release = weakref.finalize(self, release)
        self._release.atexit = False

    def release(self) -> None:
        """Idempotent and thread-safe. What has been read stays readable; the store may evict the entry."""
        self._release()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()


@dataclass(frozen=True, kw_only=True)
class TierStats:
    """Exact numbers of one tier. The first six count since the start; the others say what is there now.

    stored: entries taken in. rejected: entries that did not fit beside what is pinned. evicted: entries that made
    room. lost: entries that turned out unreadable. pinned_bytes: of entries that cannot be evicted.
    """

    hits: int = 0
    misses: int = 0
    stored: int = 0
    rejected: int = 0
    evicted: int = 0
    lost: int = 0
    num_entries: int = 0
    num_bytes: int = 0
    pinned_bytes: int = 0
    max_bytes: int = 0


class EmbeddingStore(Protocol):
    """Thread-safe. What cannot be stored or read back is a miss, never an error."""

    def get(self, key: str) -> Lease | None:
        """The entry, pinned, or None. `key`: a content key."""
        ...

    def put(self, key: str, media: EncodedMedia) -> Lease:
        """A lease on what was stored. An entry that does not fit is not stored, and its lease pins nothing.

        Equal keys mean equal embeddings, so an entry that is there already stays.
        """
        ...

    def stats(self) -> Mapping[str, TierStats]:
        """By the name of the tier."""
        ...

    def close(self) -> None:
        """Ends what runs in the background. Idempotent; leases stay readable."""
        ...
