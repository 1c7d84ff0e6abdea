"""Made-up media, and a store whose every step is spelled out."""

from __future__ import annotations

from collections.abc import Callable

import torch
from blake3 import blake3

from mm_pipeline.pipeline import EncodedMedia
from mm_pipeline.prompt.layout import VideoLayout

HIDDEN = 8
ROW_BYTES = 4 * HIDDEN


def key_of(number: int) -> str:
    return blake3(str(number).encode()).hexdigest()


def media(number: int, num_tokens: int, dtype: torch.dtype = torch.float32) -> EncodedMedia:
    """Embeddings that say which item they are of: number, number + 1, ..."""
    rows = torch.arange(num_tokens * HIDDEN).view(num_tokens, HIDDEN) % 7 + number
    return EncodedMedia(
        embeddings=rows.to(dtype), num_tokens=num_tokens, modality="image", content_key=key_of(number)
    )


def video(number: int) -> EncodedMedia:
    """With everything an entry can have."""
    layout = VideoLayout(
        frame_times_s=(0.0, 1 / 3, 0.7), tokens_per_unit=2, audio_tokens=1, audio_start_s=0.1
    )
    return EncodedMedia(
        embeddings=torch.full((5, HIDDEN), float(number)),
        num_tokens=5,
        modality="video",
        content_key=key_of(number),
        layout=layout,
        notes=("2 frames are damaged",),
        timings={"decode_ms": 1.0},
    )


class Model:
    """What a store must hold, by the plainest means: a list in the order of last use."""

    def __init__(self, max_bytes: int, size_of: Callable[[int], int]) -> None:
        """size_of: bytes of the entry with this number, which has as many rows."""
        self.max_bytes = max_bytes
        self.size_of = size_of
        self.order: list[int] = []
        self.pins: dict[int, int] = {}
        self.hits = self.misses = self.stored = self.rejected = self.evicted = 0

    def get(self, number: int) -> bool:
        if number not in self.order:
            self.misses += 1
            return False
        self.hits += 1
        self.pins[number] = self.pins.get(number, 0) + 1
        return True

    def put(self, number: int) -> bool:
        if number not in self.order:
            if self.pinned_bytes() + self.size_of(number) > self.max_bytes:
                self.rejected += 1
                return False
            while self.num_bytes() + self.size_of(number) > self.max_bytes:
                self.order.remove(next(other for other in self.order if not self.pins.get(other)))
                self.evicted += 1
            self.order.append(number)
            self.stored += 1
        self.pins[number] = self.pins.get(number, 0) + 1
        return True

    def release(self, number: int) -> None:
        self.pins[number] -= 1
        if not self.pins[number]:
            self.order.remove(number)
            self.order.append(number)

    def num_bytes(self) -> int:
        return sum(map(self.size_of, self.order))

    def pinned_bytes(self) -> int:
        return sum(self.size_of(number) for number in self.order if self.pins.get(number))
