"""What names a page of tokens: the ids, and for media the digest of what they stand for."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TypeAlias

from llm_core.core import EmbedSpan

PageKey: TypeAlias = tuple[tuple[int, ...], tuple[tuple[int, int, str], ...]]
"""Token ids of a page, and per span in it: where it begins in the page, which row of the media that is, its digest.

Equal keys after equal keys mean equal keys and values. The ids of placeholders are the same for all media, so the
digest must tell them apart.
"""


def page_keys(
    token_ids: Sequence[int], spans: Sequence[EmbedSpan], first_page: int, page_size: int
) -> Iterator[PageKey]:
    """Keys of the complete pages from `first_page` on, whose first token is token_ids[0].

    Spans are those of the whole prompt, sorted and without overlap.
    """
    number = 0
    for offset in range(0, len(token_ids) - page_size + 1, page_size):
        begin = first_page * page_size + offset
        while number < len(spans) and spans[number].start + spans[number].length <= begin:
            number += 1
        media = []
        for span in spans[number:]:
            if span.start >= begin + page_size:
                break
            at = max(span.start, begin)
            media.append((at - begin, at - span.start, span.content_key))
        yield tuple(token_ids[offset : offset + page_size]), tuple(media)
