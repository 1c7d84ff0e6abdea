"""From the media parts of a request to their embeddings: kept ones by their uuid, all others fetched and encoded.

Knows the limit on bytes, and which part an error belongs to. Does not know where embeddings are kept.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Coroutine, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from mm_pipeline.metrics import STAGE_SECONDS, Recorder
from mm_pipeline.options import MediaOptions
from mm_pipeline.recording import record_stages
from mm_pipeline.store.uuid_keys import key_for_uuid
from serve_apps.api.errors import media_not_cached, too_large
from serve_apps.api.schemas import ChatCompletionRequest
from serve_apps.api.validation import media_parts
from serve_apps.chat.base import Backend, EncodedItem, Fetcher, Media
from serve_apps.chat.clock import RequestClock
from serve_apps.chat.errors import to_api_error

_T = TypeVar("_T")


@dataclass(frozen=True, kw_only=True)
class _Part:
    """param: its name in errors. url: None where the client sent no media. uuid_key: None without a uuid."""

    param: str
    modality: str
    url: str | None
    uuid_key: str | None


class MediaLoader:
    """For all requests of one process; runs on its event loop."""

    def __init__(
        self, fetcher: Fetcher, backend: Backend, recorder: Recorder, *, max_bytes: int, max_fetches: int
    ) -> None:
        """max_bytes: of all media of a request together. max_fetches: downloads at once, over all requests."""
        self._fetcher = fetcher
        self._backend = backend
        self._recorder = recorder
        self._max_bytes = max_bytes
        self._fetch_slots = asyncio.Semaphore(max_fetches)

    async def load(
        self,
        request: ChatCompletionRequest,
        *,
        api_key: str | None,
        owner: str,
        deadline: float,
        clock: RequestClock,
    ) -> list[EncodedItem]:
        """The encoded media in order of appearance; its stages end on the clock.

        api_key: whose uuids the request names. owner, deadline: see `Backend.encode`. Media that are kept under
        their uuid are neither fetched nor decoded: the client's word that they are the same is taken. Raises
        ApiError.
        """
        parts = [
            _Part(
                param=param,
                modality=part.modality,
                url=part.url,
                uuid_key=None if part.uuid is None else key_for_uuid(api_key, part.uuid),
            )
            for param, part in media_parts(request)
        ]
        options = request.media_options
        kept: Sequence[EncodedItem | None] = [None] * len(parts)
        if any(part.uuid_key for part in parts):
            kept = await self._find_all(parts, options)
            clock.lap("uuid_ms")
        media = await self._fetch_all(parts, kept)
        clock.lap("fetch_ms")
        encoded = await self._encode_all(parts, kept, media, options, owner, deadline)
        clock.lap("encode_ms")
        return encoded

    async def _find_all(self, parts: Sequence[_Part], options: MediaOptions) -> list[EncodedItem | None]:
        async def find(part: _Part) -> EncodedItem | None:
            if part.uuid_key is None:
                return None
            try:
                return await self._backend.find(part.uuid_key, part.modality, options)
            except Exception as error:
                raise to_api_error(error, param=part.param) from error

        found = await _all_or_none([find(part) for part in parts])
        missing = [
            part.param for part, item in zip(parts, found, strict=True) if item is None and part.url is None
        ]
        if missing:
            raise media_not_cached(missing)
        return found

    async def _fetch_all(
        self, parts: Sequence[_Part], kept: Sequence[EncodedItem | None]
    ) -> list[Media | None]:
        total = 0

        async def fetch(part: _Part, item: EncodedItem | None) -> Media | None:
            nonlocal total
            if item is not None:
                return None
            assert part.url is not None, "a part without media is kept, or was refused"
            try:
                async with self._fetch_slots:
                    started = time.perf_counter()
                    media = await self._fetcher.fetch(part.url, modality=part.modality)
                    seconds = time.perf_counter() - started
            except Exception as error:
                raise to_api_error(error, param=part.param) from error
            self._recorder.observe(STAGE_SECONDS, seconds, modality=part.modality, stage="fetch")
            total += len(media.data)
            if total > self._max_bytes:
                raise too_large(
                    f"The media of this request have more than {self._max_bytes} bytes "
                    "together, which is the limit. Send fewer or smaller ones.",
                    part.param,
                )
            return media

        return await _all_or_none([fetch(part, item) for part, item in zip(parts, kept, strict=True)])

    async def _encode_all(
        self,
        parts: Sequence[_Part],
        kept: Sequence[EncodedItem | None],
        media: Sequence[Media | None],
        options: MediaOptions,
        owner: str,
        deadline: float,
    ) -> list[EncodedItem]:
        async def encode(part: _Part, item: EncodedItem | None, fetched: Media | None) -> EncodedItem:
            if item is None:
                assert fetched is not None, "what is not kept was fetched"
                try:
                    item = await self._backend.encode(
                        fetched.data,
                        part.modality,
                        options,
                        owner=owner,
                        uuid_key=part.uuid_key,
                        deadline=deadline,
                    )
                except Exception as error:
                    raise to_api_error(error, param=part.param) from error
            record_stages(self._recorder, part.modality, item.timings)
            return item

        return await _all_or_none([encode(*each) for each in zip(parts, kept, media, strict=True)])


async def _all_or_none(jobs: Sequence[Coroutine[Any, Any, _T]]) -> list[_T]:
    """Run all jobs at once; the first to fail cancels the others, and its error is raised."""
    tasks = [asyncio.create_task(job) for job in jobs]
    try:
        return await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
