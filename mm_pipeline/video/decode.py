"""A plan's frames out of a file, on several threads, in order. Knows threads and memory, no codecs."""

from __future__ import annotations

import math
import os
import threading
from collections.abc import Callable, Generator, Iterator
from concurrent.futures import CancelledError
from dataclasses import dataclass

from av.video.frame import VideoFrame

from mm_pipeline.container import MediaSource
from mm_pipeline.errors import UnsupportedMediaError
from mm_pipeline.limits import MediaLimits
from mm_pipeline.video.animation import CONTAINER as ANIMATION
from mm_pipeline.video.animation import animation_frames
from mm_pipeline.video.board import FrameBoard
from mm_pipeline.video.chunks import Run, join_runs, plan_runs
from mm_pipeline.video.plan import FramePlan
from mm_pipeline.video.reader import StreamReader
from mm_pipeline.video.scale import FrameScaler, Pixels

_CHUNK_FRAMES = 16
_CHUNK_BYTES = 16 << 20
_WINDOW_BYTES = 64 << 20
# What FrameBoard needs beyond a chunk.
_SPARE_FRAMES = 8

Convert = Callable[[VideoFrame], Pixels]


@dataclass(frozen=True, kw_only=True)
class FrameChunk:
    """first_frame: place of the first one among the sampled frames. frames: uint8 [n, 3, H, W], with n a multiple
    of the plan's temporal_patch_size. times_s: their times, seconds from the video's first frame."""

    first_frame: int
    frames: Pixels
    times_s: tuple[float, ...]


@dataclass(frozen=True, kw_only=True)
class DecodeReport:
    """lost_frames: sampled frames replaced by a neighbour because theirs did not decode. damaged_packets: packets
    that did not decode. notes: the same and what the probe found, in plain words."""

    lost_frames: int
    damaged_packets: int
    notes: tuple[str, ...]


class VideoDecoder:
    """One decode of one plan. Iterate `chunks()` once; `report` is final when it has ended.

    Closing the iterator, or setting `cancel`, stops all threads after their current packet and closes their files.
    """

    def __init__(
        self,
        source: MediaSource,
        plan: FramePlan,
        *,
        num_threads: int | None = None,
        cancel: threading.Event | None = None,
        limits: MediaLimits | None = None,
        converter: Callable[[], tuple[Convert, tuple[int, ...]]] | None = None,
    ) -> None:
        """num_threads: None takes one per core this process may use. converter: instead of scaling to RGB; makes,
        for each thread, a function from a decoded frame to a uint8 array, and says the array's shape."""
        if num_threads is not None and num_threads < 1:
            raise ValueError(f"num_threads is {num_threads}; need at least 1")
        self._source, self._plan = source, plan
        self._num_threads = num_threads or len(os.sched_getaffinity(0))
        self._cancel = cancel or threading.Event()
        self._max_pixels = (limits or MediaLimits()).max_video_pixels
        self._converter = converter or self._make_scaler
        self._positions = _positions(plan.ticks)
        self._lock = threading.Lock()
        self._num_lost = self._num_damaged = self._num_concealed = 0

    @property
    def report(self) -> DecodeReport:
        """What was lost so far."""
        notes = list(self._plan.info.notes)
        if self._num_lost:
            notes.append(f"{self._num_lost} sampled frames did not decode and repeat a neighbour")
        if self._num_concealed:
            notes.append(f"{self._num_concealed} sampled frames are damaged in part")
        return DecodeReport(lost_frames=self._num_lost, damaged_packets=self._num_damaged, notes=tuple(notes))

    def chunks(self) -> Generator[FrameChunk, None, None]:
        """Chunks in order as they are finished.

        Raises UnsupportedMediaError when no sampled frame decodes, CancelledError when `cancel` was set.
        """
        _, shape = self._converter()
        frame_bytes = max(1, math.prod(shape))
        unit = self._plan.temporal_patch_size
        chunk_frames = max(min(_CHUNK_FRAMES, _CHUNK_BYTES // frame_bytes) // unit, 1) * unit
        board = FrameBoard(
            self._plan.num_frames,
            shape=shape,
            chunk_frames=chunk_frames,
            window=max(chunk_frames + _SPARE_FRAMES, _WINDOW_BYTES // frame_bytes),
            cancelled=self._cancel.is_set,
        )
        threads = self._threads(board)
        for thread in threads:
            thread.start()
        num_given = 0
        try:
            for first, frames in board.take():
                num_given += len(frames)
                times = self._plan.frame_times_s[first : first + len(frames)]
                yield FrameChunk(first_frame=first, frames=frames, times_s=times)
        finally:
            board.close()
            for thread in threads:
                thread.join()
        if num_given < self._plan.num_frames:
            if self._cancel.is_set():
                raise CancelledError("decoding was cancelled")
            raise UnsupportedMediaError("no frame of the video decodes; the file is damaged, send it again")

    def _threads(self, board: FrameBoard) -> list[threading.Thread]:
        info = self._plan.info
        if info.container == ANIMATION:
            return [self._thread(board, lambda: self._animate(board))]
        if info.index.is_ordinal:
            return [self._thread(board, lambda: self._count(board))]
        chunks = join_runs(plan_runs(self._plan))
        num_workers = min(self._num_threads, len(chunks))
        # With fewer chunks than cores the decoder's own threads take the rest.
        decoder_threads = self._num_threads // num_workers
        queue = iter(chunks)
        return [
            self._thread(board, lambda: self._work(board, queue, decoder_threads)) for _ in range(num_workers)
        ]

    def _thread(self, board: FrameBoard, work: Callable[[], None]) -> threading.Thread:
        def run() -> None:
            try:
                work()
            except BaseException as error:
                board.fail(error)

        return threading.Thread(target=run, name="video-decode", daemon=True)

    def _work(self, board: FrameBoard, queue: Iterator[tuple[Run, ...]], decoder_threads: int) -> None:
        deliver = self._deliverer(board)
        with self._reader(board, decoder_threads) as reader:
            while not board.stopped():
                with self._lock:
                    chunk = next(queue, None)
                if chunk is None:
                    break
                for run in chunk:
                    reader.decode_run(run, deliver)
            self._count_damage(reader)

    def _count(self, board: FrameBoard) -> None:
        with self._reader(board, self._num_threads) as reader:
            reader.decode_counted(tuple(self._positions), self._deliverer(board))
            self._count_damage(reader)

    def _animate(self, board: FrameBoard) -> None:
        deliver = self._deliverer(board)
        latest: VideoFrame | None = None
        ticks = self._plan.info.index.ticks.tolist()
        missing = dict.fromkeys(self._positions)
        for tick, frame in zip(ticks, animation_frames(self._source), strict=False):
            latest = frame
            if tick in missing:
                del missing[tick]
                deliver(tick, frame, lost=False)
            if board.stopped() or not missing:
                return
        for tick in missing:
            deliver(tick, latest, lost=True)

    def _reader(self, board: FrameBoard, decoder_threads: int) -> StreamReader:
        return StreamReader(
            self._source,
            self._plan.info,
            max_pixels=self._max_pixels,
            num_threads=decoder_threads,
            stopped=board.stopped,
        )

    def _deliverer(self, board: FrameBoard) -> _Deliverer:
        convert, _ = self._converter()
        return _Deliverer(self, board, convert)

    def _make_scaler(self) -> tuple[Convert, tuple[int, ...]]:
        height, width = self._plan.size
        return FrameScaler(height, width, self._plan.info.orientation).scale, (3, height, width)

    def _count_damage(self, reader: StreamReader) -> None:
        with self._lock:
            self._num_damaged += reader.num_packets_damaged
            self._num_concealed += reader.num_frames_concealed

    def _count_lost(self, number: int) -> None:
        with self._lock:
            self._num_lost += number


class _Deliverer:
    """Converts frames on the thread that decoded them and puts them on the board."""

    def __init__(self, decoder: VideoDecoder, board: FrameBoard, convert: Convert) -> None:
        self._decoder, self._board, self._convert = decoder, board, convert

    def __call__(self, tick: int, frame: VideoFrame | None, *, lost: bool) -> None:
        positions = self._decoder._positions[tick]
        if lost:
            self._decoder._count_lost(len(positions))
        self._board.put(positions, None if frame is None else self._convert(frame))


def decode_video(
    source: MediaSource,
    plan: FramePlan,
    *,
    num_threads: int | None = None,
    cancel: threading.Event | None = None,
    limits: MediaLimits | None = None,
) -> VideoDecoder:
    """The decode of a plan; see `VideoDecoder`."""
    return VideoDecoder(source, plan, num_threads=num_threads, cancel=cancel, limits=limits)


def _positions(ticks: tuple[int, ...]) -> dict[int, range]:
    """Which sampled frames show the frame of a tick."""
    positions: dict[int, range] = {}
    for position, tick in enumerate(ticks):
        start = positions[tick].start if tick in positions else position
        positions[tick] = range(start, position + 1)
    return positions
