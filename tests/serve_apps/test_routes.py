"""The HTTP side over a fake chat service: bodies, bytes of the stream, status codes, keys, hang-ups."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import httpx2
import openai
import pytest

from mm_pipeline.errors import QueueFullError, UnsupportedMediaError
from mm_pipeline.metrics import MemoryRecorder
from serve_apps.api.errors import unavailable
from serve_apps.api.routes import ApiSettings, create_api
from serve_apps.observability.catalogue import ANSWERS, REQUESTS
from tests.helpers import FakeBackend, FakeEngine, FakeFetcher, fake_chat_service, wait_until

USER = {"role": "user", "content": "hi"}
BODY: dict[str, Any] = {"model": "demo", "messages": [USER]}


async def healthy() -> dict[str, Any]:
    return {"status": "ok"}


async def no_metrics() -> str:
    return ""


def make_app(
    *, health=healthy, metrics=no_metrics, api_keys=(), max_body_bytes=2**20, recorder=None, **parts
):
    recorder = recorder or MemoryRecorder()
    settings = ApiSettings(max_body_bytes=max_body_bytes, api_keys=api_keys, system_fingerprint="fp_1")
    service = fake_chat_service(recorder=recorder, **parts)
    return create_api(service, health=health, metrics=metrics, recorder=recorder, settings=settings)


def client_of(app) -> httpx2.AsyncClient:
    return httpx2.AsyncClient(transport=httpx2.ASGITransport(app), base_url="http://test")


def openai_client(app) -> openai.AsyncOpenAI:
    return openai.AsyncOpenAI(
        api_key="k", base_url="http://test/v1", http_client=client_of(app), max_retries=0
    )


def events_of(text: str) -> list[Any]:
    assert text.endswith("\n\n")
    lines = text.removesuffix("\n\n").split("\n\n")
    assert all(line.startswith("data: ") for line in lines)
    return [line if line == "data: [DONE]" else json.loads(line.removeprefix("data: ")) for line in lines]


async def test_a_whole_answer():
    async with client_of(make_app()) as client:
        response = await client.post(
            "/v1/chat/completions", json={**BODY, "logprobs": True, "top_logprobs": 1}
        )
    answer = response.json()
    assert response.status_code == 200
    assert answer["object"] == "chat.completion"
    assert answer["model"] == "demo"
    assert answer["system_fingerprint"] == "fp_1"
    (choice,) = answer["choices"]
    assert choice["message"] == {"role": "assistant", "content": "Hello world!", "refusal": None}
    assert choice["finish_reason"] == "stop"
    assert choice["logprobs"]["content"][0] == {
        "token": "t0",
        "bytes": [116, 48],
        "logprob": -0.5,
        "top_logprobs": [{"token": "t0", "bytes": [116, 48], "logprob": -0.5}],
    }
    assert answer["usage"] == {
        "prompt_tokens": 2,
        "completion_tokens": 3,
        "total_tokens": 5,
        "prompt_tokens_details": {
            "cached_tokens": 0,
            "image_tokens": 0,
            "video_tokens": 0,
            "audio_tokens": 0,
        },
    }
    assert answer["timings"]["queue_ms"] == 1.0


async def test_the_bytes_of_a_stream():
    async with client_of(make_app()) as client:
        response = await client.post(
            "/v1/chat/completions", json={**BODY, "stream": True, "stream_options": {"include_usage": True}}
        )
    assert response.headers["content-type"] == "text/event-stream; charset=utf-8"
    *chunks, done = events_of(response.text)
    assert done == "data: [DONE]"
    assert {chunk["id"] for chunk in chunks} == {chunks[0]["id"]}
    assert {chunk["object"] for chunk in chunks} == {"chat.completion.chunk"}
    first, *middle, last, usage = chunks
    assert first["choices"][0]["delta"] == {"role": "assistant", "content": "", "refusal": None}
    assert "".join(chunk["choices"][0]["delta"]["content"] for chunk in middle) == "Hello world!"
    assert last["choices"][0] == {"index": 0, "delta": {}, "logprobs": None, "finish_reason": "stop"}
    assert all(chunk["usage"] is None for chunk in [first, *middle, last])
    assert usage["choices"] == []
    assert usage["usage"]["total_tokens"] == 5


async def test_damage_notes_are_in_the_answer_and_in_the_last_chunk():
    app = make_app(backend=FakeBackend(notes={b"u": ("half of it is missing",)}))
    content = [{"type": "video_url", "video_url": {"url": "u"}}]
    body = {"model": "demo", "messages": [{"role": "user", "content": content}]}
    note = {"param": "messages.0.content.0", "modality": "video", "note": "half of it is missing"}
    async with client_of(app) as client:
        whole = await client.post("/v1/chat/completions", json=body)
        stream = await client.post("/v1/chat/completions", json={**body, "stream": True})
        plain = await client.post("/v1/chat/completions", json=BODY)
    assert whole.json()["media_notes"] == [note]
    *chunks, last, _ = events_of(stream.text)
    assert last["media_notes"] == [note]
    assert not any("media_notes" in answer for answer in (plain.json(), *chunks))


async def test_a_stream_without_usage_has_no_usage_chunk():
    async with client_of(make_app()) as client:
        response = await client.post("/v1/chat/completions", json={**BODY, "stream": True})
    *chunks, _ = events_of(response.text)
    assert all(chunk["choices"] and "usage" not in chunk for chunk in chunks)
    assert "total_ms" in chunks[-1]["timings"]


async def test_an_error_after_the_stream_began_is_an_event_and_ends_it():
    engine = FakeEngine(finish_reason="error", error="The engine ran out of numbers.")
    app = make_app(backend=FakeBackend(engine=engine))
    async with client_of(app) as client:
        response = await client.post("/v1/chat/completions", json={**BODY, "stream": True})
    assert response.status_code == 200
    assert events_of(response.text)[-1] == {
        "error": {
            "message": "The engine ran out of numbers.",
            "type": "server_error",
            "param": None,
            "code": "generation_failed",
        }
    }
    client = openai_client(app)
    with pytest.raises(openai.APIError, match="ran out of numbers"):
        async for _ in await client.chat.completions.create(model="demo", messages=[USER], stream=True):
            pass


async def test_an_error_before_the_stream_has_its_own_status():
    app = make_app(backend=FakeBackend(encode_errors={b"u": UnsupportedMediaError("Not a picture.")}))
    content = [{"type": "image_url", "image_url": {"url": "u"}}]
    async with client_of(app) as client:
        response = await client.post(
            "/v1/chat/completions",
            json={"model": "demo", "messages": [{"role": "user", "content": content}], "stream": True},
        )
    assert response.status_code == 415
    assert response.json()["error"] == {
        "message": "Not a picture.",
        "type": "invalid_request_error",
        "param": "messages.0.content.0",
        "code": "unsupported_media",
    }


async def test_the_official_client_streams_and_sees_typed_errors():
    client = openai_client(make_app())
    stream = await client.chat.completions.create(model="demo", messages=[USER], stream=True)
    text = "".join([chunk.choices[0].delta.content or "" async for chunk in stream])
    assert text == "Hello world!"
    with pytest.raises(openai.NotFoundError) as info:
        await client.chat.completions.create(model="other", messages=[USER])
    assert info.value.code == "model_not_found"
    assert [model.id async for model in client.models.list()] == ["demo"]
    assert (await client.models.retrieve("demo")).id == "demo"


async def test_overload_has_retry_after():
    app = make_app(backend=FakeBackend(engine=FakeEngine(submit_error=unavailable("Gone.", 2.5))))
    async with client_of(app) as client:
        response = await client.post("/v1/chat/completions", json=BODY)
    assert response.status_code == 503
    assert response.headers["retry-after"] == "3"


async def test_api_keys():
    async with client_of(make_app(api_keys=("one", "two"))) as client:
        for headers in (
            {},
            {"Authorization": "Bearer no"},
            {"Authorization": "two"},
            {"Authorization": "Bearer é"},
        ):
            raw = {name: value.encode("latin-1") for name, value in headers.items()}
            response = await client.post("/v1/chat/completions", json=BODY, headers=raw)
            assert response.status_code == 401
            assert response.json()["error"]["code"] == "invalid_api_key"
            assert response.headers["www-authenticate"] == "Bearer"
        response = await client.post(
            "/v1/chat/completions", json=BODY, headers={"Authorization": "Bearer two"}
        )
        assert response.status_code == 200
        assert (await client.get("/v1/models")).status_code == 401
        assert (await client.get("/health")).status_code == 200


async def test_a_body_over_the_cap_is_413_with_and_without_its_length():
    async def pieces():
        for _ in range(100):
            yield b"x" * 100

    async with client_of(make_app(max_body_bytes=1000)) as client:
        for content in (b"x" * 1001, pieces()):
            response = await client.post("/v1/chat/completions", content=content)
            assert response.status_code == 413
            assert "1000 bytes" in response.json()["error"]["message"]


async def test_a_large_body_is_parsed_off_the_loop():
    big = {**BODY, "messages": [{"role": "user", "content": "x" * 300_000}], "max_tokens": 1}
    app = make_app(backend=FakeBackend(engine=FakeEngine(max_context=10**6)))
    async with client_of(app) as client:
        response = await client.post("/v1/chat/completions", json=big)
    assert response.json()["usage"]["prompt_tokens"] == 300_000


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/nope", 404),
        ("GET", "/v1/chat/completions", 405),
        ("GET", "/docs", 404),
        ("GET", "/v1/models/x", 404),
    ],
)
async def test_wrong_paths_get_error_objects(method, path, status):
    async with client_of(make_app()) as client:
        response = await client.request(method, path)
    assert response.status_code == status
    assert set(response.json()["error"]) == {"message", "type", "param", "code"}


async def test_malformed_json_is_an_error_object():
    async with client_of(make_app()) as client:
        response = await client.post("/v1/chat/completions", content=b"{nope")
    assert response.status_code == 400
    assert response.json()["error"]["code"] == "invalid_json"


async def test_health_fails_with_503():
    async def sick() -> dict[str, Any]:
        raise unavailable("The engine does not answer.")

    async with client_of(make_app(health=sick)) as client:
        response = await client.get("/health")
    assert response.status_code == 503
    assert "retry-after" in response.headers


async def test_a_bug_is_a_500_that_says_nothing_of_the_inside():
    async def broken() -> dict[str, Any]:
        raise KeyError("secret")

    transport = httpx2.ASGITransport(make_app(health=broken), raise_app_exceptions=False)
    async with httpx2.AsyncClient(transport=transport, base_url="http://test") as client:
        response = await client.get("/health")
    assert response.status_code == 500
    assert "secret" not in response.text


class Caller:
    """Calls an ASGI application directly, as a server does, and can hang up."""

    def __init__(self, app, body: dict[str, Any]) -> None:
        self.sent: list[dict[str, Any]] = []
        self._app = app
        self._body = json.dumps(body).encode()
        self._gone = asyncio.Event()
        self._delivered = False

    def start(self) -> asyncio.Task[None]:
        scope = {
            "type": "http",
            "asgi": {"version": "3.0", "spec_version": "2.3"},
            "http_version": "1.1",
            "method": "POST",
            "path": "/v1/chat/completions",
            "raw_path": b"/v1/chat/completions",
            "query_string": b"",
            "root_path": "",
            "headers": [],
            "scheme": "http",
            "server": ("test", 80),
            "client": ("test", 1),
        }
        return asyncio.create_task(self._app(scope, self._receive, self._send))

    def hang_up(self) -> None:
        self._gone.set()

    async def _receive(self) -> dict[str, Any]:
        if not self._delivered:
            self._delivered = True
            return {"type": "http.request", "body": self._body, "more_body": False}
        await self._gone.wait()
        return {"type": "http.disconnect"}

    async def _send(self, message: dict[str, Any]) -> None:
        self.sent.append(message)


async def test_a_client_that_hangs_up_in_a_stream_aborts_the_request():
    engine = FakeEngine(words_before_gate=1)
    engine.gate.clear()
    caller = Caller(make_app(backend=FakeBackend(engine=engine)), {**BODY, "stream": True})
    task = caller.start()
    await wait_until(lambda: any(b"Hello" in message.get("body", b"") for message in caller.sent))
    caller.hang_up()
    await task
    assert len(engine.aborted) == 1
    assert engine.running == {}


@pytest.mark.parametrize("stream", [True, False])
async def test_a_cancelled_call_aborts_the_request(stream):
    engine = FakeEngine(words_before_gate=1)
    engine.gate.clear()
    task = Caller(make_app(backend=FakeBackend(engine=engine)), {**BODY, "stream": stream}).start()
    await wait_until(lambda: len(engine.running) == 1)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert len(engine.aborted) == 1
    assert engine.running == {}


async def test_a_call_cancelled_while_media_are_fetched_stops_the_fetch():
    fetcher = FakeFetcher(hang={"slow"})
    content = [{"type": "image_url", "image_url": {"url": "slow"}}]
    body = {"model": "demo", "messages": [{"role": "user", "content": content}], "stream": True}
    task = Caller(make_app(fetcher=fetcher), body).start()
    await wait_until(lambda: fetcher.started == ["slow"])
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert fetcher.cancelled == ["slow"]


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
