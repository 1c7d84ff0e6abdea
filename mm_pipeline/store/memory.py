"""The store in this process. Knows nothing of other processes; embeddings stay on the device they came on."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING

from mm_pipeline.store.base import Entry, Lease, TierStats
from mm_pipeline.store.lru import PinnedLru, Slot
from mm_pipeline.store.media import entry_of

if TYPE_CHECKING:
    import torch

    from mm_pipeline.pipeline.media import EncodedMedia

Stored = tuple[Entry, "torch.Tensor"]


class MemoryStore:
    """See `EmbeddingStore`; its one tier is called "memory"."""

    def __init__(self, max_bytes: int) -> None:
        self._lock = threading.Lock()
        self._lru: PinnedLru[Stored] = PinnedLru(max_bytes)
        # Leases end in any thread at any time, in the middle of an operation too when the garbage collector ends
        # them. They only leave word here, and every operation begins by taking the pins back.
        self._released: deque[Slot[Stored]] = deque()

    def get(self, key: str) -> Lease | None:
        """See `EmbeddingStore.get`."""
        with self._lock:
            self._settle()
            slot = self._lru.find(key)
        return None if slot is None else self._lease(slot)

    def put(self, key: str, media: EncodedMedia) -> Lease:
        """See `EmbeddingStore.put`."""
        entry = entry_of(key, media)
        embeddings = media.embeddings.detach()
        if embeddings.untyped_storage().nbytes() > entry.num_bytes:
            # A view keeps all of the memory it looks into, which nobody would count.
            embeddings = embeddings.clone()
        with self._lock:
            self._settle()
            slot = self._lru.peek(key)
            if slot is None:
                slot, _ = self._lru.add(key, entry.num_bytes, (entry, embeddings))
            if slot is not None:
                self._lru.pin(slot)
        return Lease(entry, embeddings, _nothing) if slot is None else self._lease(slot)

    def stats(self) -> Mapping[str, TierStats]:
        """See `EmbeddingStore.stats`."""
        with self._lock:
            self._settle()
            return {"memory": self._lru.stats()}

    def close(self) -> None:
        """Nothing runs in the background."""

    def check(self) -> None:
        """Asserts that the books agree; for tests."""
        with self._lock:
            self._settle()
            self._lru.check()

    def _lease(self, slot: Slot[Stored]) -> Lease:
        entry, embeddings = slot.value
        return Lease(entry, embeddings, partial(self._released.append, slot))

    def _settle(self) -> None:
        while self._released:
            self._lru.unpin(self._released.popleft())


def _nothing() -> None:
    """Ends a lease that pins nothing."""
