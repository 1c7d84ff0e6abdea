"""The tier in a folder: one file per block, with a checksum. The least recently used files go first.

A file is 32 bytes of BLAKE3 over the rest, then the block. It is written under another name and then renamed, so a
reader finds it whole or not at all; one that is cut short or changed all the same does not match its checksum, is a
miss and is deleted. The folder survives restarts; its name is to hold what the KV depends on besides the tokens.
"""

from __future__ import annotations

import os
import threading
from collections import OrderedDict
from contextlib import suppress
from pathlib import Path

import torch
from blake3 import blake3
from torch import Tensor

from llm_core.config import LayerKind
from llm_core.kv.tiers.host import Name

_CHECKSUM_BYTES = 32
_KINDS: tuple[LayerKind, ...] = ("full", "swa")


class DiskTier:
    """Files up to `max_bytes` in a folder of its own, which is made. Safe to use from several threads.

    Processes may share the folder: each bounds the files that it knows, and a file that another one has deleted is
    a miss. Raises OSError where the folder cannot be made or read; later errors of the disk are misses.
    """

    def __init__(self, folder: Path, max_bytes: int) -> None:
        self.max_bytes = max_bytes
        self.num_bytes = 0
        self._folder = folder
        self._lock = threading.Lock()
        self._sizes: OrderedDict[Name, int] = OrderedDict()
        folder.mkdir(parents=True, exist_ok=True)
        self._take_over()

    def __contains__(self, name: Name) -> bool:
        return name in self._sizes

    def get(self, name: Name) -> Tensor | None:
        """uint8 [bytes]; None for a file that is not there or is not what was written."""
        if name not in self._sizes:
            return None
        path = self._path(name)
        try:
            content = bytearray(path.read_bytes())
            # The folder is its own record of what was used when, for the next start.
            os.utime(path)
        except OSError:
            content = bytearray()
        if len(content) <= _CHECKSUM_BYTES or content[:_CHECKSUM_BYTES] != _checksum(content):
            self._drop(name)
            return None
        with self._lock:
            if name in self._sizes:
                self._sizes.move_to_end(name)
        return torch.frombuffer(content, dtype=torch.uint8, offset=_CHECKSUM_BYTES)

    def put(self, name: Name, block: Tensor) -> None:
        """Keeps a block, unless it is there, is larger than the tier, or the disk does not take it."""
        size = block.nbytes + _CHECKSUM_BYTES
        if name in self._sizes or size > self.max_bytes:
            return
        path = self._path(name)
        unfinished = path.with_suffix(f".{os.getpid()}")
        data = block.numpy().data
        try:
            with unfinished.open("wb") as file:
                file.write(blake3(data).digest())
                file.write(data)
            unfinished.replace(path)
        except OSError:
            with suppress(OSError):
                unfinished.unlink(missing_ok=True)
            return
        with self._lock:
            self._count(name, size)
            evicted = self._over_the_bound()
        self._delete(evicted)

    def check(self) -> None:
        """Asserts that the bytes are those of the files, and within the bound."""
        sizes = {path.name: path.stat().st_size for path in self._folder.iterdir()}
        assert sizes == {self._path(name).name: size for name, size in self._sizes.items()}, (
            "files are miscounted"
        )
        assert self.num_bytes == sum(self._sizes.values()), "bytes are miscounted"
        assert self.num_bytes <= self.max_bytes, "the bound is broken"

    def _take_over(self) -> None:
        """Counts what an earlier process left; what it did not finish is deleted."""
        found = []
        for path in self._folder.iterdir():
            with suppress(OSError):
                status = path.stat()
                name = _name(path)
                if name is None:
                    path.unlink()
                else:
                    found.append((status.st_mtime_ns, name, status.st_size))
        with self._lock:
            for _, name, size in sorted(found):
                self._count(name, size)
            evicted = self._over_the_bound()
        self._delete(evicted)

    def _count(self, name: Name, size: int) -> None:
        self.num_bytes += size - self._sizes.pop(name, 0)
        self._sizes[name] = size

    def _over_the_bound(self) -> list[Name]:
        evicted = []
        while self.num_bytes > self.max_bytes:
            name, size = self._sizes.popitem(last=False)
            self.num_bytes -= size
            evicted.append(name)
        return evicted

    def _drop(self, name: Name) -> None:
        with self._lock:
            self.num_bytes -= self._sizes.pop(name, 0)
        self._delete([name])

    def _delete(self, names: list[Name]) -> None:
        for name in names:
            with suppress(OSError):
                self._path(name).unlink(missing_ok=True)

    def _path(self, name: Name) -> Path:
        kind, key = name
        return self._folder / f"{key.hex()}.{kind}"


def _name(path: Path) -> Name | None:
    """What a file holds; None for one that is no finished block."""
    kind = next((kind for kind in _KINDS if path.suffix == f".{kind}"), None)
    try:
        return None if kind is None else (kind, bytes.fromhex(path.stem))
    except ValueError:
        return None


def _checksum(content: bytearray) -> bytes:
    return blake3(memoryview(content)[_CHECKSUM_BYTES:]).digest()
