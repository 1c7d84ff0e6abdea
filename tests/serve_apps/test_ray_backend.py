"""What the Ray backend sends on: a request without embeddings, and each item's reference once."""

from __future__ import annotations

import time
from typing import Any

import ray
import torch

from llm_core.core import EmbedSpan, GenerateRequest
from mm_pipeline.options import MediaOptions
from serve_apps.chat.base import EmbeddingRows, ModelInfo, take_rows
from serve_apps.deployments.backend import RayBackend, without_items
from serve_apps.deployments.encoder import EncodedReference


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
    """Answers every call with the same, and keeps what it was asked."""

    def __init__(self, answer: object) -> None:
        self._answer = answer
        self.calls: list[tuple[Any, ...]] = []

    def options(self, **options: object) -> FakeHandle:
        return self

    async def _call(self) -> object:
        return self._answer

    def remote(self, *args: Any) -> Any:
        self.calls.append(args)
        return self._call()


async def test_the_encoder_is_told_how_much_time_is_left(monkeypatch):
    """Not when it ends: another node's clock shows another time."""
    monkeypatch.setattr(ray, "put", lambda data: data)
    reference: Any = None
    encoder = FakeHandle(
        EncodedReference(embeddings=reference, num_tokens=1, modality="image", content_key="k", timings={})
    )
    handles: Any = (encoder, FakeHandle(ModelInfo(max_context=10)))
    backend = RayBackend(*handles)
    options = MediaOptions()
    await backend.encode(b"data", "image", options, owner="o", deadline=time.monotonic() + 30.0)
    await backend.encode(b"data", "image", options, owner="o")
    (*_, left_s), (*_, no_limit) = encoder.calls
    assert 20.0 < left_s <= 30.0
    assert no_limit is None
