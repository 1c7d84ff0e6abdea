"""Puts a conversation to the model: in this process as `mmserve chat --local` does, or to a server over HTTP.

Knows no scenes and no scores.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from mm_pipeline.store import create_store
from serve_apps.api.validation import check_chat_request
from serve_apps.chat.create import create_chat_service, create_fetcher
from serve_apps.chat.events import Delta, Finished
from serve_apps.chat.local import LocalBackend
from serve_apps.cli.chat import media_url
from serve_apps.cli.client import Client
from serve_apps.settings import ServerSettings

# Longer than any right answer.
MAX_TOKENS = 48

Message = dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class Answer:
    """timings: milliseconds of each stage, as the service tells them."""

    text: str
    timings: Mapping[str, float]


class Asker(Protocol):
    """Several conversations may be under way at once."""

    async def ask(self, messages: Sequence[Message]) -> Answer:
        """The most likely answer to the last message."""
        ...

    async def close(self) -> None:
        """Ends what was started."""
        ...


def question(text: str, files: Sequence[tuple[str, Path]] = ()) -> Message:
    """A user's message: the files, each with its modality, and then the text."""
    parts: list[dict[str, Any]] = [
        {"type": f"{modality}_url", f"{modality}_url": {"url": media_url(str(path))}}
        for modality, path in files
    ]
    return {"role": "user", "content": [*parts, {"type": "text", "text": text}]}


class LocalAsker:
    """Asks the chat service in this process. Raises ValueError for a bad checkpoint."""

    def __init__(self, checkpoint: Path) -> None:
        settings = ServerSettings(checkpoint=checkpoint).resolved()
        self._model_name = settings.model_name
        self._backend = LocalBackend.from_checkpoint(
            settings.checkpoint,
            engine=settings.engine,
            media=settings.media,
            store=create_store(settings.embedding_store_bytes),
        )
        self._fetcher = create_fetcher(settings.media)
        self._service = create_chat_service(
            settings.checkpoint,
            model_name=settings.model_name,
            backend=self._backend,
            fetcher=self._fetcher,
            chat_limits=settings.chat,
            media_limits=settings.media,
        )

    async def ask(self, messages: Sequence[Message]) -> Answer:
        """See `Asker.ask`."""
        body = {**_body(messages), "model": self._model_name, "stream": True}
        text: list[str] = []
        timings: Mapping[str, float] = {}
        async with aclosing(self._service.stream(check_chat_request(body))) as events:
            async for event in events:
                if isinstance(event, Delta):
                    text.append(event.text)
                elif isinstance(event, Finished):
                    timings = event.timings
        return Answer(text="".join(text), timings=timings)

    async def close(self) -> None:
        """See `Asker.close`."""
        await self._fetcher.close()
        self._backend.close()


class ServerAsker:
    """Asks a running server."""

    def __init__(self, url: str) -> None:
        self._client = Client(url)
        self._model_name = self._client.model()

    async def ask(self, messages: Sequence[Message]) -> Answer:
        """See `Asker.ask`."""
        return await asyncio.to_thread(self._ask, {**_body(messages), "model": self._model_name})

    async def close(self) -> None:
        """See `Asker.close`."""

    def _ask(self, body: dict[str, Any]) -> Answer:
        text: list[str] = []
        timings: Mapping[str, float] = {}
        for chunk in self._client.chat_chunks(body):
            text += [choice["delta"].get("content") or "" for choice in chunk["choices"]]
            timings = chunk.get("timings") or timings
        return Answer(text="".join(text), timings=timings)


def _body(messages: Sequence[Message]) -> dict[str, Any]:
    return {"messages": list(messages), "temperature": 0, "max_tokens": MAX_TOKENS}
