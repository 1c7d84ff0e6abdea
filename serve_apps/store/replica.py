"""Where an encoder replica keeps embeddings: the cluster's store, over a folder where there is one.

Knows the order in which the two are asked. Its calls block, so make them in threads.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from uuid import uuid4

from mm_pipeline.metrics import CACHE_HITS, CACHE_MISSES, Recorder
from mm_pipeline.pipeline import EncodedMedia
from mm_pipeline.recording import Totals, record_tiers
from mm_pipeline.store import TieredStore, TierStats
from mm_pipeline.store.disk import DiskStore
from mm_pipeline.store.media import media_of
from serve_apps.store.directory import connect_directory
from serve_apps.store.shared import SharedLease, SharedStore

DIRECTORY = "embedding-directory"
# A claim is waited for as long as a picture takes on a busy machine; a video is then computed twice at worst.
_CLAIM_WAIT_S = 10.0
# A process starts within; a replica whose directory does not is better than none.
_START_S = 30.0


class ReplicaStore:
    """Thread-safe. Misses are None, whatever their cause."""

    def __init__(
        self,
        max_bytes: int,
        folder: Path | None,
        max_disk_bytes: int,
        recorder: Recorder,
        *,
        alone: bool = False,
    ) -> None:
        """max_bytes: in the cluster's memory. folder: None keeps nothing on disk. recorder: of hits and misses.
        alone: share nothing in memory with other replicas; `max_bytes` are then this one's.

        Raises OSError for a folder that cannot be made or written to.
        """
        self._recorder = recorder
        self._totals = Totals(recorder)
        self._disk = None if folder is None else DiskStore(folder, max_disk_bytes)
        name = f"{DIRECTORY}-{uuid4().hex}" if alone else DIRECTORY
        self._shared = SharedStore(connect_directory(name, max_bytes, detached=not alone))
        self._tiers = self._shared if self._disk is None else TieredStore(self._shared, self._disk)

    def wait_until_ready(self) -> None:
        """See `SharedStore.wait_until_ready`; a replica that begins before would compute what the others have."""
        self._shared.wait_until_ready(_START_S)

    def find(self, key: str) -> SharedLease | None:
        """What is kept under the key. After None the caller computes it and calls `keep`, or `give_up`."""
        return self._found(key, self._shared.get_or_claim(key, _CLAIM_WAIT_S))

    def find_named(self, uuid_key: str, settings_key: str) -> SharedLease | None:
        """What is kept of the media with this name; see `Aliases`. Computes and claims nothing."""
        key = self._shared.alias(uuid_key, settings_key)
        return None if key is None else self._found(key, self._shared.get(key))

    def name(self, uuid_key: str, settings_key: str, key: str) -> None:
        """`find_named` finds this key from now on, in all replicas."""
        self._shared.set_alias(uuid_key, settings_key, key)

    def _found(self, key: str, found: SharedLease | None) -> SharedLease | None:
        """The same, or what lies on disk; counts hits and misses."""
        self._recorder.count(CACHE_MISSES if found is None else CACHE_HITS, tier="shared")
        if found is not None or self._disk is None:
            return found
        below = self._disk.get(key)
        self._recorder.count(CACHE_MISSES if below is None else CACHE_HITS, tier="disk")
        if below is None:
            return None
        with below:
            return self._shared.put(key, media_of(below))

    def keep(self, key: str, media: EncodedMedia) -> SharedLease:
        """See `SharedStore.put`; it goes to disk on a thread of its own."""
        lease = self._tiers.put(key, media)
        assert isinstance(lease, SharedLease)
        return lease

    def give_up(self, key: str) -> None:
        """The caller will not compute what it did not find. Does nothing twice."""
        self._shared.unclaim(key)

    def stats(self) -> Mapping[str, TierStats]:
        """By tier: "shared", which counts the whole cluster, and "disk"."""
        return self._tiers.stats()

    def record(self) -> None:
        """Tells the recorder how full the disk is; the directory tells it of the memory."""
        if self._disk is not None:
            record_tiers(self._recorder, self._totals, self._disk.stats())

    def close(self) -> None:
        """Finishes what is being written; this replica's entries are no longer listed."""
        self._tiers.close()
