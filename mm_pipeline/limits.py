"""What the server accepts from outside. Knows no modality's details and applies nothing itself."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

MIB = 1 << 20


@dataclass(frozen=True, kw_only=True)
class MediaLimits:
    """Server-side caps. A request may stay below them and can never raise them.

    max_bytes: encoded bytes of one item, as downloaded or as decoded from a data: URL.
    max_image_pixels: width x height of a still image, read from its header before pixels are allocated.
    max_video_pixels: width x height of a video's coded frame.
    max_video_frames: frames sampled from one video.
    max_media_duration_s: length of one video or sound, as its container tells or as decoding finds.
    decode_timeout_s: decoding of one video or sound.
    max_items: media parts in one request.
    fetch_timeout_s: whole download of one item, redirects included.
    connect_timeout_s: one connection, name resolution included.
    max_redirects: hops followed, each checked like the first URL.
    allowed_domains: host names a URL may point to, subdomains included; empty allows every public host.
    allow_private_hosts: lets URLs reach addresses that are not globally routable.
    file_root: folder under which file: URLs are read; None refuses them all.
    """

    max_bytes: int = 64 * MIB
    max_image_pixels: int = 100_000_000
    max_video_pixels: int = 7680 * 4320
    max_video_frames: int = 3600
    max_media_duration_s: float = 12 * 3600.0
    decode_timeout_s: float = 600.0
    max_items: int = 64
    fetch_timeout_s: float = 10.0
    connect_timeout_s: float = 5.0
    max_redirects: int = 3
    allowed_domains: tuple[str, ...] = ()
    allow_private_hosts: bool = False
    file_root: Path | None = None

    def __post_init__(self) -> None:
        for name in (
            "max_bytes",
            "max_image_pixels",
            "max_video_pixels",
            "max_video_frames",
            "max_media_duration_s",
            "decode_timeout_s",
            "max_items",
            "fetch_timeout_s",
            "connect_timeout_s",
        ):
            if getattr(self, name) <= 0:
                raise ValueError(f"{name} is {getattr(self, name)}; it must be greater than 0")
        if self.max_redirects < 0:
            raise ValueError(f"max_redirects is {self.max_redirects}; it must be 0 or more")
