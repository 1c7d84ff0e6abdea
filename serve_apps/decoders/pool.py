"""Decoder workers of one encoder replica: one item per worker, bounded time, and a crash costs its item only.

Back-pressure: of every item at most one part is under way while another is being used, since the next part is asked
for when one is handed out. Knows Ray actors. Does not know codecs, encoders or HTTP.
"""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import CancelledError
from typing import Any

import ray
from ray.exceptions import OutOfMemoryError, RayActorError, WorkerCrashedError

from mm_pipeline.errors import MediaError, UnsupportedMediaError
from mm_pipeline.options import MediaOptions
from serve_apps.api.errors import unavailable
from serve_apps.decoders.base import Decoder
from serve_apps.decoders.worker import CONTROL_GROUP, DecoderWorker

_log = logging.getLogger(__name__)

START_TIMEOUT_S = 120.0
"""A process that has not come up by then is replaced; on a busy machine its imports alone take seconds."""

STOP_TIMEOUT_S = 5.0
"""How long a cancelled decoding may take to end before its process is killed."""

_POLL_S = 0.1
_GONE = (RayActorError, WorkerCrashedError, OutOfMemoryError)


class DecoderPool:
    """A `Decoder` whose work is done by `num_workers` actors. Thread-safe; call it on threads, never on a loop.

    timeout_s: how long one item may keep its reader waiting, all parts together. Time in which the reader is busy
    with a part does not count.
    """

    def __init__(
        self,
        make_decoder: Callable[[], Decoder],
        *,
        num_workers: int,
        timeout_s: float,
        stop_timeout_s: float = STOP_TIMEOUT_S,
    ) -> None:
        self._make_decoder = make_decoder
        self._num_workers = num_workers
        self._timeout_s = timeout_s
        self._stop_timeout_s = stop_timeout_s
        # Ray's stubs do not know concurrency groups.
        remote: Any = ray.remote(num_cpus=0, max_restarts=0, concurrency_groups={CONTROL_GROUP: 1})  # type: ignore[call-overload]
        self._actor_class = remote(DecoderWorker)
        self._lock = threading.Lock()
        self._closed = False
        self._workers: list[Any] = []
        self._idle: queue.SimpleQueue[Any] = queue.SimpleQueue()
        for _ in range(num_workers):
            self._add_worker()

    def decode(
        self, data: Any, modality: str, options: MediaOptions, cancel: threading.Event
    ) -> Iterator[Any]:
        """See `Decoder.decode`. data: bytes, or a reference to bytes in the object store.

        Waits for a free worker. Raises MediaError (DecoderCrashedError for an item whose decoder crashes, its base
        UnsupportedMediaError for one that takes too long), CancelledError once `cancel` is set, and ApiError 503
        when no worker comes up.
        """
        item = self._begin(data, modality, options, cancel)
        usable = False
        try:
            yield from item.parts()
            usable = True
        except MediaError as error:
            usable = not isinstance(error, _DecoderFailed)
            raise
        except (GeneratorExit, CancelledError):
            usable = item.stop(self._stop_timeout_s)
            raise
        finally:
            self._give_back(item.worker, usable=usable)

    def wait_until_ready(self) -> None:
        """Returns once every process has its decoder. Raises Ray's error for one that cannot have it."""
        with self._lock:
            workers = list(self._workers)
        # Giving up no item does nothing, and needs a process that is up.
        ray.get([worker.finish.remote() for worker in workers], timeout=START_TIMEOUT_S)

    def close(self) -> None:
        """Ends all workers; items under way fail."""
        with self._lock:
            self._closed = True
            workers, self._workers = self._workers, []
        for worker in workers:
            ray.kill(worker)

    def _begin(self, data: Any, modality: str, options: MediaOptions, cancel: threading.Event) -> _Item:
        """The item on a worker that has taken it. What happens before that is not the item's fault."""
        # Even where every idle process has been killed, one of the tries meets a new one.
        for _ in range(self._num_workers + 1):
            worker = self._take(cancel)
            item = _Item(worker, cancel, self._timeout_s)
            try:
                item.start(data, modality, options)
            except CancelledError:
                self._give_back(worker, usable=item.stop(self._stop_timeout_s))
                raise
            except (*_GONE, TimeoutError) as error:
                _log.warning("a decoder process was gone before it took an item: %s", error)
                self._give_back(worker, usable=False)
                continue
            except BaseException:
                self._give_back(worker, usable=False)
                raise
            return item
        raise unavailable("The media decoder is being restarted. Send the request again later.")

    def _take(self, cancel: threading.Event) -> Any:
        while True:
            if cancel.is_set():
                raise CancelledError
            try:
                return self._idle.get(timeout=_POLL_S)
            except queue.Empty:
                continue

    def _give_back(self, worker: Any, *, usable: bool) -> None:
        if usable:
            self._idle.put(worker)
            return
        ray.kill(worker)
        with self._lock:
            if worker in self._workers:
                self._workers.remove(worker)
        self._add_worker()

    def _add_worker(self) -> None:
        with self._lock:
            if self._closed:
                return
            # Returns at once; calls wait until the process is up.
            worker = self._actor_class.remote(self._make_decoder)
            self._workers.append(worker)
        self._idle.put(worker)


class _DecoderFailed(UnsupportedMediaError):
    """The item was too much for its worker, which cannot be used again."""


class DecoderCrashedError(_DecoderFailed):
    """The worker's process ended: by the item, or by somebody who killed it."""


class _Item:
    """One item on one worker, from the reader's side."""

    def __init__(self, worker: Any, cancel: threading.Event, timeout_s: float) -> None:
        self.worker = worker
        self._cancel = cancel
        self._timeout_s = timeout_s
        self._left_s = timeout_s

    def start(self, data: Any, modality: str, options: MediaOptions) -> None:
        """Hand the item over. Raises Ray's error for a worker that is gone, TimeoutError and CancelledError."""
        taken = self.worker.start.remote(data, modality, options)
        self._wait(taken, START_TIMEOUT_S)
        ray.get(taken)

    def parts(self) -> Iterator[Any]:
        """The parts. The worker makes the next one while the reader is busy with this one."""
        following = self.worker.next.remote()
        while (found := self._result(following)) is not None:
            following = self.worker.next.remote()
            yield found

    def stop(self, timeout_s: float) -> bool:
        """End the decoding early; whether the worker did, and can be used again."""
        ended = [self.worker.stop.remote(), self.worker.finish.remote()]
        # `finish` waits behind a `next` under way, which `stop` cuts short.
        ready, _ = ray.wait(ended, num_returns=len(ended), timeout=timeout_s)
        if len(ready) < len(ended):
            return False
        try:
            ray.get(ended)
        except _GONE:
            return False
        return True

    def _result(self, call: Any) -> Any:
        begin = time.monotonic()
        try:
            self._wait(call, self._left_s)
            found = ray.get(call)
        except _GONE:
            raise DecoderCrashedError(
                "the decoder crashed on this item; encode it anew in a common format, such as H.264 and AAC "
                "in MP4, and send it again"
            ) from None
        except TimeoutError:
            raise _DecoderFailed(
                f"decoding did not end within {self._timeout_s:g} s, which is decode_timeout_s; send a shorter "
                "item or one in a simpler format"
            ) from None
        self._left_s -= time.monotonic() - begin
        if isinstance(found, MediaError):
            raise found
        return found

    def _wait(self, call: Any, timeout_s: float) -> None:
        """Until the call is done. A reader on a thread cannot be interrupted, so it looks up now and then."""
        deadline = time.monotonic() + timeout_s
        while not ray.wait([call], timeout=_POLL_S)[0]:
            if self._cancel.is_set():
                raise CancelledError
            if time.monotonic() >= deadline:
                raise TimeoutError
