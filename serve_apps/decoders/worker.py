"""The actor in which codecs run: one item at a time, one part per call.

Knows that the process may be killed at any moment and holds nothing that would be missed. Imports no torch, which
would make the process five times as large. Does not know who calls.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Generator
from concurrent.futures import CancelledError
from typing import Any

import ray

from mm_pipeline.errors import MediaError
from mm_pipeline.options import MediaOptions
from serve_apps.decoders.base import Decoder

CONTROL_GROUP = "control"
"""Calls of this concurrency group run while another call decodes."""


class DecoderWorker:
    """`start`, then `next` until it gives None or an error; or `stop` and `finish` at any time in between.

    A part is made when it is asked for, so an item that nobody reads goes no further.
    """

    def __init__(self, make_decoder: Callable[[], Decoder]) -> None:
        self._decoder = make_decoder()
        self._cancel = threading.Event()
        self._parts: Generator[Any, None, None] | None = None

    def start(self, data: bytes, modality: str, options: MediaOptions) -> None:
        """Take an item. Ray resolves a reference to `data` before the call begins."""
        self._cancel = threading.Event()
        self._parts = self._decode(data, modality, options, self._cancel)

    def next(self) -> Any:
        """The next part, whose arrays the reader maps and does not copy; None after the last one; what is wrong
        with the item, as a value, since Ray would log it and change its type."""
        if self._parts is None:
            return None
        try:
            part = next(self._parts)
        except (StopIteration, CancelledError):
            self._parts = None
            return None
        except MediaError as error:
            self._parts = None
            return error
        return part

    def finish(self) -> None:
        """Give up the item, if there is one."""
        parts, self._parts = self._parts, None
        if parts is not None:
            parts.close()

    @ray.method(concurrency_group=CONTROL_GROUP)
    def stop(self) -> None:
        """Tell a decoding that is under way to come to its end."""
        self._cancel.set()

    def _decode(
        self, data: bytes, modality: str, options: MediaOptions, cancel: threading.Event
    ) -> Generator[Any, None, None]:
        yield from self._decoder.decode(data, modality, options, cancel)
