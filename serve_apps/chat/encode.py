"""One media item of any modality to its embeddings.

Knows which path each modality takes, and when an item cannot fit the context however short the question is. Does
not know where decoding runs.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Generator, Iterator
from contextlib import closing
from dataclasses import replace
from typing import Any

from mm_pipeline.audio import AudioSettings, audio_tokens
from mm_pipeline.batcher import BatcherStats, Station
from mm_pipeline.decoding import DecodedPart, MelPart, PlanPart
from mm_pipeline.encoders.batched import BatchedEncoders, Caller
from mm_pipeline.options import MediaOptions
from mm_pipeline.pipeline import EncodedMedia, ImagePipeline, MediaEncoder
from serve_apps.api.errors import ApiError, bad_request
from serve_apps.decoders.base import Decoder


class ItemEncoder:
    """Thread-safe, synchronous. Items of many callers share batches. Close it when done.

    preparing: where pictures are decoded.
    """

    def __init__(
        self,
        images: ImagePipeline,
        media: MediaEncoder,
        audio: AudioSettings,
        encoders: BatchedEncoders,
        *,
        max_preparing: int,
    ) -> None:
        """encoders: over the same encoders as images and media. max_preparing: pictures decoded at once."""
        self._images = images
        self._media = media
        self._audio = audio
        self._encoders = encoders
        self.preparing = Station(max_preparing)

    def key(self, data: bytes, modality: str, options: MediaOptions) -> str:
        """Content key of what `encode` makes of the same arguments; decodes nothing.

        Raises MediaError for options over a limit, ApiError for an unknown modality.
        """
        if modality == "image":
            return self._images.key(data, max_pixels=options.max_pixels)
        if modality not in ("video", "audio"):
            raise bad_request(f"This server encodes image, video and audio, but '{modality}' came.")
        return self._media.key(data, modality, options)

    def settings_key(self, modality: str, options: MediaOptions) -> str:
        """What `key` makes of the modality, the encoder and all settings, and of no item; see `Aliases`."""
        return self.key(b"", modality, options)

    def encode(
        self,
        data: bytes,
        modality: str,
        options: MediaOptions,
        *,
        decoder: Decoder,
        source: Any,
        max_tokens: int,
        caller: Caller,
        key: str,
    ) -> EncodedMedia:
        """The embeddings of `data`. key: what `key` returned for the same arguments.

        decoder: decodes videos and sounds. source: what it is given, the bytes or a reference to them that it
        understands. max_tokens: of the whole context. caller: who shares batches fairly with others; its `cancel`
        ends the decoding as well. Raises MediaError, ApiError for an item that is too long or of an unknown
        modality, CancelledError or DeadlineExceededError for a caller who wants nothing any more, and what a
        cancelled decoder raises.
        """
        caller.check()
        images, sounds = self._encoders.images(caller), self._encoders.sounds(caller)
        if modality == "image":
            with self.preparing.turn():
                caller.check()
                prepared = self._images.prepare(data, max_pixels=options.max_pixels, key=key)
            encoded = self._images.run(prepared, images)
        else:
            decoded = decoder.decode(source, modality, options, caller.cancel or threading.Event())
            with closing(_within_context(decoded, max_tokens, self._audio)) as parts:
                encoded = self._media.encode(parts, key, image_encoder=images, audio_encoder=sounds)
        queue_s = images.queue_s + (0.0 if sounds is None else sounds.queue_s)
        run_s = images.run_s + (0.0 if sounds is None else sounds.run_s)
        timings = encoded.timings | {"queue_ms": 1000 * queue_s, "batch_ms": 1000 * run_s}
        return replace(encoded, timings=timings)

    def probe(self, timeout_s: float) -> None:
        """Sends the smallest picture through the encoder, beside what waits for it.

        Raises DeadlineExceededError when it takes longer, and what the encoder raises.
        """
        deadline = time.monotonic() + timeout_s
        images = self._encoders.images(Caller(owner="probe", deadline=deadline))
        self._images.run(self._images.smallest(), images)

    def stats(self) -> BatcherStats:
        """What waits for the encoders, and what has been done."""
        return self._encoders.stats()

    def close(self) -> None:
        """Items that wait fail; the batch under way ends."""
        self._encoders.close(drain=False)


def _within_context(
    decoded: Iterator[DecodedPart], max_tokens: int, audio: AudioSettings
) -> Generator[DecodedPart, None, None]:
    """The same parts. Raises as soon as they need more tokens than there are."""
    video_tokens = mel_frames = sound_tokens = 0
    try:
        for part in decoded:
            if isinstance(part, PlanPart):
                num_units = -(-len(part.frame_times_s) // part.frames_per_unit)
                video_tokens = num_units * part.tokens_per_unit
            elif isinstance(part, MelPart):
                mel_frames += len(part.mel)
                sound_tokens = audio_tokens(mel_frames, audio)
            if video_tokens + sound_tokens > max_tokens:
                raise _too_long(video_tokens, sound_tokens, max_tokens)
            yield part
    finally:
        # Not left to the garbage collector, which the error's traceback would keep waiting.
        if isinstance(decoded, Generator):
            decoded.close()


def _too_long(video_tokens: int, sound_tokens: int, max_tokens: int) -> ApiError:
    kinds = ((video_tokens, "frames"), (sound_tokens, "sound so far"))
    came = " and ".join(f"{num} tokens of {what}" for num, what in kinds if num)
    return bad_request(
        f"The media item has {came}; the context has {max_tokens} tokens in all. Lower fps, max_frames or "
        "max_pixels, or send a part of it with start_s and end_s.",
        code="context_length_exceeded",
    )
