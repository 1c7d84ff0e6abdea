"""The HTTP side over a fake chat service: bodies, bytes of the stream, status codes, keys, hang-ups."""

from __future__ import annotations

import asyncio
from typing import Any

import httpx2
import openai
import pytest

from mm_pipeline.errors import UnsupportedMediaError
from serve_apps.api.errors import unavailable
from tests.helpers import FakeBackend, FakeEngine, FakeFetcher, wait_until
from tests.serve_apps.http import BODY, USER, Caller, client_of, events_of, make_app


def openai_client(app) -> openai.AsyncOpenAI:
    return openai.AsyncOpenAI(
        api_key="k", base_url="http://test/v1", http_client=client_of(app), max_retries=0
    )


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
