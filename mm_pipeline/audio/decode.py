"""Any file's sound as one mono waveform at the rate asked for, block by block. Knows no mel and no model."""

from __future__ import annotations

import math
import os
import threading
from collections import deque
from collections.abc import Generator, Iterable, Iterator
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass
from fractions import Fraction
from typing import NoReturn

import numpy as np
from av.container import InputContainer

from mm_pipeline.audio.chunks import ChunkDecoder, DecodedChunk
from mm_pipeline.audio.packets import PacketReader, pre_roll_packets
from mm_pipeline.audio.probe import AudioInfo, NoSoundError, describe, find_track
from mm_pipeline.audio.resample import Resampler
from mm_pipeline.audio.timeline import Clock, Timeline
from mm_pipeline.container import MediaSource, open_container
from mm_pipeline.errors import InvalidMediaError, MediaTooLargeError

_MAX_THREADS = 8
# Sound that is decoded before the wanted part although nobody hears it: the resampler's reach and more.
_LEAD_IN_S = 1.0


@dataclass(frozen=True, kw_only=True)
class AudioReport:
    """What was wrong with a sound. damaged_packets: they did not decode. read_errors: places where the file could
    not be read on. filled_s: silence put where the timestamps leave gaps. dropped_s: sound dropped because its
    timestamps overlap what came before.
    """

    damaged_packets: int = 0
    read_errors: int = 0
    filled_s: float = 0.0
    dropped_s: float = 0.0

    @property
    def notes(self) -> tuple[str, ...]:
        """The same in words, for people; empty for a whole file."""
        notes = []
        if self.damaged_packets:
            notes.append(f"{self.damaged_packets} damaged audio packets became silence")
        if self.read_errors:
            notes.append(f"the audio track could not be read in {self.read_errors} places")
        if self.filled_s >= 0.001:
            notes.append(f"{self.filled_s:.3f} s of silence fill gaps in the audio track")
        if self.dropped_s >= 0.001:
            notes.append(f"{self.dropped_s:.3f} s of audio outside the timeline were dropped")
        return tuple(notes)


class AudioStream(Iterator[np.ndarray]):
    """Iterates over float32 [n] blocks, n > 0, in order. `report` is complete after the last one.

    Close it, or use it in a with statement, when it is not read to its end: that stops its threads.
    """

    def __init__(
        self,
        source: MediaSource,
        *,
        sample_rate: int,
        start_s: float,
        end_s: float,
        max_duration_s: float,
        origin_s: float | None,
        num_threads: int,
        cancel: threading.Event | None,
    ) -> None:
        self._sample_rate = sample_rate
        self._origin_s = origin_s
        self._num_threads = num_threads
        self._cancel = cancel
        self._first, self._end = round(start_s * sample_rate), _index(end_s, sample_rate)
        self._start_s, self._end_s = start_s, end_s
        self._max_duration_s = max_duration_s
        self._damaged_packets = 0
        self._read_errors = 0
        self._timeline = Timeline(Clock())
        self._blocks = self._run(source)

    def __next__(self) -> np.ndarray:
        return next(self._blocks)

    def __enter__(self) -> AudioStream:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Ends the decoding and closes the file. Calling it again does nothing."""
        self._blocks.close()

    @property
    def report(self) -> AudioReport:
        return AudioReport(
            damaged_packets=self._damaged_packets,
            read_errors=self._read_errors,
            filled_s=self._timeline.filled_s,
            dropped_s=self._timeline.dropped_s,
        )

    def _run(self, source: MediaSource) -> Generator[np.ndarray, None, None]:
        num_samples = 0
        with open_container(source) as container, closing(self._decode(container)) as chunks:
            for block in self._trim(self._resample(self._place(chunks))):
                num_samples += block.shape[0]
                if num_samples > self._max_duration_s * self._sample_rate:
                    self._raise_too_long()
                yield block
        if not num_samples:
            self._raise_empty()

    def _raise_too_long(self) -> NoReturn:
        raise MediaTooLargeError(
            f"the sound is longer than {self._max_duration_s:g} s, the most this server takes; send a shorter "
            "one, or a part of it with start_s and end_s"
        )

    def _raise_empty(self) -> NoReturn:
        found_s = float(self._timeline.position)
        if found_s and self._start_s:
            raise InvalidMediaError(
                f"start_s is {self._start_s:g}, but the sound is {found_s:.3f} s long; choose an earlier start",
                param="start_s",
            )
        raise NoSoundError("the file has an audio track without any sound in it; send a file with sound")

    def _place(self, chunks: Iterable[DecodedChunk | None]) -> Iterator[tuple[int, np.ndarray]]:
        """Decoded samples on the timeline, with their rate."""
        for chunk in chunks:
            if chunk is None:
                self._timeline.expect_gap()
                continue
            self._damaged_packets += chunk.num_damaged
            for piece in chunk.pieces:
                yield from self._timeline.add(piece)
        yield from self._timeline.finish()

    def _decode(self, container: InputContainer) -> Generator[DecodedChunk | None, None, None]:
        """The chunks of the file; None stands for those before the wanted part."""
        track = find_track(container)
        info = describe(container, track)
        if info.duration_s is not None:
            wanted_s = min(info.duration_s, self._end_s) - self._start_s
            if wanted_s > self._max_duration_s:
                self._raise_too_long()
        clock = _clock(container, info, self._origin_s)
        self._timeline = Timeline(clock)
        pre_roll = pre_roll_packets(track.codec_context.codec.name, track.codec_context.profile)
        reader = PacketReader(container, track, pre_roll)
        stop = threading.Event()
        decoder = ChunkDecoder(
            track, fresh=pre_roll is not None, trims_end=info.container.startswith("mov"), stop=stop
        )
        begin_s = -math.inf
        if pre_roll is not None and not clock.may_restart:
            begin_s = (
                self._start_s - _LEAD_IN_S + (info.start_s if clock.origin_s is None else clock.origin_s)
            )
        num_workers = 1 if pre_roll is None else self._num_threads
        pool = ThreadPoolExecutor(num_workers, thread_name_prefix="audio-decode")
        under_way: deque[Future[DecodedChunk]] = deque()
        skipped = False
        try:
            for chunk in reader:
                # The first one is always decoded: it says where the track begins.
                if not chunk.is_first and chunk.end_s is not None and chunk.end_s < begin_s:
                    if self._cancel is not None and self._cancel.is_set():
                        raise CancelledError
                    skipped = True
                    continue
                if skipped:
                    while under_way:
                        yield self._wait(under_way.popleft())
                    yield None
                    skipped = False
                under_way.append(pool.submit(decoder, chunk))
                if len(under_way) > num_workers:
                    yield self._wait(under_way.popleft())
            while under_way:
                yield self._wait(under_way.popleft())
        finally:
            stop.set()
            pool.shutdown(wait=True, cancel_futures=True)
            self._read_errors = reader.num_errors

    def _wait(self, future: Future[DecodedChunk]) -> DecodedChunk:
        while self._cancel is not None:
            if self._cancel.is_set():
                raise CancelledError
            try:
                return future.result(timeout=0.05)
            except TimeoutError:
                continue
        return future.result()

    def _resample(self, placed: Iterator[tuple[int, np.ndarray]]) -> Iterator[np.ndarray]:
        """One resampler for each run of one rate. A run begins where the one before it ended, in time."""
        resampler: Resampler | None = None
        rate, num_out, elapsed = 0, 0, Fraction(0)
        for piece_rate, samples in placed:
            if resampler is None or piece_rate != rate:
                if resampler is not None:
                    # A run's last sample may lie past its end in time, by less than a sample.
                    rest = resampler.flush()[: math.ceil(elapsed * self._sample_rate) - num_out]
                    num_out += rest.shape[0]
                    yield rest
                resampler, rate = Resampler(piece_rate, self._sample_rate), piece_rate
            made = resampler.push(samples)
            elapsed += Fraction(samples.shape[0], rate)
            num_out += made.shape[0]
            yield made
        if resampler is not None:
            yield resampler.flush()[: math.ceil(elapsed * self._sample_rate) - num_out]

    def _trim(self, blocks: Iterator[np.ndarray]) -> Iterator[np.ndarray]:
        """Samples [first, end) of the whole."""
        position = 0
        for block in blocks:
            begin, stop = self._first - position, self._end - position
            position += block.shape[0]
            part = block[max(0, begin) : max(0, min(stop, block.shape[0]))]
            if part.shape[0]:
                yield part
            if position >= self._end:
                return


def decode_audio(
    source: MediaSource,
    *,
    sample_rate: int,
    start_s: float | None = None,
    end_s: float | None = None,
    max_duration_s: float = math.inf,
    origin_s: float | None = None,
    num_threads: int | None = None,
    cancel: threading.Event | None = None,
) -> AudioStream:
    """The file's sound as mono float32 blocks at `sample_rate` Hz, loudness -1..1.

    Time 0 is where the file's pictures begin, or its sound where there are none; origin_s overrides it (seconds
    on the file's clock). What lies before is dropped, a later beginning is silence. start_s, end_s: the part
    wanted, from time 0. num_threads: decoders at once, the machine's cores (8 at most) by default; the samples
    do not depend on it. cancel: once set, the iteration raises CancelledError.

    While iterating: UnsupportedMediaError for files that cannot be read, NoSoundError for files without sound,
    MediaTooLargeError for more than `max_duration_s` of wanted sound, InvalidMediaError for a start after the end.
    """
    threads = min(_MAX_THREADS, len(os.sched_getaffinity(0))) if num_threads is None else num_threads
    if threads < 1:
        raise ValueError(f"num_threads is {num_threads}; it must be at least 1")
    return AudioStream(
        source,
        sample_rate=sample_rate,
        start_s=start_s or 0.0,
        end_s=math.inf if end_s is None else end_s,
        max_duration_s=max_duration_s,
        origin_s=origin_s,
        num_threads=threads,
        cancel=cancel,
    )


def _clock(container: InputContainer, info: AudioInfo, origin_s: float | None) -> Clock:
    if origin_s is None:
        origin_s = info.video_start_s
    end_s = None
    if container.duration is not None and container.duration > 0:
        end_s = (container.start_time or 0) / 1e6 + container.duration / 1e6
    return Clock(origin_s=origin_s, end_s=end_s, may_restart=info.container == "mpegts")


def _index(seconds: float, sample_rate: int) -> int | float:
    return seconds if math.isinf(seconds) else round(seconds * sample_rate)
