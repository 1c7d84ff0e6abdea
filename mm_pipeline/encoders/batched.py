"""Pictures, videos and sounds of many requests through the encoders in common batches.

Cuts what is larger than a batch, waits for the results and puts them in order. Knows encoders and the batcher;
nothing of bytes, caches or Ray.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import CancelledError, wait
from dataclasses import dataclass, replace
from types import TracebackType
from typing import Any

import torch

from mm_pipeline.batcher import Batcher, BatcherStats, BatchReport, Work, WorkFuture
from mm_pipeline.batcher.ledger import expired
from mm_pipeline.encoders.audio_encoder import EncodedSegment, SegmentedAudioEncoder
from mm_pipeline.encoders.base import Encoder
from mm_pipeline.encoders.image_encoder import MAX_PATCHES
from mm_pipeline.encoders.staging import Staging
from mm_pipeline.errors import DeadlineExceededError
from mm_pipeline.image import ImageInput

IMAGE = "image"
AUDIO = "audio"
# Of one sound: enough to keep batches coming while it decodes, too few to fill the queue.
_SEGMENTS_AHEAD = 2


@dataclass(frozen=True, kw_only=True)
class BatchSettings:
    """max_patches, max_mel_frames: one batch at most; more in one picture or segment goes alone. max_items,
    max_bytes: what may wait for the encoders.
    """

    max_patches: int = MAX_PATCHES
    max_mel_frames: int = 24_000
    max_items: int = 512
    max_bytes: int = 2 << 30


@dataclass(frozen=True, kw_only=True)
class Caller:
    """For whom work is done. owner, deadline, cancel: as of `Work`."""

    owner: str
    deadline: float | None = None
    cancel: threading.Event | None = None

    def check(self) -> None:
        """Raises CancelledError or DeadlineExceededError where the caller wants nothing any more."""
        if self.cancel is not None and self.cancel.is_set():
            raise CancelledError
        if self.deadline is not None and time.monotonic() >= self.deadline:
            raise expired()


class BatchedEncoders:
    """Thread-safe. Close it, or use it in a with statement."""

    def __init__(
        self,
        image: Encoder,
        audio: SegmentedAudioEncoder | None,
        *,
        settings: BatchSettings | None = None,
        staging: Staging | None = None,
        on_batch: Callable[[BatchReport], None] | None = None,
    ) -> None:
        """audio: None for a model that does not hear. staging: brings the next batch to the encoders' device while
        they run the one before; see `staging_for`. on_batch: see `Batcher`; kinds are "image", whose cost is
        patches, and "audio", whose cost is mel frames.
        """
        self._image = image
        self._audio = audio
        self._settings = settings or BatchSettings()
        self._staging = staging
        self._batcher = Batcher(
            self._run,
            budgets={IMAGE: self._settings.max_patches, AUDIO: self._settings.max_mel_frames},
            max_items=self._settings.max_items,
            max_bytes=self._settings.max_bytes,
            # On a CPU there is nothing to bring, and a batch that is chosen later may be larger.
            prepare=None if staging is None else self._stage,
            name="encoder",
            on_batch=on_batch,
        )

    def images(self, caller: Caller) -> BatchedImages:
        """An encoder of pictures and frames for one request."""
        return BatchedImages(self._image, self._batcher, self._settings.max_patches, caller)

    def sounds(self, caller: Caller) -> BatchedSounds | None:
        """An encoder of sounds for one request; None for a model that does not hear."""
        if self._audio is None:
            return None
        return BatchedSounds(self._audio, self._batcher, self._settings.max_mel_frames, caller)

    def stats(self) -> BatcherStats:
        """See `Batcher.stats`."""
        return self._batcher.stats()

    def close(self, *, drain: bool = True) -> None:
        """See `Batcher.close`."""
        self._batcher.close(drain=drain)

    def __enter__(self) -> BatchedEncoders:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close(drain=error is None)

    def _stage(self, kind: str, payloads: list[Any]) -> list[Any]:
        assert self._staging is not None
        if kind == AUDIO:
            return self._staging.copy(payloads)
        copied = self._staging.copy([item.patches for item in payloads])
        return [replace(item, patches=patches) for item, patches in zip(payloads, copied, strict=True)]

    def _run(self, kind: str, payloads: list[Any]) -> Sequence[Any]:
        try:
            if kind == IMAGE:
                return self._image.encode(payloads)
            assert self._audio is not None
            return self._audio.encode_segments(payloads)
        finally:
            # Only then is the device free, and the batch's memory there may be used again.
            if self._staging is not None:
                self._staging.finish()


class _Pieces:
    """One request's pieces under way, and how long they waited. Not thread-safe."""

    def __init__(self, batcher: Batcher, caller: Caller) -> None:
        self._batcher = batcher
        self._caller = caller
        self._was_accepted = False
        self.queue_s = 0.0
        self.run_s = 0.0

    def submit(self, kind: str, payload: Any, cost: int, tensor: torch.Tensor) -> WorkFuture:
        """A request that has begun waits for room, whatever it has done would else be lost."""
        future = self._batcher.submit(
            Work(
                kind=kind,
                cost=cost,
                num_bytes=tensor.nbytes,
                payload=payload,
                owner=self._caller.owner,
                deadline=self._caller.deadline,
                cancel=self._caller.cancel,
            ),
            wait=self._was_accepted,
        )
        self._was_accepted = True
        return future

    def result(self, future: WorkFuture) -> Any:
        """Waits up to the deadline, however long the batch before takes."""
        deadline = self._caller.deadline
        wait([future], None if deadline is None else max(0.0, deadline - time.monotonic()))
        if not future.done():
            future.cancel()
            raise DeadlineExceededError(
                "The request's time ran out while it was encoded. Send it again later."
            )
        self.queue_s += future.queue_s
        self.run_s += future.run_s
        return future.result()


class _Batched:
    """An encoder for one request. Not thread-safe."""

    def __init__(self, encoder: Encoder | SegmentedAudioEncoder, batcher: Batcher, caller: Caller) -> None:
        self._pieces = _Pieces(batcher, caller)
        self.identity = encoder.identity
        self.hidden_size = encoder.hidden_size

    @property
    def queue_s(self) -> float:
        """Seconds that its pieces have waited, summed over them."""
        return self._pieces.queue_s

    @property
    def run_s(self) -> float:
        """Seconds that their batches have run, summed over pieces."""
        return self._pieces.run_s


class BatchedImages(_Batched):
    """An `Encoder` for one request. Not thread-safe."""

    def __init__(self, image: Encoder, batcher: Batcher, max_patches: int, caller: Caller) -> None:
        super().__init__(image, batcher, caller)
        self._max_patches = max_patches

    def encode(self, items: Sequence[ImageInput]) -> list[torch.Tensor]:
        """See `Encoder.encode`. A video goes in pieces of whole frame groups where it is larger than a batch.

        Raises what `Batcher.submit` and its futures raise.
        """
        pieces = [cut_by_frames(item, self._max_patches) for item in items]
        futures: list[WorkFuture] = []
        try:
            for item in (piece for cut in pieces for piece in cut):
                cost = min(len(item.patches), self._max_patches)
                futures.append(self._pieces.submit(IMAGE, item, cost, item.patches))
            rows = [self._pieces.result(future) for future in futures]
        finally:
            for future in futures:
                future.cancel()
        encoded: list[torch.Tensor] = []
        for cut in pieces:
            own, rows = rows[: len(cut)], rows[len(cut) :]
            encoded.append(own[0] if len(own) == 1 else torch.cat(own))
        return encoded


def cut_by_frames(item: ImageInput, max_patches: int) -> list[ImageInput]:
    """Pieces of whole frame groups of at most `max_patches` patches; a single group over it stays whole."""
    groups, height, width = item.grid_thw
    step = max(1, max_patches // (height * width))
    if groups <= step:
        return [item]
    tokens = item.num_tokens // groups
    return [
        replace(
            item,
            patches=patches,
            grid_thw=(len(patches) // (height * width), height, width),
            num_tokens=count,
        )
        for patches in item.patches.split(step * height * width)
        for count in [tokens * (len(patches) // (height * width))]
    ]


class BatchedSounds(_Batched):
    """Like `SegmentedAudioEncoder`, for one request. Not thread-safe."""

    def __init__(
        self, audio: SegmentedAudioEncoder, batcher: Batcher, max_mel_frames: int, caller: Caller
    ) -> None:
        super().__init__(audio, batcher, caller)
        self._audio = audio
        self._max_mel_frames = max_mel_frames

    def encode(self, items: Sequence[Iterable[torch.Tensor]]) -> list[torch.Tensor]:
        """See `SegmentedAudioEncoder.encode`."""
        encoded = []
        for segments in items:
            stream = self.stream()
            for mel in segments:
                stream.add(mel)
            encoded.append(stream.finish())
        return encoded

    def stream(self) -> BatchedStream:
        """For one sound whose segments come over time."""
        return BatchedStream(self._audio, self._pieces, self._max_mel_frames)


class BatchedStream:
    """One sound on its way in, as `EmbeddingStream`; a few segments are under way at a time."""

    def __init__(self, audio: SegmentedAudioEncoder, pieces: _Pieces, max_mel_frames: int) -> None:
        self._audio = audio
        self._pieces = pieces
        self._max_mel_frames = max_mel_frames
        self._under_way: deque[WorkFuture] = deque()
        self._segments: list[EncodedSegment] = []

    def add(self, mel: torch.Tensor) -> None:
        """The next segment, float32 [frames, mels]. Raises ValueError as `SegmentedAudioEncoder.encode`, and what
        `Batcher.submit` and its futures raise.
        """
        if len(self._under_way) == _SEGMENTS_AHEAD:
            self._take_one()
        cost = min(max(1, len(mel)), self._max_mel_frames)
        self._under_way.append(self._pieces.submit(AUDIO, mel, cost, mel))

    def finish(self) -> torch.Tensor:
        """[num_tokens, hidden_size]. Raises ValueError without segments, and as `add`."""
        while self._under_way:
            self._take_one()
        embeddings = self._audio.join(self._segments)
        self._segments = []
        return embeddings

    def _take_one(self) -> None:
        try:
            self._segments.append(self._pieces.result(self._under_way.popleft()))
        except BaseException:
            for future in self._under_way:
                future.cancel()
            raise
