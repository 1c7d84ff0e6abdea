"""One sequence over two pools: full pages for its whole length, sliding-window pages for its window.

The full page is authoritative. Each full page of a sequence maps to at most one SWA page, which holds the same
token positions for the sliding-window layers:

    positions   [0, swa_begin)           full page only; its SWA page was freed when the window moved on
                [swa_begin, num_tokens)  full page and SWA page

A sequence of any length thus holds SWA pages for at most window_keys - 1 + the tokens of one step, rounded out to
pages. Knows nothing of tensors.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from llm_core.kv.pages import PagePool

NO_PAGE = -1


@dataclass
class SequenceKV:
    """The pages of one sequence. The sequence owns one reference to each.

    Attributes:
        num_tokens: positions that have a place, [0, num_tokens).
        full_pages: full pages of positions [0, num_tokens), in order.
        swa_begin_page: full_pages[swa_begin_page:] have SWA pages, those before have none.
        reserved_full, reserved_swa: pages this sequence may still take without asking.
    """

    num_tokens: int = 0
    full_pages: list[int] = field(default_factory=list)
    swa_begin_page: int = 0
    reserved_full: int = 0
    reserved_swa: int = 0


class DualPool:
    """Admits, extends, slides and frees sequences; both pools must agree.

    Args:
        window_keys: keys a sliding-window query sees, itself included.
        step_tokens: most tokens one sequence gains in one step (prefill chunk or draft).
    """

    def __init__(
        self, *, num_full_pages: int, num_swa_pages: int, page_size: int, window_keys: int, step_tokens: int
    ) -> None:
        self.full = PagePool(num_full_pages)
        self.swa = PagePool(num_swa_pages)
        self.page_size = page_size
        self.window_keys = window_keys
        self.step_tokens = step_tokens
        self._swa_of_full = [NO_PAGE] * num_full_pages
        self._reserved_full = 0
        self._reserved_swa = 0

    def pages_for(self, num_tokens: int) -> int:
        return -(-num_tokens // self.page_size)

    def max_swa_pages(self, num_tokens: int) -> int:
        """SWA pages a sequence of at most `num_tokens` holds at once, in the worst alignment."""
        bound = self.pages_for(self.window_keys - 1 + self.step_tokens) + 1
        return min(bound, self.pages_for(num_tokens))

    def can_admit(self, num_tokens: int) -> bool:
        """Whether a sequence that may grow to `num_tokens` fits beside those already admitted."""
        return (
            self.pages_for(num_tokens) <= self.full.num_free - self._reserved_full
            and self.max_swa_pages(num_tokens) <= self.swa.num_free - self._reserved_swa
        )

    def fits_empty(self, num_tokens: int) -> bool:
        """Whether such a sequence fits when nothing else is there."""
        return (
            self.pages_for(num_tokens) <= self.full.num_pages
            and self.max_swa_pages(num_tokens) <= self.swa.num_pages
        )

    def admit(self, num_tokens: int) -> SequenceKV:
        """A new, empty sequence with pages reserved up to `num_tokens`."""
        assert self.can_admit(num_tokens)
        kv = SequenceKV(reserved_full=self.pages_for(num_tokens), reserved_swa=self.max_swa_pages(num_tokens))
        self._reserved_full += kv.reserved_full
        self._reserved_swa += kv.reserved_swa
        return kv

    def extend(self, kv: SequenceKV, num_tokens: int) -> None:
        """Gives places to positions [kv.num_tokens, kv.num_tokens + num_tokens)."""
        end = kv.num_tokens + num_tokens
        count = self.pages_for(end) - len(kv.full_pages)
        assert count <= kv.reserved_full, "a sequence outgrows its reservation in the full pool"
        assert count <= kv.reserved_swa, "a sequence outgrows its reservation in the SWA pool"
        full_pages, swa_pages = self.full.take(count), self.swa.take(count)
        for full_page, swa_page in zip(full_pages, swa_pages, strict=True):
            assert self._swa_of_full[full_page] == NO_PAGE, "a free full page still maps to an SWA page"
            self._swa_of_full[full_page] = swa_page
        kv.full_pages += full_pages
        kv.num_tokens = end
        kv.reserved_full -= count
        kv.reserved_swa -= count
        self._reserved_full -= count
        self._reserved_swa -= count

    def slide(self, kv: SequenceKV, next_position: int) -> None:
        """Frees the SWA pages that no query at `next_position` or later sees."""
        begin_page = max(0, next_position - self.window_keys + 1) // self.page_size
        begin_page = min(begin_page, len(kv.full_pages))
        # The page just behind the window is taken again first, so the window stays one run of the pool, turned
        # round like a ring, and attention reads it in place.
        count = self._drop_swa(reversed(kv.full_pages[kv.swa_begin_page : begin_page]))
        kv.swa_begin_page = max(kv.swa_begin_page, begin_page)
        # What is freed may be taken again by this sequence: its bound, not its length, was reserved.
        kv.reserved_swa += count
        self._reserved_swa += count

    def free(self, kv: SequenceKV) -> None:
        """Gives everything back; the sequence is empty afterwards."""
        self._drop_swa(kv.full_pages[kv.swa_begin_page :])
        self.full.give_back(kv.full_pages)
        self._reserved_full -= kv.reserved_full
        self._reserved_swa -= kv.reserved_swa
        kv.full_pages = []
        kv.num_tokens = kv.swa_begin_page = kv.reserved_full = kv.reserved_swa = 0

    def _drop_swa(self, full_pages: Iterable[int]) -> int:
        swa_pages = []
        for page in full_pages:
            assert self._swa_of_full[page] != NO_PAGE, "a window is freed twice"
            swa_pages.append(self._swa_of_full[page])
            self._swa_of_full[page] = NO_PAGE
        self.swa.give_back(swa_pages)
        return len(swa_pages)

    def swa_pages(self, kv: SequenceKV) -> list[int]:
        """SWA pages of kv.full_pages[kv.swa_begin_page:], in order."""
        return [self._swa_of_full[page] for page in kv.full_pages[kv.swa_begin_page :]]

    def num_swa_pages(self, kv: SequenceKV) -> int:
        return len(kv.full_pages) - kv.swa_begin_page

    def check(self, sequences: Iterable[SequenceKV]) -> None:
        """Asserts that both pools hold exactly what these sequences own."""
        self.full.check()
        self.swa.check()
        owned_full: list[int] = []
        owned_swa: list[int] = []
        reserved_full = reserved_swa = 0
        for kv in sequences:
            assert len(kv.full_pages) == self.pages_for(kv.num_tokens), "pages do not match the length"
            owned_full += kv.full_pages
            owned_swa += self.swa_pages(kv)
            reserved_full += kv.reserved_full
            reserved_swa += kv.reserved_swa
        assert NO_PAGE not in owned_swa, "a page inside the window has no SWA page"
        assert len(set(owned_full)) == len(owned_full) == self.full.num_used, "full pages leak"
        assert len(set(owned_swa)) == len(owned_swa) == self.swa.num_used, "SWA pages leak"
        assert (reserved_full, reserved_swa) == (self._reserved_full, self._reserved_swa), "reservations leak"
        assert reserved_full <= self.full.num_free, "more full pages are promised than free"
        assert reserved_swa <= self.swa.num_free, "more SWA pages are promised than free"
