"""What names a page of tokens: the ids, for media the digest of what they stand for, and all that came before."""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence
from hashlib import blake2b
from typing import TypeAlias

from llm_core.core import EmbedSpan

PageKey: TypeAlias = bytes
"""Digest (BLAKE2b, 16 bytes) of a page and of every page before it: equal keys mean equal keys and values.

The ids of placeholders are the same for all media, so per span in the page it counts where that begins, which row
of the media that is, and the media's digest.
"""


def page_keys(
    token_ids: Sequence[int],
    spans: Sequence[EmbedSpan],
    first_page: int,
    page_size: int,
    before: PageKey = b"",
) -> Iterator[PageKey]:
    """Keys of the complete pages from `first_page` on, whose first token is token_ids[0].

    Spans are those of the whole prompt, sorted and without overlap. before: the key of the page before.
    """
    number = 0
    for offset in range(0, len(token_ids) - page_size + 1, page_size):
        begin = first_page * page_size + offset
        while number < len(spans) and spans[number].start + spans[number].length <= begin:
            number += 1
        digest = blake2b(before, digest_size=16)
        digest.update(array("q", token_ids[offset : offset + page_size]).tobytes())
        for span in spans[number:]:
            if span.start >= begin + page_size:
                break
            at = max(span.start, begin)
            digest.update(f"{at - begin} {at - span.start} {span.content_key}\n".encode())
        before = digest.digest()
        yield before
