"""A request on its way through the engine."""

from __future__ import annotations

from collections.abc import Sequence as Seq
from dataclasses import dataclass, field

from llm_core.core import GenerateRequest
from llm_core.kv.dual import SequenceKV
from llm_core.kv.tiers.base import PageLoad
from llm_core.prefix import PageKey, page_keys


@dataclass(eq=False)
class Sequence:
    """Prompt, answer so far, and how far keys and values reach.

    Token positions:

        [0, num_computed)             keys and values are in the cache
        [num_computed, num_tokens)    known tokens still to run; one token while decoding

    Attributes:
        kv: None while the sequence waits.
        num_cached: prompt tokens found in a cache instead of computed.
        num_kept: pages that are the prefix tree's, too.
        loads: what comes into its pages from a lower tier with its first chunk.
        window_points: page boundaries whose windows others may want to go on from.
        base_tag: see `Queue`.
        admission: number of its admission; later ones give way to earlier ones.
        num_preempted: how often it lost its pages to another and waited again.
        submitted_s, scheduled_s, first_token_s: clock readings, None until they happen.
    """

    request: GenerateRequest
    output_ids: list[int] = field(default_factory=list)
    kv: SequenceKV | None = None
    num_computed: int = 0
    num_cached: int = 0
    num_kept: int = 0
    loads: tuple[PageLoad, ...] = ()
    window_points: set[int] = field(default_factory=set)
    base_tag: float = 0.0
    admission: int = -1
    num_preempted: int = 0
    submitted_s: float = 0.0
    scheduled_s: float | None = None
    first_token_s: float | None = None
    _keys: list[PageKey] = field(default_factory=list, repr=False)

    @property
    def request_id(self) -> str:
        return self.request.request_id

    @property
    def num_prompt(self) -> int:
        return len(self.request.token_ids)

    @property
    def num_tokens(self) -> int:
        return len(self.request.token_ids) + len(self.output_ids)

    @property
    def max_tokens(self) -> int:
        """Most positions this sequence can need."""
        return self.num_prompt + self.request.sampling.max_tokens

    @property
    def is_decoding(self) -> bool:
        """One known token left to run, and it is one the model chose."""
        return bool(self.output_ids) and self.num_computed == self.num_tokens - 1

    def tokens(self, begin: int, end: int) -> list[int]:
        """Token ids of positions [begin, end)."""
        if begin >= self.num_prompt:
            return self.output_ids[begin - self.num_prompt : end - self.num_prompt]
        head = list(self.request.token_ids[begin:end])
        if end > self.num_prompt:
            head += self.output_ids[: end - self.num_prompt]
        return head

    def page_keys(self, num_pages: int, page_size: int) -> Seq[PageKey]:
        """Keys of the first `num_pages` pages, whose tokens are all known."""
        first = len(self._keys)
        if num_pages > first:
            tokens = self.tokens(first * page_size, num_pages * page_size)
            before = self._keys[-1] if self._keys else b""
            self._keys += page_keys(tokens, self.request.spans, first, page_size, before)
        return self._keys if len(self._keys) == num_pages else self._keys[:num_pages]
