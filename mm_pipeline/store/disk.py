"""The store in a folder: one safetensors file for each entry. It survives restarts.

Processes on one machine may share the folder; the bound holds for all of them together. Knows files; trusts none.
"""

from __future__ import annotations

import fcntl
import os
import re
import threading
from collections import deque
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

from mm_pipeline.store.base import Lease, TierStats
from mm_pipeline.store.disk_format import DamagedEntryError, read, to_bytes
from mm_pipeline.store.lru import PinnedLru, Slot
from mm_pipeline.store.media import entry_of

if TYPE_CHECKING:
    from mm_pipeline.pipeline.media import EncodedMedia

_KEY: Final = re.compile(r"[0-9a-f]{64}")
_SUFFIX: Final = ".safetensors"
_UNFINISHED: Final = ".tmp"
_LOCK: Final = ".lock"


class DiskStore:
    """See `EmbeddingStore`; its one tier is called "disk", and its bytes are those of whole files. Beside them the
    folder holds at most one file that is being written.

    Keys are content keys: 64 hex digits. What is read is checked against its checksum; a file that is missing, cut
    short or changed is a miss and is deleted. A pin holds for this process only: what has been read lies in memory.
    """

    def __init__(self, folder: Path, max_bytes: int) -> None:
        """Makes the folder, and takes over what it holds, least recently used files going first where the bound is
        now smaller. Raises OSError for a folder that cannot be made or written to."""
        folder.mkdir(parents=True, exist_ok=True)
        self._folder = folder
        self._lock = threading.Lock()
        # Held while files are written: a disk gains nothing from two writers, and so an unfinished file that is
        # found under this lock has lost its writer.
        self._writing = threading.Lock()
        self._lru: PinnedLru[None] = PinnedLru(max_bytes)
        self._released: deque[Slot[None]] = deque()
        self._generation = -1
        with self._alone():
            pass

    def get(self, key: str) -> Lease | None:
        """See `EmbeddingStore.get`."""
        _check_key(key)
        path = self._path(key)
        if key not in self._lru and path.exists():
            # Another process has written it.
            with suppress(OSError), self._writing, self._alone():
                pass
        with self._lock:
            self._settle()
            slot = self._lru.find(key)
        if slot is None:
            return None
        try:
            with path.open("rb") as file:
                entry, embeddings = read(file, os.fstat(file.fileno()).st_size)
            if entry.key != key:
                raise DamagedEntryError("the file holds another entry")
            # The folder is its own record of what was used when, for the next start and for other processes.
            os.utime(path)
        except (OSError, DamagedEntryError):
            self._drop(slot, path)
            return None
        return Lease(entry, embeddings, partial(self._released.append, slot))

    def put(self, key: str, media: EncodedMedia) -> Lease:
        """See `EmbeddingStore.put`. A full or broken disk stores nothing and says nothing."""
        _check_key(key)
        entry = entry_of(key, media)
        slot = self._held(key)
        if slot is None:
            content = to_bytes(entry, media.embeddings)
            with suppress(OSError), self._writing, self._alone(writes=True):
                slot = self._held(key) or self._write(key, content)
        release = _nothing if slot is None else partial(self._released.append, slot)
        return Lease(entry, media.embeddings, release)

    def stats(self) -> Mapping[str, TierStats]:
        """See `EmbeddingStore.stats`; what other processes did is seen at this one's next write."""
        with self._lock:
            self._settle()
            return {"disk": self._lru.stats()}

    def close(self) -> None:
        """Nothing runs in the background."""

    def check(self) -> None:
        """Asserts that the books agree with each other and with the folder; for tests."""
        with self._lock:
            self._settle()
            self._lru.check()
            sizes = {path.name.removesuffix(_SUFFIX): path.stat().st_size for path in self._files()}
            assert sizes == {slot.key: slot.num_bytes for slot in self._lru.slots()}
            assert not list(self._folder.glob(f"*{_UNFINISHED}"))

    def _held(self, key: str) -> Slot[None] | None:
        """The slot with one more pin, if the key is known."""
        with self._lock:
            self._settle()
            slot = self._lru.peek(key)
            if slot is not None:
                self._lru.pin(slot)
            return slot

    def _write(self, key: str, content: bytes) -> Slot[None] | None:
        """The new slot, pinned. None where it does not fit. Raises OSError, having stored nothing."""
        with self._lock:
            if not self._lru.can_fit(len(content)):
                self._lru.reject()
                return None
        path = self._path(key)
        unfinished = path.with_suffix(_UNFINISHED)
        try:
            unfinished.write_bytes(content)
            # Books and folder change together, so that no reader finds a slot whose file is still to come.
            with self._lock:
                self._settle()
                return self._finish(key, len(content), unfinished, path)
        finally:
            with suppress(OSError):
                unfinished.unlink(missing_ok=True)

    def _finish(self, key: str, num_bytes: int, unfinished: Path, path: Path) -> Slot[None] | None:
        slot = self._lru.peek(key)
        evicted: list[Slot[None]] = []
        if slot is None:
            slot, evicted = self._lru.add(key, num_bytes, None)
        if slot is None:
            return None
        self._lru.pin(slot)
        try:
            for victim in evicted:
                self._path(victim.key).unlink(missing_ok=True)
            unfinished.replace(path)
        except OSError:
            self._lru.unpin(slot)
            self._lru.remove(slot)
            # A victim's file may have stayed: the next write counts what there is.
            self._generation = -1
            raise
        return slot

    def _drop(self, slot: Slot[None], path: Path) -> None:
        """Takes back a pin together with the slot and its file."""
        with self._lock:
            self._lru.unpin(slot)
            if self._lru.remove(slot):
                try:
                    path.unlink(missing_ok=True)
                except OSError:
                    self._generation = -1

    @contextmanager
    def _alone(self, *, writes: bool = False) -> Iterator[None]:
        """No other process writes meanwhile, and the books know all that others have written before."""
        lock = os.open(self._folder / _LOCK, os.O_RDWR | os.O_CREAT, 0o644)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX)
            generation = int.from_bytes(os.pread(lock, 8, 0), "little")
            if generation != self._generation:
                self._rescan()
            self._generation = generation + writes
            if writes:
                os.pwrite(lock, self._generation.to_bytes(8, "little"), 0)
            yield
        finally:
            os.close(lock)

    def _rescan(self) -> None:
        """Makes the books agree with the folder, and the folder with the bound."""
        for path in self._folder.glob(f"*{_UNFINISHED}"):
            path.unlink(missing_ok=True)
        with self._lock:
            self._settle()
            found = {}
            for path in self._files():
                with suppress(FileNotFoundError):
                    status = path.stat()
                    found[path.name.removesuffix(_SUFFIX)] = (status.st_mtime_ns, status.st_size)
            for slot in self._lru.slots():
                if found.get(slot.key, (0, -1))[1] != slot.num_bytes:
                    self._lru.remove(slot)
            for key in sorted(found, key=lambda key: found[key][0]):
                if key not in self._lru:
                    self._take(key, found[key][1])

    def _take(self, key: str, num_bytes: int) -> None:
        slot, evicted = self._lru.add(key, num_bytes, None)
        for gone in [victim.key for victim in evicted] + ([] if slot else [key]):
            self._path(gone).unlink(missing_ok=True)

    def _files(self) -> Iterator[Path]:
        return (
            path
            for path in self._folder.glob(f"*{_SUFFIX}")
            if _KEY.fullmatch(path.name.removesuffix(_SUFFIX))
        )

    def _path(self, key: str) -> Path:
        return self._folder / (key + _SUFFIX)

    def _settle(self) -> None:
        while self._released:
            self._lru.unpin(self._released.popleft())


def _check_key(key: str) -> None:
    if not _KEY.fullmatch(key):
        raise ValueError(f"key is {key!r}; content keys have 64 hex digits")


def _nothing() -> None:
    """Ends a lease that pins nothing."""
