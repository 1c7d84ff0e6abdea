"""What the Ray backend sends on: a request without embeddings, and each item's reference once."""

from __future__ import annotations

import torch

from llm_core.core import EmbedSpan, GenerateRequest
from serve_apps.chat.base import EmbeddingRows, take_rows
from serve_apps.deployments.backend import without_items


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
