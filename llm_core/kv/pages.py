"""A pool of equal pages, by number. Knows nothing of tensors."""

from __future__ import annotations

from collections.abc import Iterable


class PagePool:
    """Reference-counted pages 0 .. num_pages - 1.

    A page is free or has at least one owner. Taking makes the taker its one owner, sharing adds an owner, giving
    back removes one. Giving back a free page is a bug of the caller and asserts.

    One owner of a page may be a cache, which says so with `cache` and `uncache`. A page that nobody but the cache
    owns is idle: it holds something worth keeping until somebody needs the room.
    """

    def __init__(self, num_pages: int) -> None:
        self.num_pages = num_pages
        # Popped from the end: a new sequence gets ascending pages, which attention can read without gathering.
        self._free = list(range(num_pages - 1, -1, -1))
        self._owners = [0] * num_pages
        self._is_cached = [False] * num_pages
        self._num_idle = 0

    @property
    def num_free(self) -> int:
        return len(self._free)

    @property
    def num_used(self) -> int:
        return self.num_pages - len(self._free)

    @property
    def num_idle(self) -> int:
        return self._num_idle

    @property
    def num_available(self) -> int:
        """Free, or idle and thus free once the cache lets go."""
        return len(self._free) + self._num_idle

    def num_owners(self, page: int) -> int:
        return self._owners[page]

    def is_idle(self, page: int) -> bool:
        return self._is_cached[page] and self._owners[page] == 1

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
            self._num_idle -= self.is_idle(page)
            self._owners[page] += 1

    def give_back(self, pages: Iterable[int]) -> None:
        """One owner less for each page; a page without owners is free."""
        freed = []
        for page in pages:
            assert self._owners[page] > 0, f"page {page} is given back twice"
            assert not self.is_idle(page), f"page {page} is the cache's alone and only `uncache` frees it"
            self._owners[page] -= 1
            self._num_idle += self.is_idle(page)
            if self._owners[page] == 0:
                freed.append(page)
        self._free.extend(reversed(freed))

    def cache(self, page: int) -> None:
        """The cache becomes one more owner of a page that has one."""
        assert self._owners[page] > 0, f"page {page} is free and holds nothing to cache"
        assert not self._is_cached[page], f"page {page} is cached twice"
        self._owners[page] += 1
        self._is_cached[page] = True

    def uncache(self, page: int) -> None:
        """The cache lets go."""
        assert self._is_cached[page], f"page {page} is not cached"
        self._num_idle -= self.is_idle(page)
        self._is_cached[page] = False
        self.give_back([page])

    def check(self) -> None:
        """Asserts that every page is either free, once, or owned, and that idle pages are counted."""
        assert len(set(self._free)) == len(self._free), "a page is free twice"
        for page in self._free:
            assert self._owners[page] == 0, f"page {page} is free and owned"
            assert not self._is_cached[page], f"page {page} is free and cached"
        assert self.num_used == sum(owners > 0 for owners in self._owners), "a page is lost"
        assert self._num_idle == sum(map(self.is_idle, range(self.num_pages))), "idle pages are miscounted"
