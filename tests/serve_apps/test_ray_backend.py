"""What the Ray backend sends on, each item's reference once, and what it makes of the answers."""

from __future__ import annotations

import time
from typing import Any

import pytest
import ray
import torch
from ray.exceptions import ActorDiedError

from llm_core.core import EmbedSpan, GenerateRequest
from mm_pipeline.options import MediaOptions
from serve_apps.api.errors import ApiError, bad_request
from serve_apps.chat.base import EmbeddingRows, ModelInfo, take_rows
from serve_apps.deployments.backend import RayBackend, without_items
from serve_apps.deployments.encoder import EncodedReference
from serve_apps.deployments.failure import Failure


def span(start: int, item: object, begin: int, length: int) -> EmbedSpan:
    rows = EmbeddingRows(item=item, begin=begin, length=length)
    return EmbedSpan(start=start, length=length, content_key="k", embeddings=rows)


def test_an_item_that_lies_in_many_places_travels_once():
    video, picture = object(), object()
    spans = (span(0, video, 0, 2), span(3, picture, 0, 4), span(8, video, 2, 2), span(10, video, 4, 1))
    request = GenerateRequest(request_id="r", token_ids=tuple(range(12)), spans=spans)
    bare, items = without_items(request)
    assert items == [video, picture]
    assert [(s.start, s.embeddings.item, s.embeddings.begin) for s in bare.spans] == [
        (0, 0, 0),
        (3, 1, 0),
        (8, 0, 2),
        (10, 0, 4),
    ]


def test_rows_are_cut_out_without_a_copy():
    item = torch.arange(12.0).reshape(6, 2)
    rows = take_rows(EmbeddingRows(item=item, begin=2, length=3))
    assert rows.tolist() == [[4, 5], [6, 7], [8, 9]]
    assert rows.data_ptr() == item[2].data_ptr()


class FakeHandle:
    """Answers calls with these in turn, the last one for ever; raises errors. Keeps what it was asked."""

    def __init__(self, *answers: object) -> None:
        self._answers = list(answers)
        self.calls: list[tuple[Any, ...]] = []
        self.asked: list[dict[str, object]] = []

    def options(self, **options: object) -> FakeHandle:
        self.asked.append(options)
        return self

    async def _call(self) -> object:
        answer = self._answers.pop(0) if len(self._answers) > 1 else self._answers[0]
        if isinstance(answer, Exception):
            raise answer
        return answer

    def remote(self, *args: Any) -> Any:
        self.calls.append(args)
        return self._call()


NOWHERE: Any = None
FOUND = EncodedReference(embeddings=NOWHERE, num_tokens=3, modality="image", content_key="k", timings={})


def backend_over(encoder: FakeHandle) -> RayBackend:
    handles: Any = (encoder, FakeHandle(ModelInfo(max_context=10)))
    return RayBackend(*handles)


async def test_the_encoder_is_told_how_much_time_is_left(monkeypatch):
    """Not when it ends: another node's clock shows another time."""
    monkeypatch.setattr(ray, "put", lambda data: data)
    encoder = FakeHandle(FOUND)
    backend = backend_over(encoder)
    options = MediaOptions()
    await backend.encode(b"data", "image", options, owner="o", deadline=time.monotonic() + 30.0)
    await backend.encode(b"data", "image", options, owner="o")
    (*_, left_s), (*_, no_limit) = encoder.calls
    assert 20.0 < left_s <= 30.0
    assert no_limit is None


async def test_a_name_is_looked_up_by_any_replica_and_again_when_that_one_died():
    options = MediaOptions(fps=2.0)
    encoder = FakeHandle(ActorDiedError(), FOUND, None)
    backend = backend_over(encoder)
    found = await backend.find("name", "video", options)
    assert found is not None
    assert (found.content_key, found.num_tokens) == ("k", 3)
    assert await backend.find("name", "video", options) is None
    assert encoder.calls == [("name", "video", options)] * 3
    assert encoder.asked == [{"method_name": "find", "session_id": "name"}] * 3


async def test_a_lookup_that_fails_is_an_error_and_no_miss():
    encoder = FakeHandle(Failure(error=bad_request("max_pixels is 5")), ActorDiedError())
    backend = backend_over(encoder)
    with pytest.raises(ApiError, match="max_pixels is 5"):
        await backend.find("name", "image", MediaOptions())
    with pytest.raises(ApiError, match="being restarted") as info:
        await backend.find("name", "image", MediaOptions())
    assert info.value.status == 503


async def test_the_name_goes_along_with_the_bytes(monkeypatch):
    monkeypatch.setattr(ray, "put", lambda data: data)
    encoder = FakeHandle(FOUND)
    await backend_over(encoder).encode(b"data", "image", MediaOptions(), owner="o", uuid_key="name")
    ((reference, *rest),) = encoder.calls
    assert reference == [b"data"]
    assert "name" in rest
