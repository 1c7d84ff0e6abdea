"""What routes say of themselves: timings as headers, deadlines, Retry-After, /metrics, requests by status."""

from __future__ import annotations

import asyncio

import pytest

from mm_pipeline.errors import QueueFullError
from mm_pipeline.metrics import MemoryRecorder
from serve_apps.api.errors import unavailable
from serve_apps.observability.catalogue import ANSWERS, REQUESTS
from tests.helpers import FakeBackend, FakeEngine, wait_until
from tests.serve_apps.http import BODY, Caller, client_of, events_of, make_app


async def test_a_whole_answer_has_its_timings_as_a_header_too():
    backend = FakeBackend(timings={"queue_ms": 2.0, "cache_ms": 0.25, "batch_ms": 4.0})
    content = [{"type": "image_url", "image_url": {"url": "u"}}]
    body = {"model": "demo", "messages": [{"role": "user", "content": content}]}
    async with client_of(make_app(backend=backend)) as client:
        response = await client.post("/v1/chat/completions", json=body)
    timings = response.json()["timings"]
    assert {name: timings[name] for name in timings if name.startswith("encoder_")} == {
        "encoder_queue_ms": 2.0,
        "encoder_cache_ms": 0.25,
        "encoder_batch_ms": 4.0,
    }
    stages = dict(stage.split(";dur=") for stage in response.headers["server-timing"].split(", "))
    assert {f"{name}_ms": float(text) for name, text in stages.items()} == timings


async def test_a_streams_header_has_the_stages_before_its_first_token():
    async with client_of(make_app()) as client:
        response = await client.post("/v1/chat/completions", json={**BODY, "stream": True})
    names = {stage.split(";")[0] for stage in response.headers["server-timing"].split(", ")}
    assert names == {"render", "fetch", "encode", "expand"}
    assert response.headers["cache-control"] == "no-cache"


@pytest.mark.parametrize("stream", [True, False])
async def test_the_timeout_header_ends_an_answer_with_504(stream):
    app = make_app(backend=FakeBackend(hang={b"u"}))
    content = [{"type": "image_url", "image_url": {"url": "u"}}]
    body = {"model": "demo", "messages": [{"role": "user", "content": content}], "stream": stream}
    async with client_of(app) as client:
        response = await client.post(
            "/v1/chat/completions", json=body, headers={"X-Request-Timeout-S": "0.05"}
        )
    assert response.status_code == 504
    assert response.json()["error"]["code"] == "deadline_exceeded"


async def test_a_deadline_within_a_stream_is_an_event():
    engine = FakeEngine(words_before_gate=1)
    engine.gate.clear()
    body = {**BODY, "stream": True, "timeout_s": 0.2}
    async with client_of(make_app(backend=FakeBackend(engine=engine))) as client:
        response = await client.post("/v1/chat/completions", json=body)
    *_, hello, last = events_of(response.text)
    assert hello["choices"][0]["delta"]["content"] == "Hello"
    assert last["error"]["code"] == "deadline_exceeded"
    assert len(engine.aborted) == 1


@pytest.mark.parametrize("value", ["soon", "0", "-1", "nan", "inf", ""])
async def test_a_timeout_that_is_no_number_of_seconds_is_refused(value):
    async with client_of(make_app()) as client:
        response = await client.post(
            "/v1/chat/completions", json=BODY, headers={"X-Request-Timeout-S": value}
        )
        field = await client.post("/v1/chat/completions", json={**BODY, "timeout_s": 0})
    assert (response.status_code, response.json()["error"]["param"]) == (400, "X-Request-Timeout-S")
    assert (field.status_code, field.json()["error"]["param"]) == (400, "timeout_s")


async def test_a_full_encoder_queue_is_503_with_its_own_retry_after():
    app = make_app(backend=FakeBackend(encode_errors={b"u": QueueFullError(7.0)}))
    content = [{"type": "image_url", "image_url": {"url": "u"}}]
    body = {"model": "demo", "messages": [{"role": "user", "content": content}]}
    async with client_of(app) as client:
        response = await client.post("/v1/chat/completions", json=body)
    assert (response.status_code, response.headers["retry-after"]) == (503, "7")


async def test_metrics_need_no_key_and_say_when_there_are_none():
    async def some() -> str:
        return "mm_x 1\n"

    async def none() -> str:
        raise unavailable("No node exports.")

    async with client_of(make_app(metrics=some, api_keys=("k",))) as client:
        response = await client.get("/metrics")
    assert (response.status_code, response.text) == (200, "mm_x 1\n")
    assert response.headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8"
    async with client_of(make_app(metrics=none)) as client:
        assert (await client.get("/metrics")).status_code == 503


async def test_requests_are_counted_by_route_and_status():
    recorder = MemoryRecorder()
    async with client_of(make_app(recorder=recorder)) as client:
        await client.get("/v1/models/demo")
        await client.get("/v1/models/nope")
        await client.get("/a/made/up/path")
        await client.post("/v1/chat/completions", json={**BODY, "stream": True})
    for route, status in (
        ("/v1/models/{model:path}", "200"),
        ("/v1/models/{model:path}", "404"),
        ("other", "404"),
        ("/v1/chat/completions", "200"),
    ):
        assert recorder.total(REQUESTS, route=route, status=status) == 1
    assert recorder.total(REQUESTS) == 4


async def test_a_client_that_was_gone_before_the_answer_counts_as_499():
    recorder = MemoryRecorder()
    engine = FakeEngine()
    engine.gate.clear()
    task = Caller(make_app(backend=FakeBackend(engine=engine), recorder=recorder), BODY).start()
    await wait_until(lambda: len(engine.running) == 1)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert recorder.values(REQUESTS, route="/v1/chat/completions", status="499") == [1]
    assert recorder.values(ANSWERS) == recorder.values(ANSWERS, outcome="cancelled") == [1]
