"""The chat service's backend inside one process: no Ray, no object store."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncGenerator, Sequence
from dataclasses import replace
from pathlib import Path

from llm_core.core import GenerateRequest, OutputDelta
from llm_core.engine import Engine, EngineSettings, EngineStats
from mm_pipeline.decoding import MediaDecoder
from mm_pipeline.encoders.batched import Caller
from mm_pipeline.limits import MediaLimits
from mm_pipeline.options import MediaOptions
from mm_pipeline.pipeline import EncodedMedia
from mm_pipeline.store import Aliases, EmbeddingStore, Flights
from mm_pipeline.store.media import media_of
from serve_apps.chat.base import EncodedItem, ModelInfo, take_rows
from serve_apps.chat.create import create_item_encoder, decoding_config
from serve_apps.chat.delta_batches import delta_batches
from serve_apps.chat.encode import ItemEncoder
from serve_apps.decoders.base import Decoder


class LocalBackend:
    """Encoder, decoder and store in this process. `close` ends the engine's thread, and the store."""

    def __init__(self, encoder: ItemEncoder, decoder: Decoder, engine: Engine, store: EmbeddingStore) -> None:
        self._encoder = encoder
        self._decoder = decoder
        self._engine = engine
        self._store = store
        self._flights: Flights[EncodedMedia] = Flights()
        self._aliases = Aliases()

    @classmethod
    def from_checkpoint(
        cls, folder: Path, *, engine: EngineSettings, media: MediaLimits, store: EmbeddingStore
    ) -> LocalBackend:
        """Loads encoder and decoder and starts the engine. store: keeps what was encoded. Raises ValueError for a
        bad checkpoint."""
        encoder = create_item_encoder(folder, limits=media, device=engine.device)
        decoder = MediaDecoder(decoding_config(folder), media)
        backend = cls(encoder, decoder, Engine.from_checkpoint(folder, engine), store)
        backend._engine.start()
        return backend

    async def find(self, uuid_key: str, modality: str, options: MediaOptions) -> EncodedItem | None:
        """See `Backend.find`."""
        key = self._aliases.get(uuid_key, self._encoder.settings_key(modality, options))
        found = None if key is None else await asyncio.to_thread(self._find, key)
        return None if found is None else _item(found)

    async def encode(
        self,
        data: bytes,
        modality: str,
        options: MediaOptions,
        *,
        owner: str,
        uuid_key: str | None = None,
        deadline: float | None = None,
    ) -> EncodedItem:
        """See `Backend.encode`. Calls for the same item share one computation."""
        key = await asyncio.to_thread(self._encoder.key, data, modality, options)
        own: EncodedMedia | None = None

        async def find_or_encode() -> EncodedMedia:
            nonlocal own
            own = await asyncio.to_thread(self._find, key)
            if own is None:
                own = await self._encode(data, modality, options, owner, deadline, key)
            return own

        started = time.perf_counter()
        found = await self._flights.run_async(key, find_or_encode)
        if found is not own:
            # Another call's work: this one has only waited for it.
            found = replace(found, timings={"cache_ms": 1000 * (time.perf_counter() - started)})
        if uuid_key is not None:
            self._aliases.set(uuid_key, self._encoder.settings_key(modality, options), key)
        return _item(found)

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
        """End the engine, the encoder and the store."""
        self._engine.shutdown()
        self._encoder.close()
        self._store.close()

    def _find(self, key: str) -> EncodedMedia | None:
        started = time.perf_counter()
        lease = self._store.get(key)
        if lease is None:
            return None
        with lease:
            return replace(media_of(lease), timings={"cache_ms": 1000 * (time.perf_counter() - started)})

    async def _encode(
        self,
        data: bytes,
        modality: str,
        options: MediaOptions,
        owner: str,
        deadline: float | None,
        key: str,
    ) -> EncodedMedia:
        cancel = threading.Event()
        try:
            encoded = await asyncio.to_thread(
                self._encoder.encode,
                data,
                modality,
                options,
                decoder=self._decoder,
                source=data,
                max_tokens=self._engine.max_context,
                caller=Caller(owner=owner, deadline=deadline, cancel=cancel),
                key=key,
            )
            # What is stored is what every later request gets, so the first one gets it too.
            with await asyncio.to_thread(self._store.put, key, encoded) as lease:
                return replace(encoded, embeddings=lease.embeddings)
        finally:
            cancel.set()


def _item(media: EncodedMedia) -> EncodedItem:
    return EncodedItem(
        embeddings=media.embeddings,
        num_tokens=media.num_tokens,
        modality=media.modality,
        content_key=media.content_key,
        timings=media.timings,
        layout=media.layout,
        notes=media.notes,
    )
