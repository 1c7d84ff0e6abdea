"""What decodes a video or a sound, and how it is stopped. Knows no Ray and no codec."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any, Protocol

from mm_pipeline.options import MediaOptions


class Decoder(Protocol):
    """`mm_pipeline.decoding.MediaDecoder`, or a fake of it in tests."""

    def decode(
        self, data: bytes, modality: str, options: MediaOptions, cancel: threading.Event
    ) -> Iterator[Any]:
        """The parts of one item, in order, as they are ready: a generator, and closing it ends the decoding.

        The parts are dataclasses with numpy arrays, which may arrive read-only. Once `cancel` is set,
        `concurrent.futures.CancelledError` is raised, or the parts end. Raises MediaError, also between two parts.
        """
        ...
