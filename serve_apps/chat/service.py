"""ChatService: validate -> render -> fetch -> encode -> expand -> generate, as one stream of events.

Knows the order of the stages, their limits and their clocks. Does not know HTTP, Ray, templates or tensors:
they come in through the protocols of `serve_apps.chat.base`.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections import Counter
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any
from uuid import uuid4

from blake3 import blake3

from llm_core.core import EmbedSpan, GenerateRequest, OutputDelta, SamplingParams, TokenLogprob
from mm_pipeline.limits import MediaLimits
from mm_pipeline.metrics import Recorder
from serve_apps.api.errors import OPTIONS_FIELD, ApiError, bad_request, overloaded, too_large, unavailable
from serve_apps.api.schemas import ChatCompletionRequest, TextPart
from serve_apps.api.validation import media_parts, text_chars
from serve_apps.chat.base import (
    Backend,
    EmbeddingRows,
    EncodedItem,
    Fetcher,
    FinalPrompt,
    ModelInfo,
    Prompter,
    TokenTexts,
)
from serve_apps.chat.clock import RequestClock
from serve_apps.chat.deadline import allowed_timeout_s, before_deadline
from serve_apps.chat.errors import to_api_error
from serve_apps.chat.events import Accepted, ChatEvent, Delta, Finished, LogprobEntry, MediaNote, Usage
from serve_apps.chat.media import MediaLoader
from serve_apps.observability.catalogue import ACTIVE_REQUESTS, ANSWERS


@dataclass(frozen=True, kw_only=True)
class ChatLimits:
    """Bounds on what one process of the service takes on.

    Attributes:
        max_requests: requests worked on at once; one more is refused with 503.
        max_text_chars: characters of text in all messages of a request.
        max_media_bytes: bytes of all media of a request together.
        max_fetches: downloads at once, over all requests.
        default_max_tokens: length of an answer when the request does not say.
        request_timeout_s: seconds from the request to the end of its answer; a request may ask for fewer.
    """

    max_requests: int = 256
    max_text_chars: int = 4_000_000
    max_media_bytes: int = 256 * 2**20
    max_fetches: int = 32
    default_max_tokens: int = 1024
    request_timeout_s: float = 1800.0

    def __post_init__(self) -> None:
        if not 0 < self.request_timeout_s < math.inf:
            raise ValueError(
                f"request_timeout_s is {self.request_timeout_s}; it must be greater than 0, and finite"
            )


class ChatService:
    """Answers chat completion requests. One per process; all methods run on one event loop."""

    def __init__(
        self,
        *,
        model_name: str,
        prompter: Prompter,
        fetcher: Fetcher,
        backend: Backend,
        token_texts: TokenTexts,
        limits: ChatLimits,
        media_limits: MediaLimits,
        recorder: Recorder,
    ) -> None:
        self.model_name = model_name
        self._prompter = prompter
        self._backend = backend
        self._media = MediaLoader(
            fetcher, backend, recorder, max_bytes=limits.max_media_bytes, max_fetches=limits.max_fetches
        )
        self._token_texts = token_texts
        self._limits = limits
        self._media_limits = media_limits
        self._recorder = recorder
        self._num_active = 0
        self._model_info: ModelInfo | None = None

    @property
    def num_active(self) -> int:
        """Requests being worked on."""
        return self._num_active

    async def stream(
        self,
        request: ChatCompletionRequest,
        *,
        timeout_s: float | None = None,
        api_key: str | None = None,
    ) -> AsyncGenerator[ChatEvent, None]:
        """The events of one answer: Accepted, any number of Delta, Finished.

        timeout_s: what the caller gives the request, besides what its own `timeout_s` says; the shorter holds.
        api_key: the client's, which its uuids belong to; never kept.
        Raises ApiError, before Accepted for everything that can be known by then. Closing the generator, or
        cancelling the task that reads it, cancels all work of the request down to the engine; so does its deadline.
        """
        if self._num_active >= self._limits.max_requests:
            self._recorder.count(ANSWERS, outcome="rejected")
            raise overloaded(
                f"The server is at work on {self._num_active} requests, as many as it takes at once. "
                "Send the request again later."
            )
        self._count_active(1)
        # What it is when neither its end nor an error comes.
        outcome = "cancelled"
        allowed_s = allowed_timeout_s(self._limits.request_timeout_s, request.timeout_s, timeout_s)
        events = before_deadline(self._answer(request, api_key, time.monotonic() + allowed_s), allowed_s)
        try:
            async with aclosing(events):
                async for event in events:
                    if isinstance(event, Finished):
                        outcome = "done"
                    yield event
        except Exception as error:
            found = to_api_error(error)
            outcome = _outcome(found)
            if found is error:
                raise
            raise found from error
        finally:
            self._count_active(-1)
            self._recorder.count(ANSWERS, outcome=outcome)

    def _count_active(self, change: int) -> None:
        self._num_active += change
        self._recorder.gauge(ACTIVE_REQUESTS, self._num_active)

    async def _answer(
        self, request: ChatCompletionRequest, api_key: str | None, deadline: float
    ) -> AsyncGenerator[ChatEvent, None]:
        clock = RequestClock(self._recorder)
        self._check(request)
        prompt = await asyncio.to_thread(self._render, request)
        clock.lap("render_ms")
        request_id = uuid4().hex
        encoded = await self._media.load(
            request, api_key=api_key, owner=request_id, deadline=deadline, clock=clock
        )
        final = await asyncio.to_thread(self._prompter.expand, prompt, encoded)
        clock.lap("expand_ms")
        generate = GenerateRequest(
            request_id=request_id,
            token_ids=final.token_ids,
            spans=_spans(final, encoded),
            sampling=await self._sampling(request, len(final.token_ids)),
            # Requests of one key take turns with those of others.
            user="" if api_key is None else blake3(api_key.encode()).hexdigest(),
            priority=request.priority,
        )
        clock.add_stages(encoded)
        batches = self._backend.generate(generate)
        async with aclosing(batches):
            async for batch in batches:
                if not batch:
                    yield Accepted(timings=clock.so_far())
                    continue
                last = batch[-1]
                if last.finish_reason in ("abort", "error"):
                    raise _generation_error(last)
                clock.tokens(last)
                yield self._delta(batch)
                if last.finish_reason == "stop" or last.finish_reason == "length":
                    usage = _usage(last, final)
                    yield Finished(
                        finish_reason=last.finish_reason,
                        usage=usage,
                        timings=clock.finish(last, usage),
                        notes=_notes(request, encoded, final),
                    )
                    return
        raise unavailable("The answer was cut short. Send the request again.")

    def _check(self, request: ChatCompletionRequest) -> None:
        if request.model != self.model_name:
            raise ApiError(
                404,
                f"The model '{request.model}' does not exist here. This server has '{self.model_name}'.",
                code="model_not_found",
                param="model",
            )
        if not any(message.role == "user" for message in request.messages):
            raise bad_request(
                "There is no message with the role 'user'. Add one that holds the question.", "messages"
            )
        num_chars = text_chars(request)
        if num_chars > self._limits.max_text_chars:
            raise too_large(
                f"The messages have {num_chars} characters of text; at most {self._limits.max_text_chars} "
                "are allowed. Shorten them.",
                "messages",
            )
        num_items = len(media_parts(request))
        if num_items > self._media_limits.max_items:
            raise too_large(
                f"The messages have {num_items} media parts; at most {self._media_limits.max_items} are "
                "allowed. Send fewer.",
                "messages",
            )
        most = self._media_limits.max_video_frames
        for name in ("min_frames", "max_frames"):
            asked = getattr(request.mm_processor_kwargs, name)
            if asked is not None and asked > most:
                raise too_large(
                    f"'{OPTIONS_FIELD}.{name}' is {asked}; at most {most} frames of one video are "
                    "allowed. Ask for fewer.",
                    f"{OPTIONS_FIELD}.{name}",
                )

    def _render(self, request: ChatCompletionRequest) -> Any:
        try:
            return self._prompter.render(template_messages(request))
        except ValueError as error:
            raise bad_request(str(error), "messages") from None

    async def _sampling(self, request: ChatCompletionRequest, num_prompt_tokens: int) -> SamplingParams:
        max_tokens = request.token_limit
        if max_tokens is None:
            if self._model_info is None:
                self._model_info = await self._backend.model_info()
            room = self._model_info.max_context - num_prompt_tokens
            # A prompt that fills the context is refused by the engine, whose message has the numbers.
            max_tokens = max(1, min(self._limits.default_max_tokens, room))
        return SamplingParams(
            temperature=request.temperature,
            top_p=request.top_p,
            top_k=max(0, request.top_k),
            min_p=request.min_p,
            repetition_penalty=request.repetition_penalty,
            presence_penalty=request.presence_penalty,
            frequency_penalty=request.frequency_penalty,
            seed=request.seed,
            max_tokens=max_tokens,
            stop=tuple(request.stop),
            stop_token_ids=tuple(request.stop_token_ids),
            ignore_eos=request.ignore_eos,
            num_logprobs=request.top_logprobs if request.logprobs else None,
        )

    def _delta(self, batch: Sequence[OutputDelta]) -> Delta:
        return Delta(
            text="".join(delta.text for delta in batch),
            logprobs=tuple(self._logprob(entry) for delta in batch for entry in delta.logprobs),
        )

    def _logprob(self, entry: TokenLogprob) -> LogprobEntry:
        token = self._token_texts.token
        return LogprobEntry(
            token=token(entry.token_id),
            logprob=entry.logprob,
            top=tuple((token(token_id), logprob) for token_id, logprob in entry.top),
        )


def template_messages(request: ChatCompletionRequest) -> list[dict[str, Any]]:
    """Messages as the chat template sees them: `developer` is `system`, media parts carry no bytes."""
    messages: list[dict[str, Any]] = []
    for message in request.messages:
        role = "system" if message.role == "developer" else message.role
        content: str | list[dict[str, str]]
        if isinstance(message.content, str):
            content = message.content
        else:
            content = [
                {"type": "text", "text": part.text} if isinstance(part, TextPart) else {"type": part.modality}
                for part in message.content
            ]
        messages.append({"role": role, "content": content})
    return messages


def _outcome(error: ApiError) -> str:
    """The label of a request that ended with this error."""
    if error.status < 500:
        return "refused"
    return {503: "rejected", 504: "expired"}.get(error.status, "failed")


def _generation_error(delta: OutputDelta) -> ApiError:
    if delta.finish_reason == "abort":
        return unavailable("The server stopped this answer before its end. Send the request again.")
    message = delta.error or "The engine failed while it generated this answer."
    return ApiError(500, message, code="generation_failed")


def _spans(prompt: FinalPrompt, encoded: Sequence[EncodedItem]) -> tuple[EmbedSpan, ...]:
    spans: list[EmbedSpan] = []
    for span in prompt.spans:
        item = encoded[span.media_index]
        spans.append(
            EmbedSpan(
                start=span.start,
                length=span.length,
                # Other rows of the same item are other content.
                content_key=f"{item.content_key}+{span.offset}" if span.offset else item.content_key,
                embeddings=EmbeddingRows(item=item.embeddings, begin=span.offset, length=span.length),
            )
        )
    return tuple(spans)


def _notes(
    request: ChatCompletionRequest, encoded: Sequence[EncodedItem], prompt: FinalPrompt
) -> tuple[MediaNote, ...]:
    of_items = [
        MediaNote(param=param, modality=part.modality, note=note)
        for (param, part), item in zip(media_parts(request), encoded, strict=True)
        for note in item.notes
    ]
    # Only a video can be cut when it is placed: by the sound after its last frame.
    return (*of_items, *(MediaNote(param="messages", modality="video", note=note) for note in prompt.notes))


def _usage(last: OutputDelta, prompt: FinalPrompt) -> Usage:
    media_tokens = Counter[str]()
    for span in prompt.spans:
        media_tokens[span.modality] += span.length
    return Usage(
        prompt_tokens=last.num_prompt_tokens,
        completion_tokens=last.num_output_tokens,
        cached_tokens=last.num_cached_tokens,
        image_tokens=media_tokens["image"],
        video_tokens=media_tokens["video"],
        audio_tokens=media_tokens["audio"],
    )
