"""Where decoding threads put frames and the consumer takes them, in order. Knows positions, no files and no time.

Threads work on different parts of the video at once. One that gets `window` frames ahead of the consumer waits, so
at most that many frames are held here. The thread with the earliest missing frame never waits.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator

import numpy as np

from mm_pipeline.video.scale import Pixels

_POLL_S = 0.05


class FrameBoard:
    """Slots for all frames of a plan, allocated chunk by chunk as they are filled."""

    def __init__(
        self,
        num_frames: int,
        *,
        shape: tuple[int, ...],
        chunk_frames: int,
        window: int,
        cancelled: Callable[[], bool],
    ) -> None:
        """shape: of one frame, uint8. window: at least chunk_frames + 8. cancelled: polled by everybody."""
        assert window >= chunk_frames + 8, "the earliest missing frame must fit in the window"
        self._num_frames, self._shape = num_frames, shape
        self._chunk_frames, self._window = chunk_frames, window
        self._cancelled = cancelled
        self._changed = threading.Condition()
        self._taken = 0
        self._chunks: dict[int, Pixels] = {}
        self._num_done: dict[int, int] = {}
        self._holes: set[int] = set()
        self._failure: BaseException | None = None
        self._closed = False

    def stopped(self) -> bool:
        """Whether threads should end."""
        return self._closed or self._failure is not None or self._cancelled()

    def put(self, positions: range, pixels: Pixels | None) -> None:
        """The frame for neighbouring positions; None leaves holes. Waits for the consumer; returns early when
        stopped."""
        for position in positions:
            with self._changed:
                while position >= self._taken + self._window and not self.stopped():
                    self._changed.wait(_POLL_S)
                if self.stopped():
                    return
                number = position // self._chunk_frames
                if pixels is not None and number not in self._chunks:
                    self._chunks[number] = np.empty((self._size(number), *self._shape), np.uint8)
                chunk = self._chunks.get(number)
            if pixels is not None:
                assert chunk is not None, "allocated above"
                chunk[position % self._chunk_frames] = pixels
            with self._changed:
                if pixels is None:
                    self._holes.add(position)
                self._num_done[number] = self._num_done.get(number, 0) + 1
                self._changed.notify_all()

    def fail(self, error: BaseException) -> None:
        """Ends everything with an error, which the consumer gets."""
        with self._changed:
            self._failure = self._failure or error
            self._changed.notify_all()

    def close(self) -> None:
        """The consumer wants no more."""
        with self._changed:
            self._closed = True
            self._chunks.clear()
            self._changed.notify_all()

    def take(self) -> Iterator[tuple[int, Pixels]]:
        """(first position, frames) in order; holes filled with the frame before, at the start with the one after.

        Ends early when cancelled or when every frame is a hole. Raises what a thread failed with.
        """
        latest: Pixels | None = None
        waiting: list[tuple[int, int]] = []
        for number in range(-(-self._num_frames // self._chunk_frames)):
            first, size = number * self._chunk_frames, self._size(number)
            with self._changed:
                while self._num_done.get(number, 0) < size and not self.stopped():
                    self._changed.wait(_POLL_S)
                if self._failure is not None:
                    raise self._failure
                if self.stopped():
                    return
                chunk = self._chunks.pop(number, None)
                holes = sorted(self._holes & set(range(first, first + size)))
                self._holes.difference_update(holes)
                self._taken = first + size
                self._changed.notify_all()
            if chunk is None and latest is None:
                waiting.append((first, size))
                continue
            if chunk is None:
                assert latest is not None, "checked above"
                chunk = np.repeat(latest[None], size, axis=0)
            elif holes:
                self._fill(chunk, [hole - first for hole in holes], latest)
            for early, early_size in waiting:
                yield early, np.repeat(chunk[:1], early_size, axis=0)
            waiting.clear()
            latest = chunk[-1].copy()
            yield first, chunk

    @staticmethod
    def _fill(chunk: Pixels, holes: list[int], latest: Pixels | None) -> None:
        missing = set(holes)
        first_there = next(place for place in range(len(chunk)) if place not in missing)
        for hole in holes:
            if hole > 0:
                chunk[hole] = chunk[hole - 1]
            else:
                chunk[hole] = chunk[first_there] if latest is None else latest

    def _size(self, number: int) -> int:
        return min(self._chunk_frames, self._num_frames - number * self._chunk_frames)
