"""One sequence over two pools: full pages for its whole length, sliding-window pages for its window.

The full page is authoritative. Each full page maps to at most one SWA page, which holds the same token positions
for the sliding-window layers; whoever owns an SWA page owns the full page that maps to it:

    positions   [0, swa_begin)           full page only; its SWA page was given back when the window moved on
                [swa_begin, num_tokens)  full page and SWA page

A sequence of any length thus holds SWA pages for at most window_keys - 1 + the tokens of one step, rounded out to
pages. Full and SWA pages may be shared with other sequences and with a cache. Knows nothing of tensors.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from llm_core.kv.pages import PagePool

NO_PAGE = -1


@dataclass(eq=False)
class SequenceKV:
    """The pages of one sequence. The sequence is an owner of each.

    Attributes:
        num_tokens: positions that have a place, [0, num_tokens).
        full_pages: full pages of positions [0, num_tokens), in order.
        swa_begin_page: full_pages[swa_begin_page:] have SWA pages that the sequence owns, too.
    """

    num_tokens: int = 0
    full_pages: list[int] = field(default_factory=list)
    swa_begin_page: int = 0


class DualPool:
    """Begins, extends, slides and frees sequences; both pools must agree.

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
        self.window_pages = -(-(window_keys - 1) // page_size)
        """Pages before a page boundary that hold all keys the first query behind it sees."""
        self._swa_of_full = [NO_PAGE] * num_full_pages

    def pages_for(self, num_tokens: int) -> int:
        return -(-num_tokens // self.page_size)

    def max_swa_pages(self, num_tokens: int) -> int:
        """SWA pages a sequence of at most `num_tokens` owns at once, in the worst alignment."""
        bound = self.window_pages + 1 + self.pages_for(self.step_tokens - 1)
        return min(bound, self.pages_for(num_tokens))

    def fits_empty(self, num_tokens: int) -> bool:
        """Whether a sequence of that length fits when no other is there."""
        return (
            self.pages_for(num_tokens) <= self.full.num_pages
            and self.max_swa_pages(num_tokens) <= self.swa.num_pages
        )

    def begin(self, full_pages: Sequence[int] = (), num_pages: int | None = None) -> SequenceKV:
        """A new sequence that begins with these full pages of others, and with the SWA pages of the last window.

        num_pages: it is to have so many, with the window before their end, and `fill` or `cancel` must follow; SWA
        pages that are missing do not matter then.
        """
        end = len(full_pages) if num_pages is None else num_pages
        kv = SequenceKV(
            num_tokens=len(full_pages) * self.page_size,
            full_pages=list(full_pages),
            swa_begin_page=max(0, end - self.window_pages),
        )
        self.full.share(kv.full_pages)
        self.swa.share(self._swa_of_full[page] for page in self._in_window(kv))
        return kv

    def fill(self, kv: SequenceKV, num_pages: int) -> None:
        """The pages that a sequence lacks which began with fewer than `num_pages`; they must be free."""
        kv.full_pages += self.full.take(num_pages - len(kv.full_pages))
        kv.num_tokens = num_pages * self.page_size
        lacking = [page for page in kv.full_pages[kv.swa_begin_page :] if not self.has_swa(page)]
        for page, swa_page in zip(lacking, self.swa.take(len(lacking)), strict=True):
            self._swa_of_full[page] = swa_page

    def cancel(self, kv: SequenceKV) -> None:
        """Gives back what a sequence began with that is not filled."""
        self._drop_swa(self._in_window(kv))
        self.full.give_back(kv.full_pages)
        kv.full_pages = []
        kv.num_tokens = kv.swa_begin_page = 0

    def num_held_swa(self, kv: SequenceKV) -> int:
        """SWA pages of a sequence that may not be filled yet."""
        return len(self._in_window(kv))

    def _in_window(self, kv: SequenceKV) -> list[int]:
        """Full pages of the window that have an SWA page."""
        return [page for page in kv.full_pages[kv.swa_begin_page :] if self.has_swa(page)]

    def num_missing_pages(self, kv: SequenceKV, num_tokens: int) -> int:
        """Pages of each pool that `extend` takes."""
        return self.pages_for(kv.num_tokens + num_tokens) - len(kv.full_pages)

    def extend(self, kv: SequenceKV, num_tokens: int) -> None:
        """Gives places to positions [kv.num_tokens, kv.num_tokens + num_tokens); the pages must be free."""
        count = self.num_missing_pages(kv, num_tokens)
        full_pages, swa_pages = self.full.take(count), self.swa.take(count)
        for full_page, swa_page in zip(full_pages, swa_pages, strict=True):
            assert self._swa_of_full[full_page] == NO_PAGE, "a free full page still maps to an SWA page"
            self._swa_of_full[full_page] = swa_page
        kv.full_pages += full_pages
        kv.num_tokens += num_tokens

    def slide(self, kv: SequenceKV, next_position: int) -> None:
        """Gives back the SWA pages that no query at `next_position` or later sees.

        The window of the page boundary before it stays whole, so that a cache may keep it.
        """
        boundary = next_position // self.page_size
        begin_page = min(max(0, boundary - self.window_pages), len(kv.full_pages))
        # The page just behind the window goes last and is taken again first, so the window stays one run of the
        # pool, turned round like a ring, and attention reads it in place.
        self._drop_swa(kv.full_pages[kv.swa_begin_page : begin_page])
        kv.swa_begin_page = max(kv.swa_begin_page, begin_page)

    def free(self, kv: SequenceKV) -> None:
        """Gives everything back; the sequence is empty afterwards."""
        self._drop_swa(reversed(kv.full_pages[kv.swa_begin_page :]))
        self.full.give_back(kv.full_pages)
        kv.full_pages = []
        kv.num_tokens = kv.swa_begin_page = 0

    def exchange(self, kv: SequenceKV, index: int, full_page: int) -> None:
        """The sequence goes on with `full_page`, which holds the same tokens, in place of its index-th page, which
        nobody else owns. Inside its window, a full page that maps to no SWA page gets the sequence's.
        """
        mine = kv.full_pages[index]
        assert self.full.num_owners(mine) == 1, "a page that others use is exchanged"
        self.full.share([full_page])
        if index >= kv.swa_begin_page:
            if self.has_swa(full_page):
                self.swa.share([self._swa_of_full[full_page]])
                self._drop_swa([mine])
            else:
                self._swa_of_full[full_page] = self._swa_of_full[mine]
                self._swa_of_full[mine] = NO_PAGE
        self.full.give_back([mine])
        kv.full_pages[index] = full_page

    def has_swa(self, full_page: int) -> bool:
        return self._swa_of_full[full_page] != NO_PAGE

    def swa_page(self, full_page: int) -> int:
        """The SWA page that a full page maps to, or NO_PAGE."""
        return self._swa_of_full[full_page]

    def swa_is_idle(self, full_page: int) -> bool:
        return self.swa.is_idle(self._swa_of_full[full_page])

    def cache_swa(self, full_page: int) -> None:
        """The cache becomes an owner of the SWA page that a full page maps to."""
        self.swa.cache(self._swa_of_full[full_page])

    def uncache_swa(self, full_page: int) -> None:
        """The cache lets go of the SWA page."""
        swa_page = self._swa_of_full[full_page]
        self.swa.uncache(swa_page)
        if not self.swa.num_owners(swa_page):
            self._swa_of_full[full_page] = NO_PAGE

    def _drop_swa(self, full_pages: Iterable[int]) -> None:
        for page in full_pages:
            swa_page = self._swa_of_full[page]
            assert swa_page != NO_PAGE, "a window is freed twice"
            self.swa.give_back([swa_page])
            if not self.swa.num_owners(swa_page):
                self._swa_of_full[page] = NO_PAGE

    def swa_pages(self, kv: SequenceKV) -> list[int]:
        """SWA pages of kv.full_pages[kv.swa_begin_page:], in order."""
        return [self._swa_of_full[page] for page in kv.full_pages[kv.swa_begin_page :]]

    def num_swa_pages(self, kv: SequenceKV) -> int:
        return len(kv.full_pages) - kv.swa_begin_page

    def check(
        self,
        sequences: Iterable[SequenceKV],
        cached: Sequence[int] = (),
        cached_swa: Sequence[int] = (),
    ) -> None:
        """Asserts that both pools hold exactly what these sequences and the cache own.

        cached: full pages of the cache. cached_swa: those of them whose SWA pages it owns, too.
        """
        self.full.check()
        self.swa.check()
        full_owners, swa_owners = Counter(cached), Counter(cached_swa)
        for kv in sequences:
            assert len(kv.full_pages) == self.pages_for(kv.num_tokens), "pages do not match the length"
            full_owners.update(kv.full_pages)
            swa_owners.update(kv.full_pages[kv.swa_begin_page :])
        assert all(self.has_swa(page) for page in swa_owners), "a page inside a window has no SWA page"
        mapped = {page: swa for page, swa in enumerate(self._swa_of_full) if swa != NO_PAGE}
        assert len(set(mapped.values())) == len(mapped), "two full pages map to one SWA page"
        assert mapped.keys() == swa_owners.keys(), "an SWA page is left without owner, or kept by nobody"
        for page, count in swa_owners.items():
            assert count == self.swa.num_owners(mapped[page]), "owners of an SWA page are miscounted"
        for page, count in full_owners.items():
            assert count == self.full.num_owners(page), "owners of a full page are miscounted"
        assert len(full_owners) == self.full.num_used, "full pages leak"
        assert len(swa_owners) == self.swa.num_used, "SWA pages leak"
