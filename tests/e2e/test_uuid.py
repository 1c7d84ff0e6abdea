"""Media under a client's own key over real Ray Serve: left out once they are cached, and whose key it is."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from uuid import uuid4

import openai
import pytest

from tests.e2e.conftest import RunningServer
from tests.e2e.media import CLIPS, data_url, picture

pytestmark = pytest.mark.e2e

ENCODER = "ray::ServeReplica:mm-pipeline:Encoder"
DIRECTORY = "ray::Directory"
NOWHERE = "http://127.0.0.1:9/nothing"
# The clip with an empty box at its end, since others count on encoding the clip itself.
OTHER_CLIP = (CLIPS / "traffic_light.mp4").read_bytes() + b"\0\0\0\x08free"
PARTS = {
    "image_url": {"url": data_url(picture(shade=150))},
    "video_url": {"url": data_url(OTHER_CLIP, "video/mp4")},
    "audio_url": {"url": data_url((CLIPS / "phone_number.wav").read_bytes(), "audio/wav")},
}

Ask = Callable[..., Any]


def asker(client: openai.OpenAI) -> Ask:
    def ask(part: dict[str, Any], **fields: Any) -> Any:
        content = [part, {"type": "text", "text": "What is it?"}]
        return client.chat.completions.create(
            model="tiny",
            messages=[{"role": "user", "content": content}],
            max_tokens=2,
            temperature=0,
            logprobs=True,
            extra_body=fields,
        )

    return ask


@pytest.fixture(scope="module")
def client(server: RunningServer) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(api_key="mine", base_url=f"{server.url}/v1", max_retries=0, timeout=60) as client:
        yield client


@pytest.fixture(scope="module")
def ask(client: openai.OpenAI) -> Ask:
    return asker(client)


def alike(one: Any, other: Any) -> bool:
    """The same tokens and, but for rounding, log-probabilities: other embeddings would change them."""
    tokens = [answer.choices[0].logprobs.content for answer in (one, other)]
    return all(a.token == b.token and abs(a.logprob - b.logprob) < 1e-4 for a, b in zip(*tokens, strict=True))


def media_tokens(answer: Any) -> dict[str, int]:
    details = answer.usage.prompt_tokens_details.model_dump()
    return {name: details[f"{name}_tokens"] for name in ("image", "video", "audio")}


def assert_unknown(ask: Ask, part: dict[str, Any], **fields: Any) -> None:
    with pytest.raises(openai.NotFoundError) as info:
        ask(part, **fields)
    assert (info.value.code, info.value.param) == ("media_not_cached", "messages.0.content.0")


def ask_until_answered(ask: Ask, part: dict[str, Any], timeout_s: float = 90.0) -> Any:
    """As a client would that heeds 503; any other error is raised."""
    deadline = time.monotonic() + timeout_s
    while True:
        try:
            return ask(part)
        except openai.InternalServerError as error:
            if error.status_code != 503 or time.monotonic() > deadline:
                raise
            time.sleep(0.5)


@pytest.mark.parametrize("kind", PARTS)
def test_cached_media_may_be_left_out_and_are_not_fetched(ask, kind):
    uuid = uuid4().hex
    first = ask({"type": kind, kind: PARTS[kind], "uuid": uuid})
    for part in ({"type": kind, "uuid": uuid}, {"type": kind, kind: {"url": NOWHERE}, "uuid": uuid}):
        again = ask(part)
        assert alike(again, first)
        # More of the prompt may be cached now.
        assert media_tokens(again) == media_tokens(first)
        assert again.usage.prompt_tokens == first.usage.prompt_tokens
        assert {name for name in again.timings if name.startswith("encoder_")} == {"encoder_cache_ms"}


def test_inline_sound_has_the_same_keys_as_sound_by_url(ask):
    data = PARTS["audio_url"]["url"].partition(",")[2]
    first = ask({"type": "input_audio", "input_audio": {"data": data, "format": "wav"}, "uuid": "inline"})
    for part in ({"type": "input_audio", "input_audio": None}, {"type": "audio_url"}):
        assert alike(ask({**part, "uuid": "inline"}), first)


def test_a_uuid_is_known_only_as_it_was_sent(server, client, ask):
    part = {"type": "image_url", "image_url": {"url": data_url(picture(shade=151))}, "uuid": "cat"}
    first = ask(part)
    bare = {"type": "image_url", "uuid": "cat"}
    assert_unknown(asker(client.with_options(api_key="another's")), bare)
    assert_unknown(ask, {**bare, "uuid": "dog"})
    assert_unknown(ask, {**bare, "type": "video_url"})
    assert_unknown(ask, bare, mm_processor_kwargs={"max_pixels": 4096})
    # Their own picture, under the name that is taken here.
    other = {**part, "image_url": {"url": data_url(picture(shade=152))}}
    theirs = asker(client.with_options(api_key="another's"))(other)
    assert not alike(theirs, first)
    assert alike(ask(bare), first)


def test_a_bad_uuid_or_option_is_a_clear_error(ask):
    with pytest.raises(openai.BadRequestError, match="may have 128 characters, but 129 came") as info:
        ask({"type": "image_url", "image_url": PARTS["image_url"], "uuid": "x" * 129})
    assert info.value.param == "messages.0.content.0.uuid"
    with pytest.raises(openai.BadRequestError, match="max_pixels is 5") as info:
        ask({"type": "image_url", "uuid": "x"}, mm_processor_kwargs={"max_pixels": 5})
    assert info.value.param == "mm_processor_kwargs.max_pixels"


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="finds processes in /proc")
def test_media_whose_embeddings_are_lost_are_asked_for_or_encoded_again(server, ask):
    part = {"type": "image_url", "image_url": {"url": data_url(picture(shade=153))}, "uuid": "lost"}
    bare = {"type": "image_url", "uuid": "lost"}
    first = ask(part)
    for pid in server.pids(ENCODER):
        os.kill(pid, signal.SIGKILL)
    # The name outlives the replica, whose embeddings went with it.
    with pytest.raises(openai.NotFoundError):
        ask_until_answered(ask, bare)
    again = ask_until_answered(ask, part)
    assert alike(again, first)
    assert "encoder_batch_ms" in again.timings
    assert alike(ask(bare), first)


@pytest.mark.skipif(sys.platform != "linux", reason="finds processes in /proc")
def test_names_outlive_the_directory(server, ask):
    part = {"type": "image_url", "image_url": {"url": data_url(picture(shade=154))}, "uuid": "kept"}
    bare = {"type": "image_url", "uuid": "kept"}
    first = ask(part)
    for pid in server.pids(DIRECTORY):
        os.kill(pid, signal.SIGKILL)
    deadline = time.monotonic() + 30
    while True:
        # Until it has been told again what there is, media are asked for.
        try:
            assert alike(ask(bare), first)
            return
        except openai.NotFoundError:
            assert time.monotonic() < deadline
            time.sleep(0.2)


def test_many_clients_with_the_same_names_get_their_own_media(client):
    pictures = [data_url(picture(shade=40 * number + 5)) for number in range(6)]
    clients = [client.with_options(api_key=f"client-{number}") for number in range(6)]

    def both(number: int) -> tuple[Any, Any]:
        own = asker(clients[number])
        part = {"type": "image_url", "uuid": "mine"}
        return own({**part, "image_url": {"url": pictures[number]}}), own(part)

    with ThreadPoolExecutor(6) as pool:
        pairs = list(pool.map(both, range(6)))
    agree = [[alike(sent, left_out) for _, left_out in pairs] for sent, _ in pairs]
    assert agree == [[row == column for column in range(6)] for row in range(6)]
