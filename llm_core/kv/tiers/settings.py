"""How big the tiers are, and a reading of them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

TierPolicy = Literal["write_back", "write_through"]


@dataclass(frozen=True, kw_only=True)
class TierSettings:
    """Settings of the tiers.

    Attributes:
        host_bytes: most bytes of blocks in host memory; 0 for no tiers at all.
        folder: where files are kept; None for none.
        disk_bytes: most bytes of files.
        policy: "write_back" keeps a page when the tier above lets go of it, "write_through" in all tiers as soon as
            it is computed, so that it survives the process.
        bytes_per_s: see `Transfer`.
    """

    host_bytes: int = 0
    folder: Path | None = None
    disk_bytes: int = 0
    policy: TierPolicy = "write_back"
    bytes_per_s: float | None = None

    def __post_init__(self) -> None:
        if self.host_bytes < 0 or self.disk_bytes < 0:
            raise ValueError(
                f"host_bytes is {self.host_bytes}, disk_bytes {self.disk_bytes}; neither can be less than 0"
            )
        if self.folder is not None and not (self.host_bytes and self.disk_bytes):
            raise ValueError(
                "KV files are read through host memory and are bounded: give host_bytes and disk_bytes, too"
            )


@dataclass(frozen=True, kw_only=True)
class TierStats:
    """Bytes held now, and pages that came back from host memory and from files since the start."""

    host_bytes: int = 0
    disk_bytes: int = 0
    pages_from_host: int = 0
    pages_from_disk: int = 0
