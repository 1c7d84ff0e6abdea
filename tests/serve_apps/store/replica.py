"""A process with a door to the cluster's embeddings, as an encoder replica is one."""

from __future__ import annotations

import os
import time
from typing import Any

from serve_apps.store.directory import Directory
from serve_apps.store.shared import SharedLease, SharedStore
from tests.mm_pipeline.store.support import key_of, media, video

HIDDEN = 8


class SlowDirectory(Directory):
    """Begins to answer when a call would long have been given up."""

    def __init__(self, max_bytes: int, lease_s: float) -> None:
        time.sleep(4.0)
        super().__init__(max_bytes, lease_s)


class Replica:
    """Items are numbers; see `media`. Calls run on threads, several at a time."""

    def __init__(self, directory: Any) -> None:
        self._store = SharedStore(directory, sync_s=0.4, call_timeout_s=2.0, retry_s=0.3)
        self._leases: list[SharedLease] = []

    def pid(self) -> int:
        return os.getpid()

    def put(self, number: int, num_tokens: int = 3, keep: bool = False) -> bool:
        """Whether there is a reference."""
        lease = self._store.put(key_of(number), media(number, num_tokens))
        return self._kept(lease, keep).reference is not None

    def put_video(self, number: int) -> None:
        self._store.put(key_of(number), video(number)).release()

    def get(self, number: int, keep: bool = False) -> dict[str, Any] | None:
        return self._told(self._store.get(key_of(number)), keep)

    def claim(self, number: int, wait_s: float = 0.0) -> dict[str, Any] | None:
        return self._told(self._store.get_or_claim(key_of(number), wait_s), keep=False)

    def unclaim(self, number: int) -> None:
        self._store.unclaim(key_of(number))

    def release(self) -> None:
        for lease in self._leases:
            lease.release()
        self._leases.clear()

    def alias(self, name: str, key: str | None = None) -> str | None:
        if key is not None:
            self._store.set_alias(name, "settings", key)
        return self._store.alias(name, "settings")

    def stats(self) -> dict[str, int]:
        return vars(self._store.stats()["shared"])

    def time_gets(self, number: int, times: int) -> list[float]:
        """Seconds of each."""
        taken = []
        for _ in range(times):
            begin = time.perf_counter()
            lease = self._store.get(key_of(number))
            taken.append(time.perf_counter() - begin)
            assert lease is not None
            lease.release()
        return taken

    def close(self) -> None:
        self._store.close()

    def _told(self, lease: SharedLease | None, keep: bool) -> dict[str, Any] | None:
        if lease is None:
            return None
        self._kept(lease, keep)
        array = lease.embeddings.numpy()
        return {"sum": float(array.sum()), "entry": lease.entry, "address": array.ctypes.data}

    def _kept(self, lease: SharedLease, keep: bool) -> SharedLease:
        if keep:
            self._leases.append(lease)
        else:
            lease.release()
        return lease
