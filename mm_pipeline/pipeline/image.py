"""One image from bytes to embeddings, synchronous and thread-safe.

Ties decoding, preprocessing, keys and an encoder together.
"""

from __future__ import annotations

import time
from dataclasses import dataclass

import torch

from mm_pipeline.content_key import content_key
from mm_pipeline.encoders import Encoder
from mm_pipeline.image import ImageInput, ImageSettings, preprocess_image
from mm_pipeline.limits import MediaLimits
from mm_pipeline.pipeline.media import EncodedMedia


@dataclass(frozen=True, kw_only=True)
class PreparedImage:
    """An image ready for the encoder, and what it took to get there."""

    image: ImageInput
    content_key: str
    timings: dict[str, float]


class ImagePipeline:
    """Still images through one encoder under one server's settings and limits."""

    modality = "image"

    def __init__(self, encoder: Encoder, settings: ImageSettings, limits: MediaLimits) -> None:
        self._encoder = encoder
        self._settings = settings
        self._limits = limits

    def key(self, data: bytes, *, max_pixels: int | None = None) -> str:
        """Content key of the embeddings `encode` makes of the same arguments; decodes nothing."""
        settings = self._request_settings(max_pixels)
        return content_key(self.modality, self._encoder.identity, settings.key_settings(), data)

    def prepare(self, data: bytes, *, max_pixels: int | None = None, key: str | None = None) -> PreparedImage:
        """Everything before the encoder. max_pixels: a request's smaller area. key: what `key` returned for the
        same arguments, where the caller has it already. Raises MediaError subclasses.
        """
        settings = self._request_settings(max_pixels)
        started = time.perf_counter()
        if key is None:
            key = self.key(data, max_pixels=max_pixels)
        keyed = time.perf_counter()
        image = preprocess_image(data, settings, self._limits)
        preprocessed = time.perf_counter()
        return PreparedImage(
            image=image,
            content_key=key,
            timings={"key_ms": 1000 * (keyed - started), "preprocess_ms": 1000 * (preprocessed - keyed)},
        )

    def smallest(self) -> PreparedImage:
        """A grey picture of one token."""
        side = self._settings.merge_size
        image = ImageInput(
            patches=torch.zeros(side * side, self._settings.patch_values),
            grid_thw=(1, side, side),
            num_tokens=1,
        )
        return PreparedImage(image=image, content_key="", timings={})

    def run(self, prepared: PreparedImage, encoder: Encoder | None = None) -> EncodedMedia:
        """encoder: runs instead of the pipeline's own, which it must be equal to, such as one that batches for this
        request. Raises what the encoder raises.
        """
        started = time.perf_counter()
        (embeddings,) = (encoder or self._encoder).encode([prepared.image])
        return EncodedMedia(
            embeddings=embeddings,
            num_tokens=prepared.image.num_tokens,
            modality=self.modality,
            content_key=prepared.content_key,
            timings={**prepared.timings, "encode_ms": 1000 * (time.perf_counter() - started)},
        )

    def encode(self, data: bytes, *, max_pixels: int | None = None) -> EncodedMedia:
        """Both in one. Raises as they do."""
        return self.run(self.prepare(data, max_pixels=max_pixels))

    def _request_settings(self, max_pixels: int | None) -> ImageSettings:
        return self._settings if max_pixels is None else self._settings.lowered(max_pixels)
