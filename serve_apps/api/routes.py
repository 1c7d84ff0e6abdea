"""The HTTP routes, over a chat service.

Knows bodies, headers and status codes. Does not know Ray: the same application runs under any ASGI server.
"""

from __future__ import annotations

import asyncio
import hmac
import logging
import math
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any

from fastapi import Depends, FastAPI, Request
from starlette.exceptions import HTTPException
from starlette.responses import Response

from mm_pipeline.metrics import Recorder
from serve_apps.api.counted import CountedRequests
from serve_apps.api.errors import ApiError, bad_request, internal_error, too_large
from serve_apps.api.responses import (
    AnswerHeader,
    ChunkBuilder,
    chat_completion,
    model_list,
    model_object,
    server_timing,
)
from serve_apps.api.schemas import ChatCompletionRequest
from serve_apps.api.sse import DONE, SseResponse, json_bytes, sse_event
from serve_apps.api.validation import parse_chat_request
from serve_apps.chat.events import Accepted, ChatEvent
from serve_apps.chat.service import ChatService

_log = logging.getLogger(__name__)

TIMEOUT_HEADER = "X-Request-Timeout-S"
"""Seconds that a request may take. The field `timeout_s` says the same; the shorter holds, and never more than the
server's limit."""

EXPOSITION_TYPE = "text/plain; version=0.0.4"
"""Prometheus' text format."""

_INLINE_PARSE_BYTES = 256 * 1024
"""Bodies up to this size are parsed on the event loop: it takes less time than a thread switch is worth."""


@dataclass(frozen=True, kw_only=True)
class ApiSettings:
    """Settings of the HTTP side.

    Attributes:
        max_body_bytes: larger request bodies get 413 before they are parsed.
        api_keys: keys of which a client must send one as bearer token; empty: none is asked for.
        system_fingerprint: names checkpoint and software in every answer.
    """

    max_body_bytes: int = 128 * 2**20
    api_keys: tuple[str, ...] = ()
    system_fingerprint: str = ""


def create_api(
    service: ChatService,
    *,
    health: Callable[[], Awaitable[Mapping[str, Any]]],
    metrics: Callable[[], Awaitable[str]],
    recorder: Recorder,
    settings: ApiSettings,
) -> FastAPI:
    """The application. `health` and `metrics` return what /health and /metrics show, or raise ApiError.

    `recorder` is told of every request.
    """
    # No documentation pages: bodies are checked by hand, so a generated schema would say nothing.
    app = FastAPI(title="mm-pipeline", openapi_url=None)
    app.add_middleware(CountedRequests, recorder=recorder)
    started = int(time.time())

    async def authorize(request: Request) -> None:
        _check_key(request, settings.api_keys)

    @app.get("/health")
    async def get_health() -> Response:
        return _json(200, dict(await health()))

    @app.get("/metrics")
    async def get_metrics() -> Response:
        return Response(await metrics(), media_type=EXPOSITION_TYPE)

    @app.get("/v1/models", dependencies=[Depends(authorize)])
    async def list_models() -> Response:
        return _json(200, model_list(service.model_name, started))

    @app.get("/v1/models/{model:path}", dependencies=[Depends(authorize)])
    async def get_model(model: str) -> Response:
        if model != service.model_name:
            raise ApiError(
                404,
                f"The model '{model[:80]}' does not exist here. This server has '{service.model_name}'.",
                code="model_not_found",
                param="model",
            )
        return _json(200, model_object(model, started))

    @app.post("/v1/chat/completions", dependencies=[Depends(authorize)])
    async def create_chat_completion(request: Request) -> Response:
        timeout_s = _timeout_s(request)
        body = await _read_body(request, settings.max_body_bytes)
        if len(body) <= _INLINE_PARSE_BYTES:
            chat = parse_chat_request(body)
        else:
            chat = await asyncio.to_thread(parse_chat_request, body)
        # The base64 of a picture need not stay in memory while the answer is generated.
        del body
        header = AnswerHeader(model=service.model_name, system_fingerprint=settings.system_fingerprint)
        events = service.stream(chat, timeout_s=timeout_s, api_key=_bearer_token(request))
        if chat.stream:
            return await _streamed(events, chat, header)
        return await _whole(events, chat, header)

    @app.exception_handler(ApiError)
    async def on_api_error(request: Request, error: ApiError) -> Response:
        return _error(error)

    @app.exception_handler(HTTPException)
    async def on_http_error(request: Request, error: HTTPException) -> Response:
        path = request.url.path[:80]
        if error.status_code == 404:
            return _error(
                ApiError(404, f"There is no '{path}' here. See /v1/models and /v1/chat/completions.")
            )
        if error.status_code == 405:
            return _error(ApiError(405, f"'{path}' does not take {request.method}."))
        return _error(ApiError(error.status_code, str(error.detail)))

    @app.exception_handler(Exception)
    async def on_bug(request: Request, error: Exception) -> Response:
        _log.error("unexpected error in a route", exc_info=error)
        return _error(internal_error())

    return app


async def _whole(
    events: AsyncGenerator[ChatEvent, None], chat: ChatCompletionRequest, header: AnswerHeader
) -> Response:
    async with aclosing(events):
        collected = [event async for event in events]
    answer = chat_completion(header, collected, logprobs=chat.logprobs)
    return _json(200, answer, server_timing(answer["timings"]))


async def _streamed(
    events: AsyncGenerator[ChatEvent, None], chat: ChatCompletionRequest, header: AnswerHeader
) -> Response:
    # Up to here an error still has its own status code; once this event is out, the answer has begun.
    first = await anext(events)
    builder = ChunkBuilder(header, logprobs=chat.logprobs, include_usage=chat.include_usage)

    async def body() -> AsyncGenerator[bytes, None]:
        yield sse_event(builder.first())
        for chunk in builder.chunks(first):
            yield sse_event(chunk)
        try:
            async for event in events:
                chunks = builder.chunks(event)
                if chunks:
                    yield b"".join(sse_event(chunk) for chunk in chunks)
        except ApiError as error:
            yield sse_event(error.body())
            return
        yield DONE

    # The rest of the timings comes in the last chunk.
    timings = first.timings if isinstance(first, Accepted) else {}
    return SseResponse(body(), source=events, headers=server_timing(timings))


def _timeout_s(request: Request) -> float | None:
    text = request.headers.get(TIMEOUT_HEADER)
    if text is None:
        return None
    try:
        seconds = float(text)
    except ValueError:
        seconds = math.nan
    if not 0 < seconds < math.inf:
        raise bad_request(
            f"The header {TIMEOUT_HEADER} was '{text[:40]}'. Send a number of seconds greater than 0.",
            param=TIMEOUT_HEADER,
            code="invalid_value",
        )
    return seconds


async def _read_body(request: Request, max_bytes: int) -> bytes:
    announced = request.headers.get("content-length", "")
    if announced.isdecimal() and (len(announced) > 15 or int(announced) > max_bytes):
        raise _body_too_large(f"{announced} bytes", max_bytes)
    body = bytearray()
    async for piece in request.stream():
        body += piece
        if len(body) > max_bytes:
            raise _body_too_large("more", max_bytes)
    return bytes(body)


def _body_too_large(came: str, max_bytes: int) -> ApiError:
    return too_large(
        f"The request body may have {max_bytes} bytes, but {came} came. "
        "Send media by URL or make them smaller."
    )


def _bearer_token(request: Request) -> str | None:
    """The API key that came, whether or not this server asks for one."""
    scheme, _, key = request.headers.get("authorization", "").partition(" ")
    return key.strip() or None if scheme.lower() == "bearer" else None


def _check_key(request: Request, api_keys: tuple[str, ...]) -> None:
    if not api_keys:
        return
    given = (_bearer_token(request) or "").encode()
    # Compares with every key in constant time, so that timing tells nothing about any of them.
    matches = [hmac.compare_digest(given, known.encode()) for known in api_keys]
    if not any(matches):
        raise ApiError(
            401,
            "This server asks for an API key. Send a valid one as 'Authorization: Bearer KEY'.",
            code="invalid_api_key",
        )


def _json(status: int, body: dict[str, Any], headers: Mapping[str, str] | None = None) -> Response:
    return Response(json_bytes(body), status_code=status, media_type="application/json", headers=headers)


def _error(error: ApiError) -> Response:
    return _json(error.status, error.body(), error.headers())
