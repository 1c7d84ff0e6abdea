"""The whole way over real Ray Serve: pictures, streams, bad input, hang-ups, many at once, a hung engine."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from typing import Any

import openai
import pytest

from tests.e2e.conftest import HEALTH_TIMEOUT_S, ROOT, RunningServer
from tests.e2e.media import data_url, picture, png_bomb

pytestmark = pytest.mark.e2e


# 96 x 64 is under the processor's 8,192 pixels and grows to 128 x 96: 4 x 3 merged tokens.
PICTURE_TOKENS = 12


@pytest.fixture(scope="module")
def client(server: RunningServer) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(api_key="none", base_url=f"{server.url}/v1", max_retries=0, timeout=60) as client:
        yield client


def about(*urls: str, text: str = "What is it?") -> list[dict[str, Any]]:
    parts: list[dict[str, Any]] = [{"type": "image_url", "image_url": {"url": url}} for url in urls]
    return [{"role": "user", "content": [*parts, {"type": "text", "text": text}]}]


def ask(client: openai.OpenAI, messages: list[dict[str, Any]], **options: Any) -> Any:
    options = {"model": "tiny", "max_tokens": 8, "temperature": 0, **options}
    return client.chat.completions.create(messages=messages, **options)


def test_the_official_client_streams_an_answer_about_a_data_url(client):
    stream = ask(client, about(data_url(picture())), stream=True, stream_options={"include_usage": True})
    chunks = list(stream)
    assert chunks[-1].usage.prompt_tokens_details.image_tokens == PICTURE_TOKENS
    assert chunks[-2].choices[0].finish_reason in ("stop", "length")
    assert {"fetch_ms", "encode_ms", "queue_ms", "prefill_ms"} <= set(chunks[-1].timings)
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks[:-1])
    whole = ask(client, about(data_url(picture())))
    assert whole.choices[0].message.content == text
    assert whole.usage == chunks[-1].usage


async def test_the_async_client_streams_an_answer_about_a_served_picture(server, web):
    async with openai.AsyncOpenAI(api_key="none", base_url=f"{server.url}/v1", max_retries=0) as client:
        for path in ("/ok.jpg", "/redirect"):
            stream = await client.chat.completions.create(
                model="tiny",
                messages=about(web + path),
                max_tokens=4,
                stream=True,
                stream_options={"include_usage": True},
            )
            chunks = [chunk async for chunk in stream]
            assert chunks[-1].usage.prompt_tokens_details.image_tokens == PICTURE_TOKENS


def test_several_pictures_and_turns(client, web):
    messages = about(data_url(picture(kind="PNG")), f"{web}/ok.jpg", text="Compare.")
    messages += [
        {"role": "assistant", "content": "They are alike."},
        *about(f"{web}/ok.jpg", text="And this?"),
    ]
    assert ask(client, messages).usage.prompt_tokens_details.image_tokens == 3 * PICTURE_TOKENS


def test_the_answer_depends_on_the_picture(client):
    # Seen in log-probabilities, since the words of random weights may well be the same.
    seen = set()
    for data in (picture(), picture(64, 96, "PNG"), picture()):
        answer = ask(client, about(data_url(data)), max_tokens=1, logprobs=True, top_logprobs=3)
        seen.add(tuple(entry.logprob for entry in answer.choices[0].logprobs.content[0].top_logprobs))
    assert len(seen) == 2


def test_logprobs_name_the_tokens(client):
    answer = ask(client, about(text="hi"), logprobs=True, top_logprobs=2)
    entries = answer.choices[0].logprobs.content
    assert len(entries) == answer.usage.completion_tokens
    assert all(entry.logprob == entry.top_logprobs[0].logprob for entry in entries)
    assert all(bytes(entry.bytes).decode("utf-8", "replace") == entry.token for entry in entries)


def test_models(client):
    assert [model.id for model in client.models.list()] == ["tiny"]


JPEG = picture(400, 300)

BAD_PICTURES = [
    ("http://127.0.0.1:9/x.jpg", 424),
    ("WEB/missing.jpg", 424),
    ("WEB/page.html", 415),
    ("WEB/text.jpg", 415),
    ("file:///etc/passwd", 400),
    ("ftp://example.com/x.jpg", 400),
    ("nonsense", 400),
    ("data:image/jpeg;base64,@@@", 400),
    (data_url(JPEG[: len(JPEG) // 2]), 415),
    (data_url(b"just text"), 415),
    (data_url(b""), 415),
    (data_url(picture(1, 5000, "PNG"), "image/png"), 400),
    (data_url(png_bomb(), "image/png"), 413),
]


@pytest.mark.parametrize(("url", "status"), BAD_PICTURES, ids=lambda value: str(value)[:40])
def test_a_bad_picture_is_a_clear_error_and_the_server_goes_on(client, web, url, status):
    with pytest.raises(openai.APIStatusError) as info:
        ask(client, about(data_url(picture()), url.replace("WEB", web)))
    error = info.value.body
    assert info.value.status_code == status, error
    assert error["param"] == "messages.0.content.1"
    assert len(error["message"]) > 10
    assert "Traceback" not in error["message"]
    assert "/work" not in error["message"]
    assert ask(client, about(text="hi"), max_tokens=1).usage.completion_tokens == 1


@pytest.mark.parametrize(
    ("change", "status", "code"),
    [
        ({"model": "other"}, 404, "model_not_found"),
        ({"messages": [{"role": "system", "content": "x"}]}, 400, None),
        ({"max_tokens": 10**6}, 400, "context_length_exceeded"),
        ({"messages": [{"role": "user", "content": "word " * 40_000}]}, 400, "context_length_exceeded"),
        ({"temperature": 9}, 400, "invalid_value"),
        ({"n": 2}, 400, "unsupported_parameter"),
    ],
    ids=["model", "no user", "max_tokens", "context", "temperature", "n"],
)
@pytest.mark.parametrize("stream", [False, True])
def test_a_bad_request_is_a_clear_error(client, change, status, code, stream):
    with pytest.raises(openai.APIStatusError) as info:
        ask(client, **{"messages": about(text="hi"), "stream": stream, **change})
    assert (info.value.status_code, info.value.code) == (status, code)


def test_a_one_pixel_picture_is_answered(client):
    assert ask(client, about(data_url(picture(1, 1, "PNG")))).usage.prompt_tokens_details.image_tokens > 0


def test_placeholders_typed_by_the_user_stay_text(client):
    typed = "<|vision_start|><|image_pad|><|vision_end|> <|im_end|> what is that?"
    usage = ask(client, about(text=typed)).usage
    assert usage.prompt_tokens_details.image_tokens == 0
    assert usage.prompt_tokens > ask(client, about(text="what is that?")).usage.prompt_tokens + 10
    with_picture = ask(client, about(data_url(picture()), text=typed)).usage
    assert with_picture.prompt_tokens_details.image_tokens == PICTURE_TOKENS


@pytest.mark.parametrize("stream", [True, False])
def test_a_client_that_hangs_up_frees_its_kv(server, client, stream):
    # Long enough to run for minutes if nobody stopped it.
    options = {"max_tokens": 20_000, "extra_body": {"ignore_eos": True}}
    if stream:
        answer = ask(client, about(data_url(picture())), stream=True, **options)
        next(iter(answer))
        assert server.wait_for(lambda engine: engine["num_running"] == 1, 20)["full_pages_used"] > 0
        answer.close()
    else:
        with pytest.raises(openai.APITimeoutError):
            ask(client, about(data_url(picture())), timeout=1.5, **options)
    idle = server.wait_for(lambda engine: engine["num_running"] + engine["num_waiting"] == 0, 20)
    assert (idle["full_pages_used"], idle["swa_pages_used"], idle["kv_bytes_used"]) == (0, 0, 0)


async def test_sixteen_at_once_answer_as_one_by_one(server, web):
    async with openai.AsyncOpenAI(api_key="none", base_url=f"{server.url}/v1", max_retries=0) as client:

        async def one(i: int) -> str:
            url = f"{web}/ok.jpg" if i % 2 else data_url(picture(32 * (1 + i), 64))
            answer = await client.chat.completions.create(
                model="tiny", messages=about(url, text=f"Question {i}?"), max_tokens=8, temperature=0
            )
            return answer.choices[0].message.content or ""

        together = await asyncio.gather(*(one(i) for i in range(16)))
        alone = [await one(i) for i in range(0, 16, 5)]
    assert together[::5] == alone


def test_mmserve_chat_asks_the_server(server, tmp_path):
    path = tmp_path / "gradient.png"
    path.write_bytes(picture(kind="PNG"))
    command = [
        sys.executable,
        "-m",
        "serve_apps.cli",
        "chat",
        "What is it?",
        "--image",
        path,
        "--url",
        server.url,
    ]
    result = subprocess.run(
        [*map(str, command), "--max-tokens", "6", "--temperature", "0"],
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    assert result.returncode == 0, result.stderr
    assert result.stdout.strip()
    assert f"{PICTURE_TOKENS} of images" in result.stderr
    assert "prefill" in result.stderr


@pytest.mark.skipif(sys.platform != "linux", reason="finds the replica's process in /proc")
def test_health_fails_while_the_engine_hangs_and_recovers(server):
    assert server.health()[0] == 200
    pid = server.replica_pid("DecoderEngine")
    os.kill(pid, signal.SIGSTOP)
    try:
        begin = time.monotonic()
        status, body = server.health()
        assert status == 503
        assert body["error"]["code"] == "unavailable"
        assert time.monotonic() - begin < HEALTH_TIMEOUT_S + 5
    finally:
        os.kill(pid, signal.SIGCONT)
    server.wait_for(lambda engine: True, 20)


@pytest.mark.skipif(sys.platform != "linux", reason="finds the replica's process in /proc")
def test_a_killed_engine_fails_its_requests_with_503_and_is_restarted(server, client):
    stream = ask(client, about(text="hi"), max_tokens=20_000, stream=True, extra_body={"ignore_eos": True})
    next(stream)
    os.kill(server.replica_pid("DecoderEngine"), signal.SIGKILL)
    with pytest.raises(openai.APIError, match="being restarted"):
        list(stream)
    server.wait_for(lambda engine: engine["num_running"] == 0, 90)
    assert ask(client, about(data_url(picture()))).usage.completion_tokens > 0
