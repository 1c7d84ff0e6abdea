"""Videos and sounds over real Ray Serve: answers, a decoder that is killed at its work, a client that hangs up."""

from __future__ import annotations

import base64
import json
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from http.client import HTTPConnection
from typing import Any

import openai
import pytest

from tests.e2e.conftest import RunningServer
from tests.e2e.media import CLIPS, data_url, picture, slow_video

pytestmark = pytest.mark.e2e

AT_WORK = "ray::DecoderWorker.next"
WORKER = "ray::DecoderWorker"
# All frames of the slow video, each as small as a frame can be.
SLOWLY = {"fps": 30, "max_pixels": 1024}


@pytest.fixture(scope="module")
def client(server: RunningServer) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(api_key="none", base_url=f"{server.url}/v1", max_retries=0, timeout=120) as client:
        yield client


@pytest.fixture(scope="module")
def slow() -> dict[str, Any]:
    return {"type": "video_url", "video_url": {"url": data_url(slow_video(), "video/mp4")}}


def ask(
    client: openai.OpenAI, *parts: dict[str, Any], wishes: dict[str, Any] | None = None, **options: Any
) -> Any:
    messages = [{"role": "user", "content": [*parts, {"type": "text", "text": "What is it?"}]}]
    options = {"model": "tiny", "max_tokens": 4, "temperature": 0, **options}
    extra = {"mm_processor_kwargs": wishes} if wishes else None
    return client.chat.completions.create(messages=messages, extra_body=extra, **options)


def wait_for(condition: Callable[[], Any], timeout_s: float) -> Any:
    deadline = time.monotonic() + timeout_s
    while not (found := condition()):
        assert time.monotonic() < deadline, "it never came to that"
        time.sleep(0.02)
    return found


def test_a_video_with_sound_from_a_url(client, web):
    answer = ask(client, {"type": "video_url", "video_url": {"url": f"{web}/ok.mp4"}})
    details = answer.usage.prompt_tokens_details
    assert (details.video_tokens, details.audio_tokens, details.image_tokens) == (320, 51, 0)
    assert {"encoder_decode_ms", "encoder_encode_ms"} <= set(answer.timings)


def test_a_sound_beside_a_picture(client):
    data = base64.b64encode((CLIPS / "phone_number.wav").read_bytes()).decode()
    sound = {"type": "input_audio", "input_audio": {"data": data, "format": "wav"}}
    image = {"type": "image_url", "image_url": {"url": data_url(picture())}}
    details = ask(client, image, sound).usage.prompt_tokens_details
    assert (details.video_tokens, details.audio_tokens, details.image_tokens) == (0, 11, 12)


def test_a_video_over_the_context_is_refused_before_it_is_encoded(client, slow):
    with pytest.raises(openai.BadRequestError, match="tokens of frames; the context has") as info:
        ask(client, slow, wishes={"fps": 30})
    assert (info.value.code, info.value.param) == ("context_length_exceeded", "messages.0.content.0")


@pytest.mark.skipif(sys.platform != "linux", reason="finds the decoder's process in /proc")
def test_an_item_whose_decoders_die_at_their_work_costs_one_request(server, client, slow, web):
    before = set(server.pids(WORKER))
    with ThreadPoolExecutor(1) as threads:
        request = threads.submit(ask, client, slow, wishes=SLOWLY)
        (pid,) = wait_for(lambda: server.pids(AT_WORK), 30)
        os.kill(pid, signal.SIGKILL)
        # It is tried once more: the item need not have been at fault.
        (pid,) = wait_for(lambda: set(server.pids(AT_WORK)) - {pid}, 60)
        image = {"type": "image_url", "image_url": {"url": data_url(picture())}}
        assert ask(client, image).usage.completion_tokens > 0
        assert not request.done()
        os.kill(pid, signal.SIGKILL)
        error = request.exception(timeout=30)
    assert isinstance(error, openai.APIStatusError)
    assert (error.status_code, error.code, error.param) == (415, "unsupported_media", "messages.0.content.0")
    assert "the decoder crashed on this item" in error.message
    assert server.health()[0] == 200
    answer = ask(client, {"type": "video_url", "video_url": {"url": f"{web}/ok.mp4"}})
    assert answer.usage.prompt_tokens_details.video_tokens == 320
    wait_for(lambda: len(server.pids(WORKER)) == len(before), 60)


@pytest.mark.skipif(sys.platform != "linux", reason="finds the decoder's process in /proc")
@pytest.mark.parametrize("stream", [True, False])
def test_a_client_that_hangs_up_stops_the_decoding(server, slow, stream):
    body = {"model": "tiny", "stream": stream, "mm_processor_kwargs": SLOWLY}
    body["messages"] = [{"role": "user", "content": [slow]}]
    headers = {"Content-Type": "application/json"}
    with closing(HTTPConnection(server.url.removeprefix("http://"), timeout=60)) as connection:
        connection.request("POST", "/v1/chat/completions", json.dumps(body), headers)
        (pid,) = wait_for(lambda: server.pids(AT_WORK), 60)
    # The whole video takes many seconds.
    wait_for(lambda: pid not in server.pids(AT_WORK), 5)
    time.sleep(0.3)
    assert server.pids(AT_WORK) == []
    # It came to its end by itself and was not killed.
    assert pid in server.pids(WORKER)
