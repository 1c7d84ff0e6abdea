"""A tree of pages: what was computed once is found again by whoever begins with the same tokens.

Every node is one full page; the way from the root to it is a prefix. Full pages and windows are kept and evicted
apart. A window is what the sliding-window layers need to go on behind a page boundary: the SWA pages of the last
`pool.window_pages` full pages before it. A prefix may be used up to a boundary whose window is whole, no further,
however far the full pages go on (a longer match would read keys that are gone).

The tree is an owner of its pages beside the sequences that use them, so nothing in use is ever freed, whatever is
evicted: a sequence owns all its full pages up to the root, and the SWA pages of its own window only. Knows no
tensors.
"""

from __future__ import annotations

import heapq
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import count

from llm_core.kv.dual import DualPool, SequenceKV
from llm_core.prefix.keys import PageKey

# Stale entries of the eviction order are cleared away once there are this many more than pages.
_FEW = 64


class Node:
    """One full page. num_windows: kept windows that it is part of. used: when it was used last."""

    __slots__ = ("children", "depth", "key", "num_windows", "page", "parent", "used")

    def __init__(self, parent: Node | None, key: PageKey | None, page: int) -> None:
        self.parent, self.key, self.page = parent, key, page
        self.depth: int = 0 if parent is None else parent.depth + 1
        self.children: dict[PageKey, Node] = {}
        self.num_windows = 0
        self.used = 0


@dataclass(frozen=True, kw_only=True)
class Match:
    """How much of a prompt is there.

    pages: full pages that may be used, up to a boundary with a whole window. num_known: full pages that are there,
    with or without a window; where that is more, the window at its end is worth keeping next time.
    """

    pages: tuple[int, ...]
    num_known: int


def _is_due(entry: tuple[int, int, Node]) -> bool:
    """Whether an entry of the eviction order still tells a leaf and its last use."""
    used, _, node = entry
    return node.used == used and not node.children and node.parent is not None


class PrefixTree:
    """Owns, beside others, the pages of prefixes worth keeping, as long as nobody needs the room."""

    def __init__(self, pool: DualPool) -> None:
        self.pool = pool
        self._root = Node(None, None, -1)
        # The end node of each kept window, the one that was not used for longest first.
        self._windows: OrderedDict[Node, None] = OrderedDict()
        # Leaves by the time of their last use; an entry whose time is not its node's any more is stale.
        self._leaves: list[tuple[int, int, Node]] = []
        self._clock = count(1)
        self._numbers = count()
        self.num_pages = 0

    @property
    def num_windows(self) -> int:
        return len(self._windows)

    def match(self, keys: Sequence[PageKey], most_pages: int) -> Match:
        """The longest usable beginning of `keys`, at most `most_pages`. Changes nothing."""
        path = self._path(keys[:most_pages])
        need = self.pool.window_pages
        in_a_row = usable = 0
        for depth, node in enumerate(path, start=1):
            in_a_row = in_a_row + 1 if self.pool.has_swa(node.page) else 0
            if in_a_row >= min(depth, need):
                usable = depth
        return Match(pages=tuple(node.page for node in path[:usable]), num_known=len(path))

    def begin(self, keys: Sequence[PageKey], match: Match) -> SequenceKV:
        """A sequence that goes on behind the match, whose pages count as used now."""
        path = self._path(keys[: len(match.pages)])
        self._touch(path)
        if path and path[-1] in self._windows:
            self._windows.move_to_end(path[-1])
        return self.pool.begin(match.pages)

    def insert(self, keys: Sequence[PageKey], kv: SequenceKV, windows: Iterable[int]) -> None:
        """Keeps the pages of a sequence that `keys` name, all of them computed.

        Where the same prefix is there already, the sequence goes on with the tree's pages and gives back its own,
        so that what is in use is always a whole way up to the root. windows: page boundaries, at most len(keys),
        whose windows to keep; one of which a part is gone is left out.
        """
        node, path = self._root, []
        for index, key in enumerate(keys):
            mine = kv.full_pages[index]
            child = node.children.get(key)
            if child is None:
                child = self._add(node, key, mine)
            elif child.page != mine:
                self.pool.exchange(kv, index, child.page)
            node = child
            path.append(child)
        self._touch(path)
        for boundary in windows:
            if 0 < boundary <= len(path):
                self._keep_window(path[boundary - 1])

    def make_room(self, num_full: int, num_swa: int) -> None:
        """Evicts what was not used for longest until so many pages of each pool are free.

        The pools must have as many available (free or idle).
        """
        for pool, wanted in ((self.pool.full, num_full), (self.pool.swa, num_swa)):
            assert wanted <= pool.num_available, f"{wanted} pages wanted, {pool.num_available} available"
        self._evict_windows(num_swa)
        self._evict_pages(num_full)

    def clear(self) -> None:
        """Lets go of everything that nobody uses."""
        self.make_room(self.pool.full.num_available, self.pool.swa.num_available)

    def cached_pages(self) -> tuple[list[int], list[int]]:
        """Full pages of the tree, and those of them whose SWA pages it owns; for `DualPool.check`."""
        nodes = list(self._nodes())
        return [node.page for node in nodes], [node.page for node in nodes if node.num_windows]

    def check(self) -> None:
        """Asserts that what the tree counts is what it holds."""
        nodes = list(self._nodes())
        assert len(nodes) == self.num_pages, "nodes are miscounted"
        covering: dict[Node, int] = {}
        for end in self._windows:
            for node in self._window(end):
                covering[node] = covering.get(node, 0) + 1
        for node in nodes:
            assert node.num_windows == covering.pop(node, 0), "windows over a node are miscounted"
            assert not node.num_windows or self.pool.has_swa(node.page), "a kept window has lost a page"
        assert not covering, "a window of a node that is gone"
        waiting = {(used, id(node)) for used, _, node in self._leaves}
        for node in nodes:
            assert node.children or (node.used, id(node)) in waiting, "a leaf cannot be evicted"

    def _path(self, keys: Sequence[PageKey]) -> list[Node]:
        node, path = self._root, []
        for key in keys:
            child = node.children.get(key)
            if child is None:
                break
            node = child
            path.append(child)
        return path

    def _add(self, parent: Node, key: PageKey, page: int) -> Node:
        node = Node(parent, key, page)
        parent.children[key] = node
        self.pool.full.cache(page)
        self.num_pages += 1
        return node

    def _touch(self, path: Sequence[Node]) -> None:
        now = next(self._clock)
        for node in path:
            node.used = now
        if path and not path[-1].children:
            self._wait_for_eviction(path[-1])

    def _wait_for_eviction(self, leaf: Node) -> None:
        if len(self._leaves) > 2 * self.num_pages + _FEW:
            self._leaves = [entry for entry in self._leaves if _is_due(entry)]
            heapq.heapify(self._leaves)
        heapq.heappush(self._leaves, (leaf.used, next(self._numbers), leaf))

    def _window(self, end: Node) -> Iterator[Node]:
        """The nodes of the window that ends with `end`, last first."""
        node: Node | None = end
        for _ in range(self.pool.window_pages):
            if node is None or node.parent is None:
                return
            yield node
            node = node.parent

    def _keep_window(self, end: Node) -> None:
        if end in self._windows:
            self._windows.move_to_end(end)
            return
        nodes = list(self._window(end))
        if not nodes or not all(self.pool.has_swa(node.page) for node in nodes):
            return
        for node in nodes:
            if not node.num_windows:
                self.pool.cache_swa(node.page)
            node.num_windows += 1
        self._windows[end] = None

    def _drop_window(self, end: Node) -> None:
        del self._windows[end]
        for node in self._window(end):
            node.num_windows -= 1
            if not node.num_windows:
                self.pool.uncache_swa(node.page)

    def _evict_windows(self, num_swa: int) -> None:
        in_use = []
        while self.pool.swa.num_free < num_swa:
            end = next(iter(self._windows))
            if any(self.pool.swa_is_idle(node.page) for node in self._window(end)):
                self._drop_window(end)
            else:
                # Dropping it would free nothing.
                del self._windows[end]
                in_use.append(end)
        for end in reversed(in_use):
            self._windows[end] = None
            self._windows.move_to_end(end, last=False)

    def _evict_pages(self, num_full: int) -> None:
        in_use = []
        while self.pool.full.num_free < num_full:
            entry = heapq.heappop(self._leaves)
            if not _is_due(entry):
                continue
            if self.pool.full.is_idle(entry[2].page):
                self._remove(entry[2])
            else:
                in_use.append(entry)
        for entry in in_use:
            heapq.heappush(self._leaves, entry)

    def _remove(self, leaf: Node) -> None:
        parent, key = leaf.parent, leaf.key
        assert parent is not None
        assert key is not None
        if leaf in self._windows:
            self._drop_window(leaf)
        del parent.children[key]
        leaf.parent = None
        self.pool.full.uncache(leaf.page)
        self.num_pages -= 1
        if not parent.children and parent.parent is not None:
            self._wait_for_eviction(parent)

    def _nodes(self) -> Iterator[Node]:
        waiting = list(self._root.children.values())
        while waiting:
            node = waiting.pop()
            yield node
            waiting += node.children.values()
