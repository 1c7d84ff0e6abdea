"""The chat service over fakes: order of stages, limits, error mapping, cancellation."""

from __future__ import annotations

import asyncio
import pickle

import pytest

from llm_core.errors import EngineDeadError, EngineOverloadedError, RequestError
from mm_pipeline.errors import InvalidMediaError, MediaFetchError, MediaTooLargeError
from mm_pipeline.options import MediaOptions
from serve_apps.api.errors import ApiError, unavailable
from serve_apps.api.validation import check_chat_request
from serve_apps.chat.errors import to_api_error
from serve_apps.chat.events import Accepted, Delta, Finished
from serve_apps.chat.service import ChatLimits, template_messages
from tests.helpers import FakeBackend, FakeEngine, FakeFetcher, fake_chat_service, wait_until


def ask(*urls: str, **fields):
    content = [{"type": "text", "text": "hi"}]
    content += [{"type": "image_url", "image_url": {"url": url}} for url in urls]
    return check_chat_request({"model": "demo", "messages": [{"role": "user", "content": content}], **fields})


async def run(service, request):
    return [event async for event in service.stream(request)]


async def failing(service, request) -> ApiError:
    with pytest.raises(ApiError) as info:
        await run(service, request)
    return info.value


async def test_events_of_a_question_about_two_pictures():
    backend = FakeBackend()
    events = await run(fake_chat_service(backend=backend), ask("ab", "cde"))
    assert isinstance(events[0], Accepted)
    assert "".join(event.text for event in events if isinstance(event, Delta)) == "Hello world!"
    end = events[-1]
    assert isinstance(end, Finished)
    assert end.finish_reason == "stop"
    assert end.usage.prompt_tokens == 2 + 2 + 3
    assert end.usage.image_tokens == 5
    assert end.usage.completion_tokens == 3
    assert set(end.timings) >= {
        "render_ms",
        "fetch_ms",
        "encode_ms",
        "queue_ms",
        "prefill_ms",
        "ttft_ms",
        "total_ms",
    }
    assert end.timings["encoder_decode_ms"] == 3.0
    (request,) = backend.engine.requests
    assert request.token_ids == (104, 105, -1, -1, -1, -1, -1)
    assert [(span.start, span.length, span.embeddings.item) for span in request.spans] == [
        (2, 2, b"ab"),
        (4, 3, b"cde"),
    ]


def about(*parts, **fields):
    return check_chat_request(
        {"model": "demo", "messages": [{"role": "user", "content": list(parts)}], **fields}
    )


MIXED = (
    {"type": "video_url", "video_url": {"url": "clip"}},
    {"type": "text", "text": "?"},
    {"type": "audio_url", "audio_url": {"url": "sound"}},
    {"type": "image_url", "image_url": {"url": "pic"}},
)


async def test_parts_keep_their_order_modality_and_options():
    backend, fetcher = FakeBackend(), FakeFetcher()
    request = about(*MIXED, mm_processor_kwargs={"fps": 2, "max_frames": 4})
    events = await run(fake_chat_service(backend=backend, fetcher=fetcher), request)
    options = MediaOptions(fps=2.0, max_frames=4)
    assert list(zip(fetcher.started, fetcher.modalities, strict=True)) == [
        ("clip", "video"),
        ("sound", "audio"),
        ("pic", "image"),
    ]
    assert backend.encoded == [b"clip", b"sound", b"pic"]
    assert backend.asked == [("video", options), ("audio", options), ("image", options)]
    usage = events[-1].usage
    assert (usage.prompt_tokens, usage.image_tokens, usage.video_tokens, usage.audio_tokens) == (13, 3, 3, 6)
    assert [part["type"] for part in template_messages(request)[0]["content"]] == [
        "video",
        "text",
        "audio",
        "image",
    ]


async def test_rows_of_one_item_in_several_places_have_keys_of_their_own():
    backend = FakeBackend()
    await run(fake_chat_service(backend=backend), about(MIXED[0]))
    (request,) = backend.engine.requests
    rows = [(span.embeddings.begin, span.embeddings.length) for span in request.spans]
    assert rows == [(0, 3), (3, 1)]
    assert [span.start for span in request.spans] == [0, 3]
    assert len({span.content_key for span in request.spans}) == 2


async def test_damage_that_did_not_stop_the_answer_is_told():
    backend = FakeBackend(notes={b"clip": ("3 of 64 frames were lost", "the sound ends early")})
    events = await run(fake_chat_service(backend=backend), about(*MIXED))
    assert [(note.param, note.modality, note.note) for note in events[-1].notes] == [
        ("messages.0.content.0", "video", "3 of 64 frames were lost"),
        ("messages.0.content.0", "video", "the sound ends early"),
    ]


@pytest.mark.parametrize("name", ["min_frames", "max_frames"])
async def test_no_request_raises_the_limit_of_frames(name):
    fetcher = FakeFetcher()
    request = about(*MIXED, mm_processor_kwargs={name: 3601})
    error = await failing(fake_chat_service(fetcher=fetcher), request)
    assert (error.status, error.param) == (413, f"mm_processor_kwargs.{name}")
    assert "3601" in error.message
    assert "3600" in error.message
    assert fetcher.started == []


async def test_an_option_out_of_the_servers_range_names_the_option():
    backend = FakeBackend(encode_errors={b"a": InvalidMediaError("max_pixels is 5", param="max_pixels")})
    error = await failing(fake_chat_service(backend=backend), ask("a"))
    assert (error.status, error.param) == (400, "mm_processor_kwargs.max_pixels")


async def test_sampling_parameters_reach_the_engine():
    backend = FakeBackend()
    request = ask(
        temperature=0.3,
        top_p=0.9,
        top_k=-1,
        min_p=0.1,
        seed=5,
        max_tokens=2,
        stop=["x"],
        logprobs=True,
        top_logprobs=2,
    )
    events = await run(fake_chat_service(backend=backend), request)
    sampling = backend.engine.requests[0].sampling
    assert (sampling.temperature, sampling.top_p, sampling.top_k, sampling.min_p) == (0.3, 0.9, 0, 0.1)
    assert (sampling.seed, sampling.max_tokens, sampling.stop) == (5, 2, ("x",))
    entries = [entry for event in events if isinstance(event, Delta) for entry in event.logprobs]
    assert [entry.token.text for entry in entries] == ["t0", "t1"]
    assert entries[1].top[0][0].data == b"t1"


async def test_without_max_tokens_the_answer_may_fill_the_context_up_to_the_default():
    backend = FakeBackend(engine=FakeEngine(max_context=100))
    await run(fake_chat_service(backend=backend), ask())
    await run(fake_chat_service(backend=backend, limits=ChatLimits(default_max_tokens=7)), ask())
    assert [request.sampling.max_tokens for request in backend.engine.requests] == [98, 7]


async def test_unknown_model_is_404_before_anything_is_fetched():
    fetcher = FakeFetcher()
    error = await failing(fake_chat_service(fetcher=fetcher), ask("u").model_copy(update={"model": "gpt-9"}))
    assert (error.status, error.param, error.code) == (404, "model", "model_not_found")
    assert "gpt-9" in error.message
    assert "demo" in error.message
    assert fetcher.started == []


async def test_no_user_message_is_400():
    request = check_chat_request({"model": "demo", "messages": [{"role": "system", "content": "x"}]})
    error = await failing(fake_chat_service(), request)
    assert (error.status, error.param) == (400, "messages")
    assert "'user'" in error.message


async def test_a_conversation_the_template_refuses_is_400():
    request = check_chat_request({"model": "demo", "messages": [{"role": "user", "content": "bad template"}]})
    error = await failing(fake_chat_service(), request)
    assert (error.status, error.param) == (400, "messages")


async def test_developer_is_rendered_as_system():
    request = check_chat_request(
        {
            "model": "demo",
            "messages": [{"role": "developer", "content": "x"}, {"role": "user", "content": "y"}],
        }
    )
    assert template_messages(request)[0] == {"role": "system", "content": "x"}


@pytest.mark.parametrize(
    ("service", "urls", "part"),
    [
        ({"max_media_items": 1}, ("a", "b"), "2 media parts; at most 1"),
        ({"limits": ChatLimits(max_text_chars=1)}, (), "2 characters of text; at most 1"),
        ({"limits": ChatLimits(max_media_bytes=3)}, ("ab", "cd"), "more than 3 bytes"),
    ],
)
async def test_limits_are_413_and_say_so(service, urls, part):
    error = await failing(fake_chat_service(**service), ask(*urls))
    assert error.status == 413
    assert part in error.message


async def test_a_failed_fetch_names_the_part_and_cancels_the_others():
    fetcher = FakeFetcher(urls={"bad": MediaFetchError("the server answered 404")}, hang={"slow"})
    backend = FakeBackend()
    error = await failing(fake_chat_service(fetcher=fetcher, backend=backend), ask("slow", "bad"))
    assert (error.status, error.param, error.code) == (424, "messages.0.content.2", "media_fetch_failed")
    assert fetcher.cancelled == ["slow"]
    assert backend.encoded == []


async def test_a_bad_picture_names_the_part():
    backend = FakeBackend(encode_errors={b"b": InvalidMediaError("damaged"), b"c": unavailable("gone")})
    service = fake_chat_service(backend=backend)
    error = await failing(service, ask("a", "b"))
    assert (error.status, error.param) == (400, "messages.0.content.2")
    assert (await failing(service, ask("c"))).status == 503
    assert backend.engine.requests == []
    assert service.num_active == 0


@pytest.mark.parametrize(
    ("raised", "status", "code", "retry"),
    [
        (RequestError("bad span", param="messages"), 400, "invalid_value", None),
        (EngineOverloadedError("full", retry_after_s=3.0), 503, "overloaded", "3"),
        (EngineDeadError("dead"), 503, "unavailable", "1"),
        (ZeroDivisionError("secret path /x"), 500, "internal_error", None),
    ],
)
async def test_engine_errors(raised, status, code, retry):
    error = await failing(
        fake_chat_service(backend=FakeBackend(engine=FakeEngine(submit_error=raised))), ask()
    )
    assert (error.status, error.code) == (status, code)
    assert error.headers().get("Retry-After") == retry
    assert "secret" not in error.message


async def test_context_too_long_is_400_with_its_code():
    error = await failing(fake_chat_service(), ask(max_tokens=5000))
    assert (error.status, error.code, error.param) == (400, "context_length_exceeded", "max_tokens")
    assert "5000" in error.message


@pytest.mark.parametrize(("reason", "status"), [("error", 500), ("abort", 503)])
async def test_a_generation_that_fails_half_way(reason, status):
    engine = FakeEngine(finish_reason=reason, error="numbers went wrong" if reason == "error" else None)
    error = await failing(fake_chat_service(backend=FakeBackend(engine=engine)), ask())
    assert error.status == status


async def test_one_request_too_many_is_503():
    engine = FakeEngine()
    engine.gate.clear()
    service = fake_chat_service(backend=FakeBackend(engine=engine), limits=ChatLimits(max_requests=1))
    task = asyncio.create_task(run(service, ask()))
    await wait_until(lambda: len(engine.running) == 1)
    error = await failing(service, ask())
    assert (error.status, error.code) == (503, "overloaded")
    engine.gate.set()
    await task
    assert service.num_active == 0


async def test_cancelling_the_reader_aborts_in_the_engine():
    engine = FakeEngine(words_before_gate=1)
    engine.gate.clear()
    service = fake_chat_service(backend=FakeBackend(engine=engine))
    task = asyncio.create_task(run(service, ask()))
    await wait_until(lambda: len(engine.running) == 1)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert engine.aborted == [engine.requests[0].request_id]
    assert service.num_active == 0


async def test_closing_the_stream_aborts_in_the_engine():
    engine = FakeEngine(words_before_gate=1)
    engine.gate.clear()
    service = fake_chat_service(backend=FakeBackend(engine=engine))
    events = service.stream(ask())
    assert isinstance(await anext(events), Accepted)
    assert isinstance(await anext(events), Delta)
    await events.aclose()
    assert len(engine.aborted) == 1
    assert engine.running == {}
    assert service.num_active == 0


async def test_cancelling_while_media_are_fetched_cancels_the_fetch():
    fetcher = FakeFetcher(hang={"slow"})
    service = fake_chat_service(fetcher=fetcher)
    task = asyncio.create_task(run(service, ask("slow")))
    await wait_until(lambda: fetcher.started == ["slow"])
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert fetcher.cancelled == ["slow"]
    assert service.num_active == 0


async def test_a_finished_answer_is_not_aborted():
    backend = FakeBackend()
    await run(fake_chat_service(backend=backend), ask())
    assert backend.engine.aborted == []


def test_an_api_error_survives_pickling():
    error = to_api_error(MediaTooLargeError("too many pixels"), param="messages.0.content.1")
    copy = pickle.loads(pickle.dumps(error))
    assert (copy.body(), copy.status, copy.headers()) == (error.body(), error.status, error.headers())


async def test_keys_take_turns_and_priorities_reach_the_engine():
    """A user is told from others by a digest of the key; the key itself goes no further."""
    backend = FakeBackend()
    service = fake_chat_service(backend=backend)
    for api_key, priority in (("one", 0), ("two", 7), ("one", 0), (None, 0)):
        async for _ in service.stream(ask(priority=priority), api_key=api_key):
            pass
    users = [request.user for request in backend.engine.requests]
    assert users[0] == users[2] != users[1]
    assert users[3] == ""
    assert not {"one", "two"} & set(users)
    assert [request.priority for request in backend.engine.requests] == [0, 7, 0, 0]
