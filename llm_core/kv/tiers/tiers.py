"""The tiers below one engine's device: host memory, and behind it files."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

import torch
from torch import Tensor

from llm_core.config import LayerKind
from llm_core.kv.storage import KVStorage
from llm_core.kv.tiers.base import PageLoad
from llm_core.kv.tiers.blocks import PageBlocks
from llm_core.kv.tiers.disk import DiskTier
from llm_core.kv.tiers.host import HostTier, Name
from llm_core.kv.tiers.settings import TierSettings, TierStats
from llm_core.kv.tiers.transfer import Layer, Transfer

# Blocks that wait to be written; behind them is a slow disk, and what comes then is not kept.
_MAX_UNWRITTEN = 1024
_READERS = 4


class KVTiers:
    """See `LowerTiers`. Files are read and written by threads of its own; see `prefetch`."""

    def __init__(self, storage: KVStorage, layers: Sequence[Layer], settings: TierSettings) -> None:
        self._storage = storage
        self._layers = layers
        self._settings = settings
        self._blocks = PageBlocks(storage)
        self._host = HostTier(settings.host_bytes)
        self._disk = DiskTier(settings.folder, settings.disk_bytes) if settings.folder else None
        # Who waits to read waits neither for what is written nor for one long prompt.
        self._writer = ThreadPoolExecutor(1, thread_name_prefix="kv-write")
        self._readers = ThreadPoolExecutor(_READERS, thread_name_prefix="kv-read")
        self._unwritten = threading.Semaphore(_MAX_UNWRITTEN)
        self._pages_from_host = self._pages_from_disk = 0
        self._counting = threading.Lock()

    def has(self, kind: LayerKind, key: bytes) -> bool:
        return (kind, key) in self._host

    def fetch(self, kind: LayerKind, key: bytes) -> Tensor | None:
        return self._host.get((kind, key))

    def computed(self, kind: LayerKind, key: bytes, page: int) -> None:
        if self._settings.policy == "write_through":
            self._save((kind, key), page)

    def evicted(self, kind: LayerKind, key: bytes, page: int) -> None:
        self._save((kind, key), page)

    @property
    def has_files(self) -> bool:
        return self._disk is not None

    def prefetch(self, keys: Callable[[], Sequence[bytes]], then: Callable[[], None]) -> None:
        """Reads into host memory what only files hold of some pages, on another thread, and there calls `then`.

        keys: tells their keys; it is called there, too. At most half of the host memory is read into, so that one
        prompt does not push out everybody's. May be called by any thread, where there are files.
        """
        assert self._disk is not None
        self._readers.submit(self._read, self._disk, keys, then)

    def load(self, loads: Sequence[PageLoad]) -> Transfer:
        """Begins to copy blocks into their pages."""
        self._pages_from_host += len(loads)
        return Transfer(self._blocks, loads, self._layers, self._storage.device, self._settings.bytes_per_s)

    def stats(self) -> TierStats:
        return TierStats(
            host_bytes=self._host.num_bytes,
            disk_bytes=0 if self._disk is None else self._disk.num_bytes,
            pages_from_host=self._pages_from_host,
            pages_from_disk=self._pages_from_disk,
        )

    def flush(self) -> None:
        """Until all is written that waits to be."""
        self._writer.submit(lambda: None).result()

    def close(self) -> None:
        """Writes what waits to be written, and ends."""
        self._readers.shutdown(cancel_futures=True)
        self._writer.shutdown()

    def check(self) -> None:
        """Asserts that both tiers hold what they count."""
        self.flush()
        self._host.check()
        if self._disk is not None:
            self._disk.check()

    def _last_window(self, keys: Sequence[bytes]) -> list[Name]:
        """SWA pages that lie one after another in these tiers, the last such run of them."""
        run: list[Name] = []
        for key in reversed(keys):
            name: Name = ("swa", key)
            if name in self._host or (self._disk is not None and name in self._disk):
                run.append(name)
            elif run:
                break
        return run

    def _read(self, disk: DiskTier, keys: Callable[[], Sequence[bytes]], then: Callable[[], None]) -> None:
        try:
            room = self._settings.host_bytes // 2
            found = keys()
            names: list[Name] = [("full", key) for key in found]
            for name in [*names, *self._last_window(found)]:
                if name in self._host or name not in disk:
                    continue
                block = disk.get(name)
                if block is None or block.nbytes != self._blocks.num_bytes(name[0]):
                    continue
                room -= block.nbytes
                if room < 0:
                    return
                with self._counting:
                    self._pages_from_disk += 1
                self._put(name, block)
        finally:
            then()

    def _save(self, name: Name, page: int) -> None:
        # Asked for so that it counts as used.
        if self._host.get(name) is None:
            with torch.inference_mode():
                block = self._blocks.read(name[0], page)
            self._put(name, block)
            if self._settings.policy == "write_through":
                self._write(name, block)

    def _put(self, name: Name, block: Tensor) -> None:
        for evicted, its_block in self._host.put(name, block):
            self._write(evicted, its_block)

    def _write(self, name: Name, block: Tensor) -> None:
        if self._disk is None or name in self._disk or not self._unwritten.acquire(blocking=False):
            return
        self._writer.submit(self._write_now, self._disk, name, block)

    def _write_now(self, disk: DiskTier, name: Name, block: Tensor) -> None:
        try:
            disk.put(name, block)
        finally:
            self._unwritten.release()
