"""Media under a client's own key, over fakes: what is neither fetched nor encoded again, and whose key it is."""

from __future__ import annotations

from typing import Any

import pytest

from serve_apps.api.errors import ApiError, unavailable
from serve_apps.api.validation import check_chat_request
from serve_apps.chat.events import Finished
from serve_apps.chat.service import ChatLimits, ChatService
from tests.helpers import FakeBackend, FakeFetcher, fake_chat_service
from tests.serve_apps.http import BODY, client_of, make_app


def picture(url: str | None = None, uuid: str | None = None) -> dict[str, Any]:
    return {"type": "image_url", "image_url": url and {"url": url}, "uuid": uuid}


def about(*parts: dict[str, Any], **fields: Any):
    messages = [{"role": "user", "content": [*parts, {"type": "text", "text": "hi"}]}]
    return check_chat_request({"model": "demo", "messages": messages, **fields})


class Chat:
    """A service, and what its fetcher and encoder were asked."""

    def __init__(self, limits: ChatLimits | None = None) -> None:
        self.backend, self.fetcher = FakeBackend(), FakeFetcher()
        self.service: ChatService = fake_chat_service(
            backend=self.backend, fetcher=self.fetcher, limits=limits
        )

    async def ask(self, *parts: dict[str, Any], api_key: str | None = "key", **fields: Any) -> Finished:
        """The end of the answer; raises ApiError."""
        events = [event async for event in self.service.stream(about(*parts, **fields), api_key=api_key)]
        assert isinstance(events[-1], Finished)
        return events[-1]

    async def miss(self, *parts: dict[str, Any], **fields: Any) -> ApiError:
        with pytest.raises(ApiError) as info:
            await self.ask(*parts, **fields)
        assert (info.value.status, info.value.code) == (404, "media_not_cached")
        return info.value

    def items(self) -> list[list[Any]]:
        """Of each request that reached the engine, its embeddings."""
        return [[span.embeddings.item for span in request.spans] for request in self.backend.engine.requests]


async def test_media_may_be_left_out_once_they_were_sent():
    chat = Chat()
    await chat.ask(picture("cat", "c"), picture("horse"))
    end = await chat.ask(picture("dog"), picture(uuid="c"))
    assert chat.items() == [[b"cat", b"horse"], [b"dog", b"cat"]]
    assert chat.fetcher.started == ["cat", "horse", "dog"]
    assert chat.backend.encoded == [b"cat", b"horse", b"dog"]
    assert end.usage.image_tokens == 6
    assert "uuid_ms" in end.timings


async def test_media_under_a_known_uuid_are_not_fetched():
    chat = Chat()
    await chat.ask(picture("cat", "c"))
    await chat.ask(picture("http://elsewhere/cat", "c"))
    assert chat.items() == [[b"cat"], [b"cat"]]
    assert chat.fetcher.started == ["cat"]


async def test_only_what_is_fetched_counts_as_bytes():
    chat = Chat(ChatLimits(max_media_bytes=3))
    await chat.ask(picture("cat", "c"))
    await chat.ask(picture("dog"), picture("cat", "c"))
    with pytest.raises(ApiError, match="more than 3 bytes"):
        await chat.ask(picture("dog"), picture("pig"))


@pytest.mark.parametrize(
    ("part", "fields"),
    [
        (picture(uuid="c"), {"api_key": "another"}),
        (picture(uuid="c"), {"api_key": None}),
        (picture(uuid="C"), {}),
        (picture(uuid="c"), {"mm_processor_kwargs": {"max_pixels": 5000}}),
        ({"type": "video_url", "uuid": "c"}, {}),
    ],
    ids=["another client", "no key", "another uuid", "other settings", "another modality"],
)
async def test_what_was_sent_otherwise_is_unknown(part, fields):
    chat = Chat()
    await chat.ask(picture("cat", "c"))
    error = await chat.miss(part, **fields)
    assert error.param == "messages.0.content.0"
    assert "Send the request again with the media" in error.message
    assert len(chat.items()) == 1


async def test_all_missing_media_are_named_before_anything_is_fetched():
    chat = Chat()
    error = await chat.miss(picture("cat"), picture(uuid="a"), picture("dog", "d"), picture(uuid="b"))
    assert error.param == "messages.0.content.1"
    assert "messages.0.content.1, messages.0.content.3," in error.message
    assert chat.fetcher.started == []


async def test_embeddings_that_are_gone_are_computed_again():
    chat = Chat()
    await chat.ask(picture("cat", "c"))
    chat.backend.kept.clear()
    await chat.miss(picture(uuid="c"))
    await chat.ask(picture("cat", "c"))
    await chat.ask(picture(uuid="c"))
    assert chat.fetcher.started == ["cat", "cat"]


async def test_a_failed_lookup_is_the_encoders_error(monkeypatch):
    async def find(*args: Any) -> None:
        raise unavailable("the encoder is being restarted")

    chat = Chat()
    monkeypatch.setattr(chat.backend, "find", find)
    with pytest.raises(ApiError, match="being restarted") as info:
        await chat.ask(picture("cat", "c"))
    assert info.value.status == 503
    assert chat.service.num_active == 0


def headers(authorization: str | None) -> dict[str, str]:
    return {} if authorization is None else {"Authorization": authorization}


@pytest.mark.parametrize(
    ("sent", "asked", "status"),
    [
        ("Bearer secret", "bearer  secret", 200),
        ("Bearer secret", "Bearer other", 404),
        ("Bearer secret", None, 404),
        (None, None, 200),
        (None, "Bearer ", 200),
        (None, "Bearer None", 404),
    ],
)
async def test_the_bearer_token_says_whose_uuid_it_is(sent, asked, status):
    backend = FakeBackend()
    async with client_of(make_app(backend=backend)) as client:
        for part, authorization, expected in (
            (picture("cat", "c"), sent, 200),
            (picture(uuid="c"), asked, status),
        ):
            body = {**BODY, "messages": [{"role": "user", "content": [part]}]}
            response = await client.post("/v1/chat/completions", json=body, headers=headers(authorization))
            assert response.status_code == expected, response.text
    assert "secret" not in repr(backend)
