"""Deadlines: what a request may ask for, what ends at one, and what the client is told."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator

import pytest

from mm_pipeline.errors import DeadlineExceededError, EncoderClosedError, ItemTooLargeError, QueueFullError
from mm_pipeline.metrics import MemoryRecorder
from serve_apps.api.errors import ApiError
from serve_apps.api.validation import check_chat_request
from serve_apps.chat.deadline import allowed_timeout_s, before_deadline
from serve_apps.chat.errors import to_api_error
from serve_apps.chat.service import ChatLimits
from serve_apps.observability.catalogue import ANSWERS
from tests.helpers import FakeBackend, FakeEngine, FakeFetcher, fake_chat_service


def test_a_request_can_shorten_its_time_but_not_lengthen_it():
    assert allowed_timeout_s(10.0, None, None) == 10.0
    assert allowed_timeout_s(10.0, 3.0, None) == 3.0
    assert allowed_timeout_s(10.0, 3.0, 2.0) == 2.0
    assert allowed_timeout_s(10.0, 99.0, 1e9) == 10.0


class Source:
    """Two events, then one that never comes; remembers how it ended."""

    def __init__(self) -> None:
        self.ended = ""

    async def events(self) -> AsyncGenerator[int, None]:
        try:
            yield 1
            yield 2
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            self.ended = "cancelled"
            raise
        except GeneratorExit:
            self.ended = "closed"
            raise


async def test_the_source_is_cancelled_at_the_deadline():
    source = Source()
    events = before_deadline(source.events(), 0.05)
    assert [await anext(events), await anext(events)] == [1, 2]
    with pytest.raises(ApiError) as info:
        await anext(events)
    assert source.ended == "cancelled"
    assert (info.value.status, info.value.code) == (504, "deadline_exceeded")
    assert "0.05 seconds" in info.value.message


async def test_the_reader_is_never_interrupted_and_closing_closes_the_source():
    source = Source()
    events = before_deadline(source.events(), 0.01)
    assert await anext(events) == 1
    # Past the deadline, in the reader's own time.
    await asyncio.sleep(0.03)
    assert source.ended == ""
    await events.aclose()
    assert source.ended == "closed"


async def test_a_timeout_of_the_sources_own_is_not_taken_for_the_deadline():
    async def own() -> AsyncGenerator[int, None]:
        raise TimeoutError("a socket")
        yield 1

    with pytest.raises(TimeoutError, match="a socket"):
        await anext(before_deadline(own(), 60.0))


def ask(url: str, **fields):
    content = [{"type": "image_url", "image_url": {"url": url}}]
    return check_chat_request({"model": "demo", "messages": [{"role": "user", "content": content}], **fields})


async def fail(service, request, **options) -> ApiError:
    with pytest.raises(ApiError) as info:
        async for _ in service.stream(request, **options):
            pass
    return info.value


@pytest.mark.parametrize("where", ["field", "argument", "limit"])
async def test_whatever_a_request_is_at_ends_at_its_deadline(where):
    """Each of three places can hang: the download, the encoder, the engine."""
    field = {"timeout_s": 0.05} if where == "field" else {}
    argument = {"timeout_s": 0.05} if where == "argument" else {}
    limits = ChatLimits(request_timeout_s=0.05) if where == "limit" else ChatLimits()
    engine = FakeEngine(words_before_gate=1)
    engine.gate.clear()
    for fetcher, backend in (
        (FakeFetcher(hang={"u"}), FakeBackend()),
        (FakeFetcher(), FakeBackend(hang={b"u"})),
        (FakeFetcher(), FakeBackend(engine=engine)),
    ):
        recorder = MemoryRecorder()
        service = fake_chat_service(fetcher=fetcher, backend=backend, limits=limits, recorder=recorder)
        error = await fail(service, ask("u", **field), **argument)
        assert (error.status, error.param) == (504, None)
        assert recorder.total(ANSWERS, outcome="expired") == 1
        assert service.num_active == 0
    assert len(engine.aborted) == 1
    assert engine.running == {}


async def test_the_encoder_is_told_the_deadline():
    backend = FakeBackend()
    service = fake_chat_service(backend=backend, limits=ChatLimits(request_timeout_s=100.0))
    before = time.monotonic()
    async for _ in service.stream(ask("u"), timeout_s=30.0):
        pass
    (deadline,) = backend.deadlines
    assert before + 30.0 <= deadline <= time.monotonic() + 30.0


async def test_a_slow_reader_loses_nothing_of_an_answer_that_was_in_time():
    service = fake_chat_service()
    texts = []
    async for event in service.stream(ask("u"), timeout_s=30.0):
        await asyncio.sleep(0.01)
        texts.append(getattr(event, "text", ""))
    assert "".join(texts) == "Hello world!"


@pytest.mark.parametrize(
    ("error", "status", "code", "retry_after"),
    [
        (QueueFullError(12.5), 503, "overloaded", "13"),
        (EncoderClosedError("It shuts down."), 503, "encoder_closed", "1"),
        (DeadlineExceededError("Too late."), 504, "deadline_exceeded", None),
        (ItemTooLargeError("Too large."), 413, "item_too_large", None),
    ],
)
def test_what_encoders_refuse_and_when_to_come_back(error, status, code, retry_after):
    found = to_api_error(error, param="messages.0.content.0")
    assert (found.status, found.code) == (status, code)
    assert found.headers() == ({} if retry_after is None else {"Retry-After": retry_after})
    # A part of the request is named only where it is at fault.
    assert found.param == ("messages.0.content.0" if status == 413 else None)
