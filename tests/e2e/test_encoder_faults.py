"""The encoder's store and faults over real Ray Serve: hits, killed processes, bad items among good ones."""

from __future__ import annotations

import os
import random
import signal
import sys
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import openai
import pytest

from tests.e2e.conftest import RunningServer
from tests.e2e.media import data_url, picture

pytestmark = pytest.mark.e2e

ENCODER = "ray::ServeReplica:mm-pipeline:Encoder"
DIRECTORY = "ray::Directory"
BAD = data_url(b"this is no picture")


@pytest.fixture(scope="module")
def client(server: RunningServer) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(api_key="none", base_url=f"{server.url}/v1", max_retries=0, timeout=120) as client:
        yield client


def ask(client: openai.OpenAI, url: str) -> Any:
    content = [{"type": "image_url", "image_url": {"url": url}}, {"type": "text", "text": "What is it?"}]
    return client.chat.completions.create(
        model="tiny", messages=[{"role": "user", "content": content}], max_tokens=4, temperature=0
    )


def ask_until_answered(client: openai.OpenAI, url: str, timeout_s: float = 90.0) -> Any:
    """As a client would that heeds 503; any other error is a failure."""
    deadline = time.monotonic() + timeout_s
    while True:
        try:
            return ask(client, url)
        except openai.InternalServerError as error:
            if error.status_code != 503 or "Retry-After" not in error.response.headers:
                raise
            if time.monotonic() > deadline:
                raise
            time.sleep(0.5)


def pictures(first: int, count: int) -> list[str]:
    """Different ones, as data URLs."""
    return [data_url(picture(shade=first + number)) for number in range(count)]


def test_the_second_request_for_a_picture_is_a_hit(client):
    url = data_url(picture(shade=201))
    first, second = ask(client, url), ask(client, url)
    assert "encoder_batch_ms" in first.timings
    assert "encoder_batch_ms" not in second.timings
    assert second.timings["encoder_cache_ms"] > 0
    assert second.choices[0].message.content == first.choices[0].message.content


def test_the_same_picture_in_two_sizes_is_two_pictures(client):
    small, large = picture(shade=202, width=96, height=64), picture(shade=202, width=192, height=128)
    answers = [ask(client, data_url(data)) for data in (small, large, small, large)]
    tokens = [answer.usage.prompt_tokens_details.image_tokens for answer in answers]
    assert tokens[0] != tokens[1]
    assert tokens[:2] == tokens[2:]


def test_bad_items_fail_alone(client):
    urls = pictures(30, 14)
    expected = {url: ask(client, url).choices[0].message.content for url in urls}
    mixed = [*urls, *[BAD] * 6] * 2
    random.Random(1).shuffle(mixed)

    def outcome(url: str) -> str:
        try:
            return str(ask(client, url).choices[0].message.content)
        except openai.APIStatusError as error:
            return f"{error.status_code}"

    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(outcome, mixed))
    wrong = [answer for url, answer in zip(mixed, found, strict=True) if answer != expected.get(url, "415")]
    assert wrong == []


@pytest.mark.skipif(sys.platform != "linux", reason="finds processes in /proc")
@pytest.mark.parametrize("title", [DIRECTORY, ENCODER])
def test_a_killed_process_costs_nobody_an_answer(server, client, title):
    urls = pictures(60, 12)
    expected = {url: ask(client, url).choices[0].message.content for url in urls}
    asked = [*urls, *urls, *urls]
    with ThreadPoolExecutor(6) as pool:
        answers = [pool.submit(ask_until_answered, client, url) for url in asked]
        while sum(answer.done() for answer in answers) < 6:
            time.sleep(0.01)
        for pid in server.pids(title):
            os.kill(pid, signal.SIGKILL)
        found = [answer.result().choices[0].message.content for answer in answers]
    wrong = Counter(url for url, answer in zip(asked, found, strict=True) if answer != expected[url])
    assert not wrong
    assert ask_until_answered(client, urls[0]).choices[0].message.content == expected[urls[0]]
