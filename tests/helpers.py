"""Fakes that follow the signatures of the real parts: engine, media, prompter, backend, chat service."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from llm_core.core import GenerateRequest, OutputDelta, TokenLogprob
from llm_core.errors import ContextTooLongError
from mm_pipeline.limits import MediaLimits
from mm_pipeline.metrics import MemoryRecorder, Recorder
from mm_pipeline.options import MediaOptions
from serve_apps.chat.base import EncodedItem, FinalPrompt, ModelInfo, PlacedMedia
from serve_apps.chat.delta_batches import delta_batches
from serve_apps.chat.events import TokenText
from serve_apps.chat.service import ChatLimits, ChatService


@dataclass
class FakeEngine:
    """Answers every request with the same words, one token per word, each on a thread of its own.

    While `gate` is clear no token comes out: that is how a test catches a request half way.
    `words_before_gate` come out before the gate is looked at.
    """

    words: Sequence[str] = ("Hello", " world", "!")
    finish_reason: str = "stop"
    error: str | None = None
    max_context: int = 4096
    hidden_size: int = 8
    words_before_gate: int = 0
    submit_error: Exception | None = None
    gate: threading.Event = field(default_factory=threading.Event)
    requests: list[GenerateRequest] = field(default_factory=list)
    aborted: list[str] = field(default_factory=list)
    running: dict[str, threading.Event] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.gate.set()

    def start(self) -> None:
        """Nothing to start: each request brings its thread."""

    def shutdown(self) -> None:
        for request_id in list(self.running):
            self.abort(request_id)

    def submit(self, request: GenerateRequest, on_output: Callable[[OutputDelta], None]) -> None:
        if self.submit_error is not None:
            raise self.submit_error
        if len(request.token_ids) + request.sampling.max_tokens > self.max_context:
            raise ContextTooLongError(
                f"prompt {len(request.token_ids)} + max_tokens {request.sampling.max_tokens} > "
                f"context {self.max_context}",
                param="max_tokens",
            )
        self.requests.append(request)
        stop = self.running[request.request_id] = threading.Event()
        threading.Thread(target=self._run, args=(request, on_output, stop), daemon=True).start()

    def abort(self, request_id: str) -> None:
        self.aborted.append(request_id)
        stop = self.running.pop(request_id, None)
        if stop is not None:
            stop.set()

    def _run(
        self, request: GenerateRequest, on_output: Callable[[OutputDelta], None], stop: threading.Event
    ) -> None:
        words = list(self.words)[: request.sampling.max_tokens]
        for i, word in enumerate(words):
            if i >= self.words_before_gate:
                while not self.gate.wait(0.01):
                    if stop.is_set():
                        return
            if stop.is_set():
                return
            last = i == len(words) - 1
            if last:
                self.running.pop(request.request_id, None)
            logprobs: tuple[TokenLogprob, ...] = ()
            if request.sampling.num_logprobs is not None:
                top = tuple((i + k, -0.5 - k) for k in range(request.sampling.num_logprobs))
                logprobs = (TokenLogprob(i, -0.5, top),)
            on_output(
                OutputDelta(
                    request_id=request.request_id,
                    token_ids=(i,),
                    text=word,
                    logprobs=logprobs,
                    finish_reason=self.finish_reason if last else None,
                    error=self.error if last else None,
                    num_prompt_tokens=len(request.token_ids),
                    num_output_tokens=i + 1,
                    queue_ms=1.0,
                    prefill_ms=2.0,
                )
            )

    async def stream(self, request: GenerateRequest) -> AsyncIterator[OutputDelta]:
        async for batch in delta_batches(self, request):
            for delta in batch:
                yield delta


@dataclass(frozen=True)
class FakeMedia:
    """What a fetch gives."""

    data: bytes
    content_type: str | None = None


@dataclass
class FakeFetcher:
    """Serves from a dict of URLs; an exception in it is raised. Unknown URLs are their own bytes."""

    urls: dict[str, bytes | Exception] = field(default_factory=dict)
    started: list[str] = field(default_factory=list)
    modalities: list[str] = field(default_factory=list)
    cancelled: list[str] = field(default_factory=list)
    hang: set[str] = field(default_factory=set)

    async def fetch(self, url: str, *, modality: str) -> FakeMedia:
        self.started.append(url)
        self.modalities.append(modality)
        if url in self.hang:
            try:
                await asyncio.Event().wait()
            finally:
                self.cancelled.append(url)
        found = self.urls.get(url, url.encode())
        if isinstance(found, Exception):
            raise found
        return FakeMedia(found)


class FakePrompter:
    """One token per character of text; a media slot becomes as many -1 tokens as its item has."""

    def render(self, messages: list[dict[str, Any]]) -> list[int | None]:
        prompt: list[int | None] = []
        for message in messages:
            if message["content"] == "bad template":
                raise ValueError("roles must alternate")
            content = message["content"]
            parts = [{"type": "text", "text": content}] if isinstance(content, str) else content
            for part in parts:
                if part["type"] == "text":
                    prompt.extend(ord(char) for char in part["text"])
                else:
                    prompt.append(None)
        return prompt

    def expand(self, prompt: list[int | None], media: Sequence[EncodedItem]) -> FinalPrompt:
        tokens: list[int] = []
        spans: list[PlacedMedia] = []
        index = 0
        for token in prompt:
            if token is None:
                item = media[index]
                spans += self._place(len(tokens), index, item)
                tokens.extend([-1] * item.num_tokens)
                index += 1
            else:
                tokens.append(token)
        return FinalPrompt(token_ids=tuple(tokens), spans=tuple(spans))

    def _place(self, start: int, index: int, item: EncodedItem) -> list[PlacedMedia]:
        """One span; the last token of a video is its sound."""
        num_sound = 1 if item.modality == "video" else 0
        spans = [
            PlacedMedia(
                start=start, length=item.num_tokens - num_sound, media_index=index, modality=item.modality
            )
        ]
        if num_sound:
            offset = item.num_tokens - num_sound
            spans.append(
                PlacedMedia(
                    start=start + offset,
                    length=num_sound,
                    media_index=index,
                    offset=offset,
                    modality="audio",
                )
            )
        return spans


@dataclass
class FakeBackend:
    """A fake encoder (one token per byte) in front of an engine."""

    engine: FakeEngine = field(default_factory=FakeEngine)
    encode_errors: dict[bytes, Exception] = field(default_factory=dict)
    notes: dict[bytes, tuple[str, ...]] = field(default_factory=dict)
    timings: dict[str, float] = field(default_factory=lambda: {"decode_ms": 1.5})
    hang: set[bytes] = field(default_factory=set)
    encoded: list[bytes] = field(default_factory=list)
    asked: list[tuple[str, MediaOptions]] = field(default_factory=list)
    owners: list[str] = field(default_factory=list)
    deadlines: list[float | None] = field(default_factory=list)
    kept: dict[tuple[str, str, MediaOptions], EncodedItem] = field(default_factory=dict)

    async def find(self, uuid_key: str, modality: str, options: MediaOptions) -> EncodedItem | None:
        return self.kept.get((uuid_key, modality, options))

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
        await asyncio.sleep(0)
        self.owners.append(owner)
        self.deadlines.append(deadline)
        if data in self.encode_errors:
            raise self.encode_errors[data]
        if data in self.hang:
            await asyncio.Event().wait()
        self.encoded.append(data)
        self.asked.append((modality, options))
        item = EncodedItem(
            embeddings=data,
            num_tokens=len(data),
            modality=modality,
            content_key=data.hex(),
            timings=self.timings,
            notes=self.notes.get(data, ()),
        )
        if uuid_key is not None:
            self.kept[uuid_key, modality, options] = item
        return item

    def generate(self, request: GenerateRequest) -> AsyncGenerator[Sequence[OutputDelta], None]:
        return delta_batches(self.engine, request)

    async def model_info(self) -> ModelInfo:
        return ModelInfo(max_context=self.engine.max_context)


class FakeTokenTexts:
    """Token 7 is text t7."""

    def token(self, token_id: int) -> TokenText:
        return TokenText(text=f"t{token_id}", data=f"t{token_id}".encode())


def fake_chat_service(
    *,
    backend: FakeBackend | None = None,
    fetcher: FakeFetcher | None = None,
    limits: ChatLimits | None = None,
    max_media_items: int = 64,
    recorder: Recorder | None = None,
) -> ChatService:
    """A chat service for the model "demo" whose parts are all fakes."""
    return ChatService(
        model_name="demo",
        prompter=FakePrompter(),
        fetcher=fetcher or FakeFetcher(),
        backend=backend or FakeBackend(),
        token_texts=FakeTokenTexts(),
        limits=limits or ChatLimits(),
        media_limits=MediaLimits(max_items=max_media_items),
        recorder=recorder or MemoryRecorder(),
    )


async def wait_until(condition: Callable[[], bool], timeout_s: float = 5.0) -> None:
    """Give the event loop time until the condition holds; fails the test when it does not."""
    deadline = asyncio.get_running_loop().time() + timeout_s
    while not condition():
        assert asyncio.get_running_loop().time() < deadline, "the condition never held"
        await asyncio.sleep(0.005)
