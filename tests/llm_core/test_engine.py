"""The engine as its callers meet it: batching, bounds, ends, errors, and memory given back."""

from __future__ import annotations

import threading
import time

import pytest
import torch

from llm_core.core import EmbedSpan, OutputDelta
from llm_core.engine import Engine, EngineSettings
from llm_core.errors import ContextTooLongError, EngineDeadError, EngineOverloadedError, RequestError
from tests.llm_core.support import request, run, tiny_engine, tiny_model, tokens_of


@pytest.fixture(scope="module")
def model():
    return tiny_model()


@pytest.fixture
def engine(model):
    made = tiny_engine(model, prefill_chunk_tokens=32)
    made.start()
    yield made
    made.shutdown()


def prompts(count: int, longest: int) -> list[list[int]]:
    generator = torch.Generator().manual_seed(5)
    lengths = torch.randint(1, longest, (count,), generator=generator).tolist()
    return [torch.randint(0, 96, (length,), generator=generator).tolist() for length in lengths]


def wait_until(condition, timeout_s: float = 20.0) -> None:
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.005)


def all_memory_is_free(engine: Engine) -> bool:
    stats = engine.stats()
    return stats.full_pages_used == 0 and stats.swa_pages_used == 0 and stats.num_running == 0


def test_64_requests_at_once_answer_as_one_by_one(engine) -> None:
    items = [request(ids, f"r{i}", max_tokens=3 + i % 17) for i, ids in enumerate(prompts(64, 150))]
    alone = [tokens_of(run(engine, item)) for item in items]
    together: dict[str, list[OutputDelta]] = {item.request_id: [] for item in items}
    done = threading.Barrier(2)

    def collect(delta: OutputDelta) -> None:
        together[delta.request_id].append(delta)
        if all(deltas and deltas[-1].finish_reason for deltas in together.values()):
            done.wait()

    most_running = 0
    for item in items:
        engine.submit(item, collect)
        most_running = max(most_running, engine.stats().num_running)
    done.wait(60)
    assert [tokens_of(together[item.request_id]) for item in items] == alone
    assert [len(tokens) for tokens in alone] == [3 + i % 17 for i in range(64)]
    wait_until(lambda: all_memory_is_free(engine))


@pytest.mark.parametrize("settings", [{"page_size": 1}, {"prefill_chunk_tokens": 3}, {"max_running": 2}])
def test_tokens_do_not_depend_on_pages_chunks_or_batch(model, engine, settings) -> None:
    items = [request(ids, f"r{i}") for i, ids in enumerate(prompts(5, 60))]
    expected = [tokens_of(run(engine, item)) for item in items]
    other = tiny_engine(model, **settings)
    other.start()
    try:
        assert [tokens_of(run(other, item)) for item in items] == expected
    finally:
        other.shutdown()


def test_swa_pages_stay_bounded_while_full_pages_grow(model) -> None:
    engine = tiny_engine(model, prefill_chunk_tokens=16, page_size=4)
    bound = engine.pool.max_swa_pages(10**6)
    seen: list[tuple[int, int]] = []
    engine.start()
    try:
        item = request([1] * 900, max_tokens=100)
        for delta in engine.generate(item):
            stats = engine.stats()
            if delta.finish_reason is None:
                seen.append((stats.full_pages_used, stats.swa_pages_used))
    finally:
        engine.shutdown()
    assert max(swa for _full, swa in seen) <= bound == 7
    assert max(full for full, _swa in seen) >= 245


def test_kv_of_a_long_sequence_is_its_closed_form_in_accounting_and_in_tensors(model) -> None:
    """Full layers hold every token; SWA layers hold the window: heads x (K + V width) x 4 bytes each."""
    engine = tiny_engine(model, prefill_chunk_tokens=64, page_size=4)
    engine.start()
    try:
        deltas = engine.generate(request([1] * 1000, max_tokens=50))
        next(deltas)
        next(deltas)
        stats = engine.stats()
        per_token_full, per_token_swa = 2 * 2 * (24 + 16) * 4, 2 * 4 * (24 + 16) * 4
        assert stats.kv_bytes_used == 4 * (
            stats.full_pages_used * per_token_full + stats.swa_pages_used * per_token_swa
        )
        assert stats.full_pages_used * 4 >= 1000
        assert stats.swa_pages_used <= (8 + 1) // 4 + 2
        full_width = 1000 * (per_token_full + per_token_swa)
        assert stats.kv_bytes_used < 0.4 * full_width
        deltas.close()
    finally:
        engine.shutdown()


def test_media_vectors_replace_embeddings_and_placeholder_ids_do_not_matter(engine, model) -> None:
    token_ids = prompts(1, 60)[0] + list(range(30))
    with torch.inference_mode():
        own = model.embed(torch.tensor(token_ids[4:12]))
    plain = tokens_of(run(engine, request(token_ids)))
    span = EmbedSpan(start=4, length=8, content_key="k", embeddings=own)
    outside = token_ids[:4] + [10**6] * 8 + token_ids[12:]
    assert tokens_of(run(engine, request(outside, spans=(span,)))) == plain
    # Another picture has another key; one key stands for one content.
    other = EmbedSpan(start=4, length=8, content_key="l", embeddings=torch.randn(8, 32) * 3)
    assert tokens_of(run(engine, request(outside, spans=(other,)))) != plain


def test_a_span_across_chunk_borders(model, engine) -> None:
    vectors = torch.randn(70, 32)
    item = request([3] * 100, spans=(EmbedSpan(start=13, length=70, content_key="k", embeddings=vectors),))
    whole = tiny_engine(model, prefill_chunk_tokens=512)
    whole.start()
    try:
        assert tokens_of(run(whole, item)) == tokens_of(run(engine, item))
    finally:
        whole.shutdown()


def test_an_answer_ends_at_eos_stop_ids_stop_strings_and_length(engine) -> None:
    token_ids = prompts(3, 40)[2]
    free = run(engine, request(token_ids, max_tokens=12))
    tokens, text = tokens_of(free), "".join(delta.text for delta in free)
    assert free[-1].finish_reason == "length"
    assert len(text) == 12
    assert free[-1].num_output_tokens == 12
    assert free[-1].num_prompt_tokens == len(token_ids)

    first = tokens.index(tokens[5])
    stopped = run(engine, request(token_ids, max_tokens=12, stop_token_ids=(tokens[5],)))
    assert stopped[-1].finish_reason == "stop"
    assert tokens_of(stopped) == tokens[: first + 1]
    assert "".join(delta.text for delta in stopped) == text[:first]

    stop = text[4:7]
    cut = run(engine, request(token_ids, max_tokens=12, stop=(stop, "zzzz")))
    assert cut[-1].finish_reason == "stop"
    assert "".join(delta.text for delta in cut) == text[: text.index(stop)]


def test_eos_of_the_config_ends_unless_ignored(model) -> None:
    token_ids = prompts(3, 40)[2]
    probe = tiny_engine(model)
    probe.start()
    eos = tokens_of(run(probe, request(token_ids)))[2]
    probe.shutdown()
    other = tiny_engine(tiny_model(eos_token_id=[eos, 95]))
    other.start()
    try:
        ended = run(other, request(token_ids, ignore_eos=False))
        assert tokens_of(ended)[-1] == eos
        assert ended[-1].finish_reason == "stop"
        assert run(other, request(token_ids))[-1].finish_reason == "length"
    finally:
        other.shutdown()


def test_a_seed_repeats_whatever_else_runs(engine) -> None:
    items = [
        request(ids, f"s{i}", temperature=1.0, seed=i, top_p=0.9) for i, ids in enumerate(prompts(8, 50))
    ]
    alone = [tokens_of(run(engine, item)) for item in items]
    results: dict[str, list[OutputDelta]] = {item.request_id: [] for item in items}
    for item in items:
        engine.submit(item, lambda delta: results[delta.request_id].append(delta))
    wait_until(lambda: all(r and r[-1].finish_reason for r in results.values()))
    assert [tokens_of(results[item.request_id]) for item in items] == alone


def test_logprobs_are_the_models_own(engine, model) -> None:
    deltas = run(engine, request([1, 2, 3], num_logprobs=3, max_tokens=4))
    for delta in deltas:
        (detail,) = delta.logprobs
        assert detail.token_id == delta.token_ids[0] == detail.top[0][0]
        assert detail.logprob == pytest.approx(detail.top[0][1])
        assert len(detail.top) == 3
        assert 0 >= detail.top[0][1] >= detail.top[1][1] >= detail.top[2][1]
    assert not run(engine, request([1, 2, 3]))[0].logprobs


def test_abort_frees_running_and_waiting_requests(model) -> None:
    engine = tiny_engine(model, max_running=1)
    engine.start()
    try:
        ended: dict[str, str] = {}

        def receive(delta: OutputDelta) -> None:
            if delta.finish_reason:
                ended[delta.request_id] = delta.finish_reason

        for name in ("running", "waiting", "last"):
            engine.submit(request([1] * 50, name, max_tokens=900), receive)
        wait_until(lambda: engine.stats().num_running == 1)
        engine.abort("waiting")
        engine.abort("running")
        engine.abort("nobody")
        wait_until(lambda: len(ended) == 2)
        wait_until(lambda: engine.stats().num_running == 1)
        engine.abort("last")
        wait_until(lambda: all_memory_is_free(engine))
        assert set(ended.values()) == {"abort"}
        engine.abort("last")
        assert len(run(engine, request([1], max_tokens=2))) == 2
    finally:
        engine.shutdown()


def test_leaving_an_answer_frees_its_memory(engine) -> None:
    deltas = engine.generate(request([1] * 50, max_tokens=900))
    next(deltas)
    next(deltas)
    deltas.close()
    wait_until(lambda: all_memory_is_free(engine))


def test_a_receiver_that_fails_at_shutdown_keeps_no_other_from_its_end(model) -> None:
    engine = tiny_engine(model)
    engine.start()
    ends: list[str | None] = []

    def fail_at_the_end(delta: OutputDelta) -> None:
        if delta.finish_reason:
            raise RuntimeError("the receiver is gone")

    engine.submit(request([1], "bad", max_tokens=900), fail_at_the_end)
    engine.submit(request([1], "good", max_tokens=900), lambda delta: ends.append(delta.finish_reason))
    wait_until(lambda: engine.stats().num_running == 2)
    engine.shutdown()
    assert ends[-1] == "abort"


def test_a_full_queue_refuses_with_a_retry_time_and_shutdown_ends_what_runs(model) -> None:
    engine = tiny_engine(model, max_running=1, max_queued=2)
    engine.start()
    ends: list[str] = []

    def receive(delta: OutputDelta) -> None:
        if delta.finish_reason:
            ends.append(delta.finish_reason)

    try:
        for i in range(3):
            engine.submit(request([1] * 20, f"r{i}", max_tokens=900), receive)
        with pytest.raises(EngineOverloadedError, match="3 requests are under way") as caught:
            engine.submit(request([1], "r3"), receive)
        assert caught.value.retry_after_s > 0
    finally:
        engine.shutdown()
    assert ends == ["abort"] * 3
    with pytest.raises(EngineDeadError):
        engine.submit(request([1]), receive)


@pytest.mark.parametrize(
    ("item", "error", "message"),
    [
        (request([]), RequestError, "the prompt is empty"),
        (request([1] * 300), ContextTooLongError, "has 300 tokens and this model takes 255"),
        (request([1] * 250, max_tokens=7), ContextTooLongError, "lower max_tokens to 6"),
        (request([1, 97]), RequestError, "token 97 at position 1 is outside the vocabulary of 97"),
        (request([1, -1]), RequestError, "token -1"),
        (
            request(
                [1, 2], spans=(EmbedSpan(start=1, length=2, content_key="", embeddings=torch.ones(2, 32)),)
            ),
            RequestError,
            r"covers \[1, 3\) of a prompt of 2",
        ),
        (
            request(
                [1, 2], spans=(EmbedSpan(start=1, length=1, content_key="", embeddings=torch.ones(1, 31)),)
            ),
            RequestError,
            r"shape \(1, 31\); this model needs \(1, 32\)",
        ),
    ],
)
def test_a_bad_request_is_refused_before_it_queues(model, item, error, message) -> None:
    engine = tiny_engine(model, max_context=256)
    engine.start()
    try:
        with pytest.raises(error, match=message):
            engine.submit(item, lambda _delta: None)
        assert engine.stats().num_waiting == 0
    finally:
        engine.shutdown()


def test_a_request_larger_than_the_kv_memory_is_refused(model) -> None:
    engine = tiny_engine(model, kv_memory_bytes=1 << 19, prefill_chunk_tokens=16)
    assert engine.max_context < 4096
    engine.start()
    try:
        with pytest.raises(ContextTooLongError):
            engine.submit(request([1] * 4000), lambda _delta: None)
        assert len(run(engine, request([1] * 64))) == 8
    finally:
        engine.shutdown()
    with pytest.raises(
        ValueError, match="kv_memory_bytes is 1000; one sequence of this model needs at least"
    ):
        tiny_engine(model, kv_memory_bytes=1000)


def test_a_failing_step_ends_its_requests_and_harms_no_other(engine, monkeypatch) -> None:
    real = engine._runner.run

    def fail_once(step):
        monkeypatch.setattr(engine._runner, "run", real)
        raise RuntimeError("secret internals")

    monkeypatch.setattr(engine._runner, "run", fail_once)
    (failed,) = run(engine, request([1, 2, 3]))
    assert failed.finish_reason == "error"
    assert "secret" not in failed.error
    assert len(run(engine, request([1, 2, 3]))) == 8
    wait_until(lambda: all_memory_is_free(engine))


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_an_engine_that_always_fails_dies_and_says_so(engine, monkeypatch) -> None:
    def fail(step):
        raise RuntimeError("broken")

    monkeypatch.setattr(engine._runner, "run", fail)
    for i in range(3):
        assert run(engine, request([1], f"r{i}"))[-1].finish_reason == "error"
    wait_until(lambda: not engine._thread.is_alive())
    with pytest.raises(EngineDeadError):
        engine.submit(request([1]), lambda _delta: None)


def test_a_failing_receiver_ends_its_own_request_only(engine) -> None:
    def fail(delta: OutputDelta) -> None:
        raise RuntimeError("the receiver is gone")

    engine.submit(request([1], "bad", max_tokens=100), fail)
    assert len(run(engine, request([1, 2]))) == 8
    wait_until(lambda: all_memory_is_free(engine))


@pytest.mark.parametrize("name", ["page_size", "max_running", "prefill_chunk_tokens"])
def test_settings_say_what_is_wrong(name: str) -> None:
    with pytest.raises(ValueError, match=f"{name} is 0; it must be at least 1"):
        EngineSettings(**{name: 0})
