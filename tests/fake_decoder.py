"""A decoder whose items are scripts in JSON: what it yields, and how it fails. It runs in decoder processes."""

from __future__ import annotations

import json
import os
import signal
import threading
import time
from collections.abc import Iterator
from concurrent.futures import CancelledError
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from mm_pipeline.errors import UnsupportedMediaError
from mm_pipeline.options import MediaOptions


@dataclass(frozen=True, kw_only=True)
class FakePart:
    """Part `index` of an item, made by process `pid`, the `made` th part of that process."""

    index: int
    frames: npt.NDArray[np.uint8] = field(repr=False)
    pid: int
    made: int
    options: MediaOptions


def script(parts: int, **faults: Any) -> bytes:
    """An item of so many parts. Faults: crash_at, hang_at, deaf_at, error_at, bug_at = number of a part;
    size: of the frames."""
    return json.dumps({"parts": parts, **faults}).encode()


class FakeDecoder:
    """Parts of [2, 3, size, size] uint8, each filled with its index."""

    def __init__(self) -> None:
        self._made = 0

    def decode(
        self, data: bytes, modality: str, options: MediaOptions, cancel: threading.Event
    ) -> Iterator[FakePart]:
        item = json.loads(data)
        size = item.get("size", 8)
        for index in range(item["parts"]):
            if index == item.get("crash_at"):
                os.kill(os.getpid(), signal.SIGSEGV)
            if index == item.get("hang_at"):
                # As a real decoder does, it ends when it is told to.
                cancel.wait()
            if index == item.get("deaf_at"):
                time.sleep(600)
            if index == item.get("error_at"):
                raise UnsupportedMediaError("the rest of the file is noise")
            if index == item.get("bug_at"):
                raise ZeroDivisionError("a bug")
            if cancel.is_set():
                raise CancelledError
            self._made += 1
            yield FakePart(
                index=index,
                frames=np.full((2, 3, size, size), index, np.uint8),
                pid=os.getpid(),
                made=self._made,
                options=options,
            )
