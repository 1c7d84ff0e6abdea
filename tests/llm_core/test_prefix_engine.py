"""Answers with the prefix cache, preemption and eviction are those without, token by token, in float32."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch

from llm_core.core import EmbedSpan, GenerateRequest, OutputDelta
from llm_core.engine import Engine
from tests.llm_core.support import request, run, tiny_engine, tiny_model, tokens_of

WINDOW, PAGE = 8, 4


@pytest.fixture(scope="module")
def model():
    return tiny_model()


@contextmanager
def running(model, **settings: Any) -> Iterator[Engine]:
    engine = tiny_engine(model, **{"page_size": PAGE, "prefill_chunk_tokens": 16, **settings})
    engine.start()
    try:
        yield engine
    finally:
        engine.shutdown()


def tokens(count: int, seed: int) -> list[int]:
    return torch.randint(0, 96, (count,), generator=torch.Generator().manual_seed(seed)).tolist()


def picture(start: int, length: int, name: str) -> EmbedSpan:
    generator = torch.Generator().manual_seed(sum(name.encode()))
    vectors = torch.randn(length, 32, generator=generator)
    return EmbedSpan(start=start, length=length, content_key=name, embeddings=vectors)


def chat(engine: Engine, turns: int, name: str = "cat") -> tuple[list[list[int]], list[int]]:
    """A conversation about a picture that grows by its answers; the answers, and what was cached of each prompt."""
    known = tokens(21, 1)
    spans = (picture(6, 11, name),)
    answers, cached = [], []
    for turn in range(turns):
        known = known + tokens(9, 10 + turn)
        deltas = run(engine, request(known, f"t{turn}", spans=spans, max_tokens=7))
        answers.append(tokens_of(deltas))
        cached.append(deltas[-1].num_cached_tokens)
        known = known + answers[-1]
    return answers, cached


def test_turns_of_a_chat_with_a_picture_go_on_from_the_cache(model) -> None:
    with running(model, prefix_cache=False) as plain, running(model) as caching:
        expected, none = chat(plain, 5)
        answers, cached = chat(caching, 5)
        assert answers == expected
        assert none == [0] * 5
        # All but the last page of what was said before: the answer's last token never ran.
        assert cached == [0, *((30 + 16 * turn + 6) // PAGE * PAGE for turn in range(4))]
        # Another picture in the same place shares what comes before it, if a window is there, and nothing else.
        other, none = chat(plain, 2, "dog"), chat(caching, 2, "dog")
        assert other[0] == none[0]
        assert none[1][0] <= 6
        assert other[0] != expected[:2]


@pytest.fixture(scope="module")
def bordering(model) -> list[tuple[list[int], list[int]]]:
    """Prompts with shared beginnings that end at, before and behind every border, and their answers."""
    base = tokens(40, 3)
    lengths = [*range(WINDOW - 2, WINDOW + 3), 15, 16, 17, 33]
    prompts = [[*base[:length], *tokens(tail, 50 + length)] for length in lengths for tail in (1, 6)]
    with running(model, prefix_cache=False, check_invariants=False) as plain:
        return [
            (prompt, tokens_of(run(plain, request(prompt, str(number), max_tokens=3))))
            for number, prompt in enumerate(prompts)
        ]


@pytest.mark.parametrize("settings", [{"prefill_chunk_tokens": 5}, {"page_size": 1}, {"page_size": 16}])
def test_window_page_and_chunk_borders(model, bordering, settings) -> None:
    with running(model, **settings) as caching:
        for number, (prompt, answer) in enumerate(2 * bordering):
            assert tokens_of(run(caching, request(prompt, str(number), max_tokens=3))) == answer, len(prompt)
        assert caching.stats().num_cached_tokens > 0


def test_a_system_prompt_is_shared(model) -> None:
    system = tokens(64, 4)
    with running(model) as engine:
        cached = []
        for user in range(4):
            deltas = run(engine, request([*system, *tokens(12, 100 + user)], f"u{user}"))
            cached.append(deltas[-1].num_cached_tokens)
        assert cached == [0, 0, 64, 64]


def together(engine: Engine, items: list[GenerateRequest]) -> list[list[int]]:
    """Answers of requests that run at once."""
    found: dict[str, list[OutputDelta]] = {item.request_id: [] for item in items}
    done = threading.Event()

    def collect(delta: OutputDelta) -> None:
        found[delta.request_id].append(delta)
        if all(deltas and deltas[-1].finish_reason for deltas in found.values()):
            done.set()

    for item in items:
        engine.submit(item, collect)
    assert done.wait(120)
    return [tokens_of(found[item.request_id]) for item in items]


@pytest.mark.parametrize("caching", [True, False])
def test_who_gives_way_ends_with_the_same_answer(model, caching) -> None:
    items = [request(tokens(18 + 3 * n, 20 + n), f"r{n}", max_tokens=40) for n in range(6)]
    with running(model) as roomy:
        expected = [tokens_of(run(roomy, item)) for item in items]
    # 2 full layers, 2 sliding ones: pages of 2,560 and 5,120 bytes. Room for about two of them.
    with running(model, kv_memory_bytes=220_000, prefix_cache=caching, max_running=6) as tight:
        assert together(tight, items) == expected
        stats = tight.stats()
    assert stats.num_preemptions > 0


def test_eviction_between_turns_costs_time_only(model) -> None:
    with running(model, prefix_cache=False) as plain:
        expected, _ = chat(plain, 4)
    with running(model, kv_memory_bytes=220_000, max_running=2) as tight:
        known = 0
        answers: list[list[int]] = []
        said = tokens(21, 1)
        for turn in range(4):
            said = said + tokens(9, 10 + turn)
            deltas = run(tight, request(said, f"t{turn}", spans=(picture(6, 11, "cat"),), max_tokens=7))
            answers.append(tokens_of(deltas))
            known += deltas[-1].num_cached_tokens
            said = said + answers[-1]
            # Something long pushes everything else out.
            run(tight, request(tokens(tight.max_context - 10, 77 + turn), f"long{turn}", max_tokens=2))
        assert answers == expected
        assert known < 40


def test_a_request_ends_when_its_time_is_up(model) -> None:
    with running(model, max_running=1) as engine:
        first = engine.generate(request(tokens(8, 1), "first", max_tokens=2000))
        next(first)
        late = GenerateRequest(request_id="late", token_ids=(1, 2, 3), timeout_s=0.05)
        end = run(engine, late)[-1]
        assert end.finish_reason == "error"
        assert end.error == "the request was not done within its 0.05 s"
        first.close()
