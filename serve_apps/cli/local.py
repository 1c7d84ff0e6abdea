"""The chat service in this process, as the chunks a server would send."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Iterator
from contextlib import aclosing
from pathlib import Path
from typing import Any

from mm_pipeline.store import create_store
from serve_apps.api.errors import ApiError
from serve_apps.api.responses import AnswerHeader, ChunkBuilder
from serve_apps.api.validation import check_chat_request
from serve_apps.chat.create import create_chat_service, create_fetcher
from serve_apps.chat.local import LocalBackend
from serve_apps.cli import CliError
from serve_apps.settings import ServerSettings


def local_chunks(checkpoint: Path, body: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Chunks of the answer. Raises CliError for a bad checkpoint or request."""
    try:
        settings = ServerSettings(checkpoint=checkpoint).resolved()
        backend = LocalBackend.from_checkpoint(
            settings.checkpoint,
            engine=settings.engine,
            media=settings.media,
            store=create_store(
                settings.embedding_store_bytes, settings.disk_store, settings.disk_store_bytes
            ),
        )
    except ValueError as error:
        raise CliError(str(error)) from error
    try:
        with asyncio.Runner() as runner:
            chunks = _chunks(settings, backend, body)
            try:
                while (chunk := runner.run(_next(chunks))) is not None:
                    yield chunk
            finally:
                runner.run(chunks.aclose())
    except ApiError as error:
        raise CliError(error.message) from error
    finally:
        backend.close()


async def _next(chunks: AsyncGenerator[dict[str, Any], None]) -> dict[str, Any] | None:
    return await anext(chunks, None)


async def _chunks(
    settings: ServerSettings, backend: LocalBackend, body: dict[str, Any]
) -> AsyncGenerator[dict[str, Any], None]:
    fetcher = create_fetcher(settings.media)
    try:
        service = create_chat_service(
            settings.checkpoint,
            model_name=settings.model_name,
            backend=backend,
            fetcher=fetcher,
            chat_limits=settings.chat,
            media_limits=settings.media,
        )
        chat = check_chat_request({**body, "model": settings.model_name, "stream": True})
        header = AnswerHeader(model=settings.model_name, system_fingerprint="")
        builder = ChunkBuilder(header, logprobs=False, include_usage=True)
        events = service.stream(chat)
        async with aclosing(events):
            async for event in events:
                for chunk in builder.chunks(event):
                    yield chunk
    finally:
        await fetcher.close()
