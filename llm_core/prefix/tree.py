"""A tree of pages: what was computed once is found again by whoever begins with the same tokens.

Every node is one full page; the way from the root to it is a prefix. Full pages and windows are kept and evicted
apart. A window is what the sliding-window layers need to go on behind a page boundary: the SWA pages of the last
`pool.window_pages` full pages before it. A prefix may be used up to a boundary whose window is whole, no further,
however far the full pages go on (a longer match would read keys that are gone).

The tree is an owner of its pages beside the sequences that use them, so nothing in use is ever freed, whatever is
evicted: a sequence owns all its full pages up to the root, and the SWA pages of its own window only.

Below the device there may be tiers that keep what is evicted. A match goes on through them where the tree ends, and
where only a window is missing it may come from there. Knows no tensors.
"""

from __future__ import annotations

import heapq
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import count
from typing import Any

from llm_core.config import LayerKind
from llm_core.kv.dual import DualPool, SequenceKV
from llm_core.kv.tiers.base import LowerTiers, NoTiers, PageLoad
from llm_core.prefix.keys import PageKey

# Stale entries of the eviction order are cleared away once there are this many more than pages.
_FEW = 64


class Node:
    """One full page. num_windows: kept windows that it is part of. used: when it or one behind it was used last."""

    __slots__ = ("children", "depth", "key", "num_windows", "page", "parent", "used")

    def __init__(self, parent: Node | None, key: PageKey, page: int) -> None:
        self.parent, self.key, self.page = parent, key, page
        self.depth: int = 0 if parent is None else parent.depth + 1
        self.children: dict[PageKey, Node] = {}
        self.num_windows = 0
        self.used = 0


@dataclass(frozen=True, kw_only=True)
class Match:
    """How much of a prompt is there.

    num_pages: how many may be used, up to a boundary with a whole window. pages: the first ones of them, whose full
    pages are on the device. num_known: pages that are there, with or without a window; where that is more, the
    window at its end is worth keeping next time.
    """

    num_pages: int = 0
    pages: tuple[int, ...] = ()
    num_known: int = 0


@dataclass(frozen=True)
class Fetched:
    """A page that a tier has: of which kind, the how manyth of the prompt, and what it holds."""

    kind: LayerKind
    index: int
    block: Any


def _is_due(entry: tuple[int, int, Node]) -> bool:
    """Whether an entry of the eviction order still tells a leaf and its last use."""
    used, _, node = entry
    return node.used == used and not node.children and node.parent is not None


class PrefixTree:
    """Owns, beside others, the pages of prefixes worth keeping, as long as nobody needs the room."""

    def __init__(self, pool: DualPool, tiers: LowerTiers | None = None) -> None:
        self.pool = pool
        self._tiers = tiers or NoTiers()
        self._root = Node(None, b"", -1)
        self._nodes: dict[PageKey, Node] = {}
        # The end node of each kept window, the one that was not used for longest first.
        self._windows: OrderedDict[Node, None] = OrderedDict()
        # Leaves by the time of their last use; an entry whose time is not its node's any more is stale.
        self._leaves: list[tuple[int, int, Node]] = []
        self._clock = count(1)
        self._numbers = count()

    @property
    def num_pages(self) -> int:
        return len(self._nodes)

    @property
    def num_windows(self) -> int:
        return len(self._windows)

    def match(self, keys: Sequence[PageKey]) -> Match:
        """The longest usable beginning of `keys`. Changes nothing."""
        path = self._path(keys)
        num_known = len(path)
        while num_known < len(keys) and self._tiers.has("full", keys[num_known]):
            num_known += 1
        usable = in_a_row = 0
        if not self.pool.window_pages:
            usable = num_known
        for index in reversed(range(num_known)):
            if usable:
                break
            on_device = index < len(path) and self.pool.has_swa(path[index].page)
            in_a_row = in_a_row + 1 if on_device or self._tiers.has("swa", keys[index]) else 0
            if in_a_row == self.pool.window_pages or index == 0:
                usable = index + in_a_row
        pages = tuple(node.page for node in path[:usable])
        return Match(num_pages=usable, pages=pages, num_known=num_known)

    def fetch(self, keys: Sequence[PageKey], match: Match) -> list[Fetched] | None:
        """What of the match must be loaded from the tiers. None where they have lost some of it since."""
        there, end = len(match.pages), match.num_pages
        lacking: list[tuple[LayerKind, int]] = [("full", index) for index in range(there, end)]
        lacking += [
            ("swa", index)
            for index in range(max(0, end - self.pool.window_pages), end)
            if index >= there or not self.pool.has_swa(match.pages[index])
        ]
        found = [Fetched(kind, index, self._tiers.fetch(kind, keys[index])) for kind, index in lacking]
        return None if any(one.block is None for one in found) else found

    def begin(self, keys: Sequence[PageKey], match: Match) -> SequenceKV:
        """A sequence that goes on behind the match, whose pages count as used now.

        Where something of it must be fetched, `load` or the pool's `cancel` must follow.
        """
        if match.pages:
            node = self._nodes[keys[len(match.pages) - 1]]
            self._touch(node)
            if node in self._windows:
                self._windows.move_to_end(node)
        return self.pool.begin(match.pages, match.num_pages)

    def load(self, kv: SequenceKV, match: Match, fetched: Iterable[Fetched]) -> tuple[PageLoad, ...]:
        """Gives the sequence pages for what was fetched, and says what goes where; they must be available."""
        swa = sum(one.kind == "swa" for one in fetched)
        self.make_room(match.num_pages - len(match.pages), swa)
        self.pool.fill(kv, match.num_pages)
        pages = kv.full_pages
        return tuple(
            PageLoad(
                kind=one.kind,
                page=pages[one.index] if one.kind == "full" else self.pool.swa_page(pages[one.index]),
                block=one.block,
            )
            for one in fetched
        )

    def insert(
        self, keys: Sequence[PageKey], kv: SequenceKV, windows: Iterable[int], num_kept: int = 0
    ) -> None:
        """Keeps the pages of a sequence that `keys` name, all of them computed.

        Where the same prefix is there already, the sequence goes on with the tree's pages and gives back its own,
        so that what is in use is always a whole way up to the root. windows: page boundaries, at most len(keys),
        whose windows to keep; one of which a part is gone is left out. num_kept: so many of its first pages are the
        tree's already.
        """
        node = self._nodes[keys[num_kept - 1]] if num_kept else self._root
        for index in range(num_kept, len(keys)):
            key, mine = keys[index], kv.full_pages[index]
            child = self._nodes.get(key)
            if child is None:
                child = self._add(node, key, mine)
            elif child.page != mine:
                self.pool.exchange(kv, index, child.page)
            node = child
        if node is not self._root:
            self._touch(node)
        for boundary in windows:
            if 0 < boundary <= len(keys):
                self._keep_window(self._nodes[keys[boundary - 1]])

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
        nodes = self._nodes.values()
        return [node.page for node in nodes], [node.page for node in nodes if node.num_windows]

    def check(self) -> None:
        """Asserts that what the tree counts is what it holds."""
        nodes = list(self._reached())
        assert {node.key: node for node in nodes} == self._nodes, "a node is lost, or not under its key"
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
        path = []
        for key in keys:
            node = self._nodes.get(key)
            if node is None:
                break
            path.append(node)
        return path

    def _add(self, parent: Node, key: PageKey, page: int) -> Node:
        node = Node(parent, key, page)
        parent.children[key] = node
        self._nodes[key] = node
        self.pool.full.cache(page)
        self._tiers.computed("full", key, page)
        return node

    def _touch(self, node: Node) -> None:
        """Those before it count as used with it once they are leaves themselves."""
        node.used = next(self._clock)
        if not node.children:
            self._wait_for_eviction(node)

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
                self._tiers.computed("swa", node.key, self.pool.swa_page(node.page))
            node.num_windows += 1
        self._windows[end] = None

    def _drop_window(self, end: Node) -> None:
        del self._windows[end]
        for node in self._window(end):
            node.num_windows -= 1
            if not node.num_windows:
                self._tiers.evicted("swa", node.key, self.pool.swa_page(node.page))
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
        parent = leaf.parent
        assert parent is not None
        if leaf in self._windows:
            self._drop_window(leaf)
        del parent.children[leaf.key], self._nodes[leaf.key]
        leaf.parent = None
        self._tiers.evicted("full", leaf.key, leaf.page)
        self.pool.full.uncache(leaf.page)
        parent.used = max(parent.used, leaf.used)
        if not parent.children and parent.parent is not None:
            self._wait_for_eviction(parent)

    def _reached(self) -> Iterator[Node]:
        waiting = list(self._root.children.values())
        while waiting:
            node = waiting.pop()
            yield node
            waiting += node.children.values()
