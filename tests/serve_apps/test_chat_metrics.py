"""What the chat service tells its recorder about a request, however it ends."""

from __future__ import annotations

import asyncio

import pytest

from mm_pipeline.errors import QueueFullError, UnsupportedMediaError
from mm_pipeline.metrics import STAGE_SECONDS, MemoryRecorder
from serve_apps.api.errors import ApiError
from serve_apps.api.validation import check_chat_request
from serve_apps.chat.service import ChatLimits
from serve_apps.observability.catalogue import (
    ACTIVE_REQUESTS,
    ANSWERS,
    E2E_SECONDS,
    ITL_SECONDS,
    TOKENS,
    TTFT_SECONDS,
)
from tests.helpers import FakeBackend, FakeEngine, FakeFetcher, fake_chat_service, wait_until


def ask(*urls: str, **fields):
    content = [{"type": "text", "text": "hi"}]
    content += [{"type": "image_url", "image_url": {"url": url}} for url in urls]
    return check_chat_request({"model": "demo", "messages": [{"role": "user", "content": content}], **fields})


async def test_an_answer_that_is_done():
    recorder = MemoryRecorder()
    backend = FakeBackend(timings={"preprocess_ms": 250.0, "encode_ms": 500.0, "unknown_ms": 1.0})
    service = fake_chat_service(backend=backend, recorder=recorder)
    events = [event async for event in service.stream(ask("ab", "cde"))]
    kinds = ("prompt", "image", "video", "audio", "cached", "completion")
    assert [recorder.total(TOKENS, kind=kind) for kind in kinds] == [7, 5, 0, 0, 0, 3]
    assert recorder.values(ANSWERS, outcome="done") == recorder.values(ANSWERS) == [1]
    assert recorder.values(ACTIVE_REQUESTS) == [1, 0]
    assert recorder.values(STAGE_SECONDS, modality="image", stage="preprocess") == [0.25, 0.25]
    assert recorder.values(STAGE_SECONDS, modality="image", stage="encode") == [0.5, 0.5]
    assert len(recorder.values(STAGE_SECONDS, modality="image", stage="fetch")) == 2
    assert len(recorder.values(STAGE_SECONDS)) == 6
    (ttft,), (whole,) = recorder.values(TTFT_SECONDS), recorder.values(E2E_SECONDS)
    assert ttft * 1e3 == pytest.approx(events[-1].timings["ttft_ms"])
    assert whole >= ttft


async def test_time_per_token_is_shared_by_the_tokens_that_came_together():
    recorder = MemoryRecorder()
    engine = FakeEngine(words=("a", "b", "c", "d", "e"), words_before_gate=1)
    engine.gate.clear()
    service = fake_chat_service(backend=FakeBackend(engine=engine), recorder=recorder)
    events = service.stream(ask("u"))
    await anext(events)
    assert (await anext(events)).text == "a"
    await asyncio.sleep(0.4)
    engine.gate.set()
    # Time for all four to pile up.
    await asyncio.sleep(0.1)
    rest = [event async for event in events]
    assert "".join(getattr(event, "text", "") for event in rest) == "bcde"
    (seconds,) = recorder.values(ITL_SECONDS)
    assert 0.5 / 4 <= seconds < 0.4


@pytest.mark.parametrize(
    ("error", "outcome"),
    [
        (UnsupportedMediaError("Not a picture."), "refused"),
        (QueueFullError(3.0), "rejected"),
        (KeyError("a bug"), "failed"),
    ],
)
async def test_an_answer_that_ends_in_an_error(error, outcome):
    recorder = MemoryRecorder()
    service = fake_chat_service(backend=FakeBackend(encode_errors={b"u": error}), recorder=recorder)
    with pytest.raises(ApiError):
        await anext(service.stream(ask("u")))
    assert recorder.values(ANSWERS, outcome=outcome) == recorder.values(ANSWERS) == [1]
    assert recorder.values(ACTIVE_REQUESTS) == [1, 0]
    assert recorder.values(TTFT_SECONDS) == recorder.values(E2E_SECONDS) == []


async def test_one_request_too_many_is_rejected_and_one_that_is_left_is_cancelled():
    recorder = MemoryRecorder()
    fetcher = FakeFetcher(hang={"u"})
    service = fake_chat_service(fetcher=fetcher, limits=ChatLimits(max_requests=1), recorder=recorder)
    first = asyncio.ensure_future(anext(service.stream(ask("u"))))
    await wait_until(lambda: fetcher.started == ["u"])
    with pytest.raises(ApiError, match="as many as it takes"):
        await anext(service.stream(ask("v")))
    assert recorder.values(ANSWERS) == recorder.values(ANSWERS, outcome="rejected") == [1]
    first.cancel()
    with pytest.raises(asyncio.CancelledError):
        await first
    assert recorder.values(ANSWERS, outcome="cancelled") == [1]
    assert recorder.values(ACTIVE_REQUESTS) == [1, 0]
