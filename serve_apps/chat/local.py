"""The chat service's backend inside one process: no Ray, no object store."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncGenerator, Sequence
from dataclasses import replace
from pathlib import Path

from llm_core.core import GenerateRequest, OutputDelta
from llm_core.engine import Engine, EngineSettings, EngineStats
from mm_pipeline.decoding import MediaDecoder
from mm_pipeline.encoders.batched import Caller
from mm_pipeline.limits import MediaLimits
from mm_pipeline.options import MediaOptions
from serve_apps.chat.base import EncodedItem, ModelInfo, take_rows
from serve_apps.chat.create import create_item_encoder, decoding_config
from serve_apps.chat.delta_batches import delta_batches
from serve_apps.chat.encode import ItemEncoder
from serve_apps.decoders.base import Decoder


class LocalBackend:
    """Encoder and decoder in this process. `close` ends the engine's thread."""

    def __init__(self, encoder: ItemEncoder, decoder: Decoder, engine: Engine) -> None:
        self._encoder = encoder
        self._decoder = decoder
        self._engine = engine

    @classmethod
    def from_checkpoint(cls, folder: Path, *, engine: EngineSettings, media: MediaLimits) -> LocalBackend:
        """Loads encoder and decoder and starts the engine. Raises ValueError for a bad checkpoint."""
        encoder = create_item_encoder(folder, limits=media, device=engine.device)
        decoder = MediaDecoder(decoding_config(folder), media)
        backend = cls(encoder, decoder, Engine.from_checkpoint(folder, engine))
        backend._engine.start()
        return backend

    async def encode(self, data: bytes, modality: str, options: MediaOptions, *, owner: str) -> EncodedItem:
        """See `Backend.encode`."""
        cancel = threading.Event()
        try:
            key = await asyncio.to_thread(self._encoder.key, data, modality, options)
            encoded = await asyncio.to_thread(
                self._encoder.encode,
                data,
                modality,
                options,
                decoder=self._decoder,
                source=data,
                max_tokens=self._engine.max_context,
                caller=Caller(owner=owner, cancel=cancel),
                key=key,
            )
        finally:
            cancel.set()
        return EncodedItem(
            embeddings=encoded.embeddings,
            num_tokens=encoded.num_tokens,
            modality=encoded.modality,
            content_key=encoded.content_key,
            timings=encoded.timings,
            layout=encoded.layout,
            notes=encoded.notes,
        )

    def generate(self, request: GenerateRequest) -> AsyncGenerator[Sequence[OutputDelta], None]:
        """See `Backend.generate`."""
        spans = [replace(span, embeddings=take_rows(span.embeddings)) for span in request.spans]
        return delta_batches(self._engine, replace(request, spans=tuple(spans)))

    async def model_info(self) -> ModelInfo:
        """See `Backend.model_info`."""
        return ModelInfo(max_context=self._engine.max_context)

    def stats(self) -> EngineStats:
        """The engine's numbers."""
        return self._engine.stats()

    def close(self) -> None:
        """End the engine and the encoder."""
        self._engine.shutdown()
        self._encoder.close()
