"""One media item of any modality to its embeddings.

Knows which path each modality takes, and when an item cannot fit the context however short the question is. Does
not know where decoding runs.
"""

from __future__ import annotations

import threading
from collections.abc import Generator, Iterator
from contextlib import closing
from typing import Any

from mm_pipeline.audio import AudioSettings, audio_tokens
from mm_pipeline.decoding import DecodedPart, MelPart, PlanPart
from mm_pipeline.options import MediaOptions
from mm_pipeline.pipeline import EncodedMedia, ImagePipeline, MediaEncoder
from serve_apps.api.errors import ApiError, bad_request
from serve_apps.decoders.base import Decoder


class ItemEncoder:
    """Thread-safe, synchronous."""

    def __init__(self, images: ImagePipeline, media: MediaEncoder, audio: AudioSettings) -> None:
        self._images = images
        self._media = media
        self._audio = audio

    def encode(
        self,
        data: bytes,
        modality: str,
        options: MediaOptions,
        *,
        decoder: Decoder,
        source: Any,
        max_tokens: int,
        cancel: threading.Event,
    ) -> EncodedMedia:
        """The embeddings of `data`.

        decoder: decodes videos and sounds. source: what it is given, the bytes or a reference to them that it
        understands. max_tokens: of the whole context. cancel: ends the decoding when set.
        Raises MediaError, ApiError for an item that is too long or of an unknown modality, and what a cancelled
        decoder raises.
        """
        if modality == "image":
            return self._images.encode(data, max_pixels=options.max_pixels)
        if modality not in ("video", "audio"):
            raise bad_request(f"This server encodes image, video and audio, but '{modality}' came.")
        key = self._media.key(data, modality, options)
        decoded = decoder.decode(source, modality, options, cancel)
        with closing(_within_context(decoded, max_tokens, self._audio)) as parts:
            return self._media.encode(parts, key)


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
