"""What the prefix tree and the scheduler know of the tiers below the device: pages by key, their content opaque."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

from llm_core.config import LayerKind


@dataclass(frozen=True, kw_only=True)
class PageLoad:
    """A block to be copied into a page of the pool of its kind before the layer that reads it runs."""

    kind: LayerKind
    page: int
    block: Any


class LowerTiers(Protocol):
    """Keeps pages by their keys (`llm_core.prefix.PageKey`), full and SWA ones apart, while there is room.

    Called by the engine's thread only. Nothing here fails: what cannot be kept or found is not there.
    """

    def has(self, kind: LayerKind, key: bytes) -> bool:
        """Whether `fetch` would find it now, without waiting for a disk."""
        ...

    def fetch(self, kind: LayerKind, key: bytes) -> Any | None:
        """What was in the page, or None. It stays valid whatever the tier does later."""
        ...

    def computed(self, kind: LayerKind, key: bytes, page: int) -> None:
        """The device now keeps this page."""
        ...

    def evicted(self, kind: LayerKind, key: bytes, page: int) -> None:
        """The device is about to let go of this page."""
        ...


class NoTiers:
    """A device with nothing below it."""

    def has(self, kind: LayerKind, key: bytes) -> bool:
        return False

    def fetch(self, kind: LayerKind, key: bytes) -> Any | None:
        return None

    def computed(self, kind: LayerKind, key: bytes, page: int) -> None:
        pass

    def evicted(self, kind: LayerKind, key: bytes, page: int) -> None:
        pass
