"""Embeddings that were computed once: by content key, under bounds in bytes, leased while in use.

Knows memory and disk of one machine, and callers who want the same thing at once. Knows nothing of Ray.
"""

from __future__ import annotations

from pathlib import Path

from mm_pipeline.store.base import EmbeddingStore, Entry, Lease, TierStats
from mm_pipeline.store.flights import Flights
from mm_pipeline.store.media import entry_of, media_of
from mm_pipeline.store.memory import MemoryStore
from mm_pipeline.store.tiered import TieredStore
from mm_pipeline.store.uuid_keys import Aliases, key_for_uuid

__all__ = [
    "Aliases",
    "EmbeddingStore",
    "Entry",
    "Flights",
    "Lease",
    "MemoryStore",
    "TierStats",
    "TieredStore",
    "create_store",
    "entry_of",
    "key_for_uuid",
    "media_of",
]


def create_store(max_bytes: int, disk_folder: Path | None = None, max_disk_bytes: int = 0) -> EmbeddingStore:
    """A store in this process, over a folder where one is given. Raises OSError for a folder it cannot write to."""
    memory = MemoryStore(max_bytes)
    if disk_folder is None:
        return memory
    # Brings torch, which the processes that only import this package's interface do without.
    from mm_pipeline.store.disk import DiskStore

    return TieredStore(memory, DiskStore(disk_folder, max_disk_bytes))
