"""A fast store over a slower, larger one. Knows two stores; keeps nothing itself."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import TYPE_CHECKING

from mm_pipeline.store.base import EmbeddingStore, Lease, TierStats
from mm_pipeline.store.media import media_of

if TYPE_CHECKING:
    from mm_pipeline.pipeline.media import EncodedMedia


class TieredStore:
    """See `EmbeddingStore`. A lease is always the upper store's; what the lower one finds is put into the upper.

    The lower store is written to on a thread of its own. What waits for it is bounded: under heavy load it misses
    entries, and nobody waits for it.
    """

    def __init__(
        self, upper: EmbeddingStore, lower: EmbeddingStore, *, max_waiting_bytes: int = 256 * 2**20
    ) -> None:
        self._upper = upper
        self._lower = lower
        self._max_waiting_bytes = max_waiting_bytes
        self._writer = ThreadPoolExecutor(1, thread_name_prefix="store-lower")
        self._lock = threading.Lock()
        self._waiting_bytes = 0
        self._closed = False

    def get(self, key: str) -> Lease | None:
        """See `EmbeddingStore.get`."""
        found = self._upper.get(key)
        if found is not None:
            return found
        below = self._lower.get(key)
        if below is None:
            return None
        with below:
            return self._upper.put(key, media_of(below))

    def put(self, key: str, media: EncodedMedia) -> Lease:
        """See `EmbeddingStore.put`."""
        lease = self._upper.put(key, media)
        num_bytes = lease.entry.num_bytes
        with self._lock:
            if not self._closed and self._waiting_bytes + num_bytes <= self._max_waiting_bytes:
                self._waiting_bytes += num_bytes
                # Without what the caller may add to the media later on.
                self._writer.submit(self._write, key, replace(media, timings={}), num_bytes)
        return lease

    def stats(self) -> Mapping[str, TierStats]:
        """See `EmbeddingStore.stats`: the tiers of both."""
        return {**self._upper.stats(), **self._lower.stats()}

    def close(self) -> None:
        """Finishes what waits for the lower store, and closes both."""
        with self._lock:
            self._closed = True
        self._writer.shutdown()
        self._upper.close()
        self._lower.close()

    def _write(self, key: str, media: EncodedMedia, num_bytes: int) -> None:
        try:
            self._lower.put(key, media).release()
        finally:
            with self._lock:
                self._waiting_bytes -= num_bytes
