"""Keys that clients give their media, and the content keys they stand for.

Knows digests. Stores no embeddings and no API key. An alias is set only beside the bytes; that later ones under the
same uuid are the same is the client's word, and concerns nobody else.
"""

from __future__ import annotations

import threading
from collections import OrderedDict

from mm_pipeline.content_key import content_key


def key_for_uuid(api_key: str | None, uuid: str) -> str:
    """64 hex digits. The same uuid under another API key, or under none, is another key."""
    return content_key("uuid", "", {"api_key": api_key}, uuid.encode())


class Aliases:
    """(uuid key, settings) to content key: the same media under other settings are other embeddings, so a miss.

    settings_key: the content key of empty bytes under the request's settings, such as `ImagePipeline.key(b"")`;
    it holds modality, encoder and settings, and nothing of the item. Thread-safe; the alias used least recently
    goes first.
    """

    def __init__(self, max_entries: int = 100_000) -> None:
        if max_entries < 1:
            raise ValueError(f"max_entries is {max_entries}; it must be at least 1")
        self._max_entries = max_entries
        self._lock = threading.Lock()
        self._found: OrderedDict[tuple[str, str], str] = OrderedDict()

    def __len__(self) -> int:
        return len(self._found)

    def set(self, uuid_key: str, settings_key: str, key: str) -> None:
        """key: content key of the bytes that just came with this uuid. Replaces what the uuid stood for."""
        with self._lock:
            self._found[uuid_key, settings_key] = key
            self._found.move_to_end((uuid_key, settings_key))
            if len(self._found) > self._max_entries:
                self._found.popitem(last=False)

    def get(self, uuid_key: str, settings_key: str) -> str | None:
        """The content key, or None. Its embeddings may have been evicted meanwhile."""
        with self._lock:
            key = self._found.get((uuid_key, settings_key))
            if key is not None:
                self._found.move_to_end((uuid_key, settings_key))
            return key

    def items(self) -> list[tuple[str, str, str]]:
        """(uuid key, settings key, content key), the least recently used first."""
        with self._lock:
            return [(uuid_key, settings_key, key) for (uuid_key, settings_key), key in self._found.items()]
