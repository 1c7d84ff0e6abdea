"""A pool of equal pages, by number. Knows nothing of tensors."""

from __future__ import annotations

from collections.abc import Iterable


class PagePool:
    """Reference-counted pages 0 .. num_pages - 1.

    A page is free or has at least one owner. Taking makes the taker its one owner, sharing adds an owner, giving
    back removes one. Giving back a free page is a bug of the caller and asserts.
    """

    def __init__(self, num_pages: int) -> None:
        self.num_pages = num_pages
        # Popped from the end: a new sequence gets ascending pages, which attention can read without gathering.
        self._free = list(range(num_pages - 1, -1, -1))
        self._owners = [0] * num_pages

    @property
    def num_free(self) -> int:
        return len(self._free)

    @property
    def num_used(self) -> int:
        return self.num_pages - len(self._free)

    def num_owners(self, page: int) -> int:
        return self._owners[page]

    def take(self, count: int) -> list[int]:
        """`count` free pages, now owned by the caller; there must be that many."""
        assert count <= len(self._free), f"{count} pages wanted, {len(self._free)} free"
        pages = [self._free.pop() for _ in range(count)]
        for page in pages:
            self._owners[page] = 1
        return pages

    def share(self, pages: Iterable[int]) -> None:
        """One owner more for each page."""
        for page in pages:
            assert self._owners[page] > 0, f"page {page} is free and cannot be shared"
            self._owners[page] += 1

    def give_back(self, pages: Iterable[int]) -> None:
        """One owner less for each page; a page without owners is free."""
        freed = []
        for page in pages:
            assert self._owners[page] > 0, f"page {page} is given back twice"
            self._owners[page] -= 1
            if self._owners[page] == 0:
                freed.append(page)
        self._free.extend(reversed(freed))

    def check(self) -> None:
        """Asserts that every page is either free, once, or owned."""
        assert len(set(self._free)) == len(self._free), "a page is free twice"
        for page in self._free:
            assert self._owners[page] == 0, f"page {page} is free and owned"
        assert self.num_used == sum(owners > 0 for owners in self._owners), "a page is lost"
