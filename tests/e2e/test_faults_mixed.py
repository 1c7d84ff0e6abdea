"""Everything at once: good and malformed items of every kind while processes are killed and clients hang up, more
replicas as work piles up, and a restart that finds its embeddings on disk.

The right answers come from another server to which nothing happens.
"""

from __future__ import annotations

import json
import os
import random
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from functools import partial
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

import openai
import pytest

from tests.e2e.conftest import RunningServer, running_server
from tests.e2e.metrics import scrape, total
from tests.e2e.questions import (
    MALFORMED,
    Question,
    about_nothing,
    about_picture,
    about_sound,
    about_video,
    ask,
    ask_all,
)

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.slow,
    pytest.mark.skipif(sys.platform != "linux", reason="finds processes in /proc"),
]

ENCODER = "ray::ServeReplica:mm-pipeline:Encoder"
WORKER = "ray::DecoderWorker"
DIRECTORY = "ray::Directory"
GOOD = [
    *(about_picture(number) for number in range(60, 96)),
    *map(about_video, range(12)),
    *map(about_sound, range(12)),
    *map(about_nothing, range(8)),
]


def client_of(server: RunningServer) -> openai.OpenAI:
    return openai.OpenAI(api_key="none", base_url=f"{server.url}/v1", max_retries=0, timeout=120)


def wait_for(condition: Callable[[], Any], timeout_s: float) -> Any:
    deadline = time.monotonic() + timeout_s
    while not (found := condition()):
        assert time.monotonic() < deadline, "it never came to that"
        time.sleep(0.2)
    return found


@pytest.fixture(scope="module")
def expected(server: RunningServer) -> dict[str, str]:
    """The answers to all questions by name."""
    with client_of(server) as client:
        answers = ask_all(client, GOOD)
    found = dict(zip((question.name for question in GOOD), answers, strict=True))
    assert len(set(answers)) > len(GOOD) / 4, "a mix-up could not be seen"
    return found | {question.name: "415" for question in MALFORMED}


@pytest.fixture(scope="module")
def disk(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("disk")


@pytest.fixture(scope="module")
def cold(
    checkpoint: Path, disk: Path, expected: dict[str, str], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[RunningServer]:
    """A server with an empty folder, and a second encoder replica as soon as anything waits."""
    log = tmp_path_factory.mktemp("cold") / "log"
    options = {"disk_store": disk, "max_encoders": 2, "encoder_queue_s": 0.01}
    with running_server(checkpoint, log, **options) as running:
        yield running


def mixed(seed: int) -> list[Question]:
    """200 questions: every good one at least twice, and three in ten malformed."""
    rng = random.Random(seed)
    questions = [*GOOD, *GOOD, *rng.choices(GOOD, k=4), *rng.choices(MALFORMED, k=60)]
    rng.shuffle(questions)
    return questions


def victim(server: RunningServer, title: str) -> int:
    """One process of that title; of the decoders one at its work, if there is any soon."""
    for _ in range(100 if title == WORKER else 0):
        at_work = server.pids(f"{WORKER}.next")
        if at_work:
            return at_work[0]
    return int(wait_for(partial(server.pids, title), 60)[0])


def wrong_answers(server: RunningServer, expected: dict[str, str], seed: int) -> list[Any]:
    """Of the mixed questions, while one process after the other is killed."""
    questions = mixed(seed)
    done = threading.Semaphore(0)

    def one(question: Question) -> str:
        try:
            return ask(client, question)
        finally:
            done.release()

    with client_of(server) as client, ThreadPoolExecutor(8) as pool:
        answers = [pool.submit(one, question) for question in questions]
        for title in (ENCODER, WORKER, DIRECTORY):
            for _ in range(len(questions) // 5):
                done.acquire()
            os.kill(victim(server, title), signal.SIGKILL)
        found = [answer.result() for answer in answers]
    return [
        (question.name, answer, expected[question.name])
        for question, answer in zip(questions, found, strict=True)
        if answer != expected[question.name]
    ]


def test_more_work_than_one_replica_does_in_time_brings_a_second(cold):
    assert len(cold.pids(ENCODER)) == 1
    over = time.monotonic() + 120
    shades = iter(range(10_000))
    with client_of(cold) as client:
        while len(cold.pids(ENCODER)) == 1:
            assert time.monotonic() < over, "there is still one replica"
            ask_all(client, [about_picture(next(shades) % 256, side=96 + next(shades)) for _ in range(24)])


def test_clients_that_hang_up_leave_nothing_behind(cold):
    rng = random.Random(5)
    questions = [rng.choice([*GOOD, *MALFORMED]) for _ in range(60)]

    def hang_up(question: Question, after_s: float) -> None:
        body = {**question.body(), "stream": True, "max_tokens": 200, "ignore_eos": True}
        host, port = cold.url.removeprefix("http://").split(":")
        with closing(HTTPConnection(host, int(port), timeout=60)) as connection:
            headers = {"Content-Type": "application/json"}
            connection.request("POST", "/v1/chat/completions", json.dumps(body), headers)
            time.sleep(after_s)

    with ThreadPoolExecutor(12) as pool:
        list(pool.map(hang_up, questions, [rng.uniform(0.0, 0.6) for _ in questions]))

    def is_empty() -> bool:
        status, body = cold.health()
        engine = body.get("engine", {})
        return status == 200 and not body["active_requests"] + engine["num_running"] + engine["num_waiting"]

    wait_for(is_empty, 30)
    gauges = ("mm_queued_items", "mm_queued_bytes", "mm_queued_cost", "mm_cache_pinned_bytes")

    def is_counted_empty() -> bool:
        families = scrape(cold)
        return all(name in families and total(families[name], name) == 0 for name in gauges)

    # Ray's processes report every 10 seconds.
    wait_for(is_counted_empty, 60)


def test_killed_processes_cost_nobody_an_answer(cold, expected):
    assert wrong_answers(cold, expected, seed=1) == []


def test_a_restart_finds_what_lies_on_disk(cold, checkpoint, disk, expected, tmp_path_factory):
    # Two servers at a time are one too many for a small machine.
    cold.stop()
    log = tmp_path_factory.mktemp("warm") / "log"
    with running_server(checkpoint, log, disk_store=disk) as warm:
        assert wrong_answers(warm, expected, seed=2) == []

        def num_hits() -> float:
            return total(scrape(warm).get("mm_cache_hits", []), "mm_cache_hits_total", tier="disk")

        # Those that the killed replica had not reported yet are lost.
        wait_for(lambda: num_hits() > 20, 60)
        with client_of(warm) as client:
            assert ask(client, GOOD[0]) == expected[GOOD[0].name]
