"""A process's door to the cluster's embeddings.

Knows the directory's calls, and how tensors lie in Ray's object store. Whatever fails on the way is a miss.
"""

from __future__ import annotations

import logging
import queue
import threading
import time
import uuid
from collections.abc import Mapping
from contextlib import suppress
from functools import partial
from typing import Any

import ray
import torch
from ray import ObjectRef
from ray.actor import ActorHandle
from ray.exceptions import ObjectStoreFullError, OutOfDiskError, RayError

from mm_pipeline.pipeline import EncodedMedia
from mm_pipeline.store import Aliases, Entry, Lease, TierStats, entry_of
from mm_pipeline.store.media import matches
from serve_apps.deployments.tensors import PackedTensor, pack_tensor, unpack_tensor
from serve_apps.store.table import Found, Synced

_log = logging.getLogger(__name__)


class SharedLease(Lease):
    """reference: the embeddings in the object store, which keeps them while this reference is held, whatever the
    directory does. None where the object store was full; then only `embeddings` has them."""

    def __init__(
        self,
        entry: Entry,
        embeddings: torch.Tensor,
        release: Any,
        reference: ObjectRef[PackedTensor] | None,
    ) -> None:
        super().__init__(entry, embeddings, release)
        self.reference = reference


class SharedStore:
    """See `EmbeddingStore`; its one tier is called "shared" and its numbers are the cluster's.

    Its calls block, so make them in threads. Embeddings on this node are read without a copy, those of other nodes
    are fetched by Ray.

    This process owns what it puts; the directory's references are borrowed. So the process holds its own as long as
    the directory lists them, and lists them again with a directory that was restarted.
    """

    def __init__(
        self,
        directory: ActorHandle[Any],
        *,
        call_timeout_s: float = 2.0,
        read_timeout_s: float = 5.0,
        sync_s: float = 2.0,
        retry_s: float = 1.0,
    ) -> None:
        """call_timeout_s, read_timeout_s: after which a lookup or a read is a miss. sync_s: between signs of life,
        a small part of the directory's `lease_s`. retry_s: how long a directory that failed is left alone.
        """
        self._directory = directory
        self._call_timeout_s = call_timeout_s
        self._read_timeout_s = read_timeout_s
        self._sync_s = sync_s
        self._retry_s = retry_s
        self._down_until_s = 0.0
        self._holder = uuid.uuid4().hex
        self._session: int | None = None
        self._owned: dict[str, tuple[ObjectRef[PackedTensor], Entry]] = {}
        self._held: set[int] = set()
        self._aliases = Aliases()
        # Leases that ended, and None for the end of the store. It may be put to from the garbage collector.
        self._ended: queue.SimpleQueue[int | None] = queue.SimpleQueue()
        self._syncing = threading.Thread(target=self._sync, name="shared-store", daemon=True)
        self._syncing.start()

    def wait_until_ready(self, timeout_s: float) -> None:
        """Until the directory answers, which takes seconds where its process has just been started: what is asked
        or put before is a miss. Without an answer in that time it goes on alone, as always."""
        with suppress(RayError):
            ray.get(self._directory.stats.remote(), timeout=timeout_s)
            self._down_until_s = 0.0

    def get(self, key: str) -> SharedLease | None:
        """See `EmbeddingStore.get`."""
        found = self._call("lookup", key, self._holder)
        return self._read(found) if isinstance(found, Found) else None

    def get_or_claim(self, key: str, wait_s: float) -> SharedLease | None:
        """As `get`, but while another process computes the entry, waits up to `wait_s` for it.

        After None the caller computes the entry, and then calls `put` or, having failed, `unclaim`. Should this
        process die, or wait in vain, another one computes.
        """
        for _ in range(2):
            found = self._call("claim", key, self._holder, wait_s, timeout_s=wait_s + self._call_timeout_s)
            if not isinstance(found, Found):
                return None
            lease = self._read(found)
            if lease is not None:
                return lease
        return None

    def unclaim(self, key: str) -> None:
        """This process will not put the entry. Without a claim nothing happens."""
        self._call("unclaim", key, self._holder)

    def put(self, key: str, media: EncodedMedia) -> SharedLease:
        """See `EmbeddingStore.put`. The lease has a reference even where the directory does not list the entry."""
        entry = entry_of(key, media)
        try:
            reference = ray.put(pack_tensor(media.embeddings))
        except (ObjectStoreFullError, OutOfDiskError):
            self.unclaim(key)
            return SharedLease(entry, media.embeddings, _nothing, None)
        # Ahead of the call, so that a reply that drops it finds it.
        self._owned[reference.hex()] = (reference, entry)
        lease = self._call("publish", [reference], reference.hex(), entry, self._holder, True)
        if lease is None:
            self._owned.pop(reference.hex(), None)
        return SharedLease(entry, media.embeddings, self._hold(lease), reference)

    def set_alias(self, uuid_key: str, settings_key: str, key: str) -> None:
        """See `Aliases.set`; for the whole cluster."""
        self._aliases.set(uuid_key, settings_key, key)
        self._call("set_aliases", [(uuid_key, settings_key, key)])

    def alias(self, uuid_key: str, settings_key: str) -> str | None:
        """See `Aliases.get`."""
        found: str | None = self._call("alias", uuid_key, settings_key)
        return found

    def stats(self) -> Mapping[str, TierStats]:
        """See `EmbeddingStore.stats`. All 0 while there is no directory."""
        return {"shared": self._call("stats") or TierStats()}

    def close(self) -> None:
        """What this process owns is no longer listed, and its leases end."""
        self._ended.put(None)
        self._syncing.join(2 * self._call_timeout_s)

    def _call(self, method: str, *args: Any, timeout_s: float | None = None) -> Any:
        """The directory's answer; None when there is none, and for a while after that without asking."""
        if time.monotonic() < self._down_until_s:
            return None
        try:
            call = getattr(self._directory, method).remote(*args)
            return ray.get(call, timeout=self._call_timeout_s if timeout_s is None else timeout_s)
        except RayError as error:
            self._down_until_s = time.monotonic() + self._retry_s
            _log.warning("the embedding directory did not answer %s: %s", method, type(error).__name__)
            return None

    def _read(self, found: Found) -> SharedLease | None:
        """The embeddings; None, and the entry is gone, where they cannot be read or are not what was published."""
        release = self._hold(found.lease)
        (reference,) = found.reference
        with suppress(RayError):
            packed = ray.get(reference, timeout=self._read_timeout_s)
            if isinstance(packed, PackedTensor):
                embeddings = unpack_tensor(packed)
                if matches(found.entry, embeddings):
                    return SharedLease(found.entry, embeddings, release, reference)
        release()
        self._call("report_lost", found.entry.key, found.reference_id, self._holder)
        return None

    def _hold(self, lease: int | None) -> Any:
        """What ends the lease."""
        if lease is None:
            return _nothing
        self._held.add(lease)
        return partial(self._ended.put, lease)

    def _sync(self) -> None:
        """Tells the directory what has ended, at once, and else from time to time that this process lives."""
        going = True
        while going:
            ended, going = self._next_ended()
            self._held.difference_update(ended)
            # Ends that do not arrive lapse: only leases that are named here are prolonged.
            reply = self._call("sync", self._holder, list(self._held), ended)
            if isinstance(reply, Synced):
                for reference_id in reply.dropped:
                    self._owned.pop(reference_id, None)
                if reply.session != self._session:
                    self._publish_again()
                    self._session = reply.session
        self._call("leave", self._holder)
        self._owned.clear()

    def _next_ended(self) -> tuple[list[int], bool]:
        """All leases that have ended since, waiting for the first one; and whether the store goes on."""
        ended: list[int] = []
        with suppress(queue.Empty):
            item = self._ended.get(timeout=self._sync_s)
            while item is not None:
                ended.append(item)
                item = self._ended.get_nowait()
            return ended, False
        return ended, True

    def _publish_again(self) -> None:
        """To a directory that has forgotten this process; nothing new to one that lists it all."""
        for reference_id, (reference, entry) in list(self._owned.items()):
            self._call("publish", [reference], reference_id, entry, self._holder, False)
        self._call("set_aliases", self._aliases.items())


def _nothing() -> None:
    """Ends a lease that pins nothing."""
