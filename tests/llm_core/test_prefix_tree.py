"""The prefix tree over both pools under random use, against a brute-force model of what may be reused."""

from __future__ import annotations

from dataclasses import dataclass, field

import hypothesis.strategies as st
import pytest
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from llm_core.config import LayerKind
from llm_core.core import EmbedSpan
from llm_core.kv.dual import DualPool, SequenceKV
from llm_core.prefix import PrefixTree, page_keys

PAGE, STEP = 2, 6
Content = tuple[int, ...]


@dataclass(eq=False)
class Running:
    """A sequence: what it is to become, how far it is computed, and the windows to keep on its way."""

    tokens: list[int]
    kv: SequenceKV
    computed: int = 0
    points: set[int] = field(default_factory=set)


class WrittenDown:
    """A tier that keeps, by key, what the model says a page holds."""

    def __init__(self, holds: dict[LayerKind, dict[int, Content]], *, write_through: bool) -> None:
        self.holds = holds
        self.write_through = write_through
        self.kept: dict[tuple[LayerKind, bytes], Content] = {}

    def has(self, kind: LayerKind, key: bytes) -> bool:
        return (kind, key) in self.kept

    def fetch(self, kind: LayerKind, key: bytes) -> Content | None:
        return self.kept.get((kind, key))

    def computed(self, kind: LayerKind, key: bytes, page: int) -> None:
        if self.write_through:
            self.evicted(kind, key, page)

    def evicted(self, kind: LayerKind, key: bytes, page: int) -> None:
        self.kept[kind, key] = self.holds[kind][page]


class Sharing(RuleBasedStateMachine):
    """Sequences begin with what is known, compute, are kept, grow and end; memory runs short, and a tier forgets.

    The model writes down which tokens each page of either pool holds, as attention would find them. A page that is
    read must hold exactly the tokens of the prefix it stands for, for both kinds of layers: else the hit is none.
    """

    @initialize(
        window=st.sampled_from([1, 2, 4, 5, 9]), tier=st.sampled_from(["none", "write_back", "write_through"])
    )
    def start(self, window: int, tier: str) -> None:
        self.window = window
        self.pool = DualPool(
            num_full_pages=30, num_swa_pages=18, page_size=PAGE, window_keys=window, step_tokens=STEP
        )
        self.full_holds: dict[int, Content] = {}
        self.swa_holds: dict[int, Content] = {}
        self.tier = WrittenDown(
            {"full": self.full_holds, "swa": self.swa_holds}, write_through=tier == "write_through"
        )
        self.tree = PrefixTree(self.pool, None if tier == "none" else self.tier)
        self.running: list[Running] = []
        self.known: set[Content] = set()

    def keys(self, tokens: list[int], pages: int) -> list:
        return list(page_keys(tokens[: pages * PAGE], (), 0, PAGE))

    def can_take(self, count: int) -> bool:
        return count <= self.pool.full.num_available and count <= self.pool.swa.num_available

    @precondition(lambda self: len(self.running) < 4)
    @rule(tokens=st.lists(st.integers(0, 1), min_size=1, max_size=24))
    def begin(self, tokens: list[int]) -> None:
        most = (len(tokens) - 1) // PAGE
        keys = self.keys(tokens, most)
        match = self.tree.match(keys)
        assert len(match.pages) <= match.num_pages <= match.num_known <= most
        for count in range(1, match.num_known + 1):
            assert tuple(tokens[: count * PAGE]) in self.known, "a prefix is known that was never kept"
        fetched = self.tree.fetch(keys[: match.num_pages], match)
        assert fetched is not None
        kv = self.tree.begin(keys, match)
        swa = sum(one.kind == "swa" for one in fetched)
        full = match.num_pages - len(match.pages)
        if full > self.pool.full.num_available or swa > self.pool.swa.num_available:
            self.pool.cancel(kv)
            return
        for load in self.tree.load(kv, match, fetched):
            self.tier.holds[load.kind][load.page] = load.block
        assert kv.num_tokens == match.num_pages * PAGE
        sequence = Running(tokens, kv, computed=kv.num_tokens)
        if match.num_known > match.num_pages:
            sequence.points.add(match.num_known)
        self.read(sequence)
        self.running.append(sequence)

    def read(self, sequence: Running) -> None:
        """What the next query reads is what this prefix needs."""
        kv, tokens, at = sequence.kv, sequence.tokens, sequence.computed
        for index in range(-(-at // PAGE)):
            end = min(at, (index + 1) * PAGE)
            assert self.full_holds[kv.full_pages[index]][:end] == tuple(tokens[:end])
        first = max(0, at - self.window + 1)
        swa = self.pool.swa_pages(kv)
        for position in range(first, at):
            index = position // PAGE
            assert index >= kv.swa_begin_page, "a key of the window has no page"
            end = min(at, (index + 1) * PAGE)
            assert self.swa_holds[swa[index - kv.swa_begin_page]][:end] == tuple(tokens[:end])

    @precondition(lambda self: self.running)
    @rule(data=st.data(), count=st.integers(1, STEP), keep=st.booleans())
    def compute(self, data, count: int, keep: bool) -> None:
        sequence = data.draw(st.sampled_from(self.running))
        kv = sequence.kv
        count = min(count, len(sequence.tokens) - sequence.computed)
        if not count:
            return
        need = self.pool.num_missing_pages(kv, count)
        if not self.can_take(need):
            return
        self.tree.make_room(need, need)
        self.read(sequence)
        self.pool.extend(kv, count)
        begin, sequence.computed = sequence.computed, sequence.computed + count
        swa = self.pool.swa_pages(kv)
        for position in range(begin, sequence.computed):
            index, content = position // PAGE, tuple(sequence.tokens[: position + 1])
            self.full_holds[kv.full_pages[index]] = content
            self.swa_holds[swa[index - kv.swa_begin_page]] = content
        if keep:
            self.keep(sequence, {sequence.computed // PAGE} | sequence.points)
        self.pool.slide(kv, sequence.computed)
        assert self.pool.num_swa_pages(kv) <= self.pool.window_pages + 1

    def keep(self, sequence: Running, points: set[int]) -> None:
        whole = sequence.computed // PAGE
        self.tree.insert(self.keys(sequence.tokens, whole), sequence.kv, [p for p in points if p <= whole])
        self.known |= {tuple(sequence.tokens[: page * PAGE]) for page in range(1, whole + 1)}
        self.read(sequence)

    @precondition(lambda self: self.running)
    @rule(data=st.data(), more=st.lists(st.integers(0, 1), max_size=6))
    def answer(self, data, more: list[int]) -> None:
        """Tokens that nobody knew when the sequence began."""
        data.draw(st.sampled_from(self.running)).tokens += more

    @precondition(lambda self: self.running)
    @rule(data=st.data(), keep=st.booleans())
    def end(self, data, keep: bool) -> None:
        sequence = data.draw(st.sampled_from(self.running))
        if keep:
            self.keep(sequence, {sequence.computed // PAGE})
        self.running.remove(sequence)
        self.pool.free(sequence.kv)

    @rule(full=st.integers(0, 30), swa=st.integers(0, 18))
    def evict(self, full: int, swa: int) -> None:
        full, swa = min(full, self.pool.full.num_available), min(swa, self.pool.swa.num_available)
        self.tree.make_room(full, swa)
        assert self.pool.full.num_free >= full
        assert self.pool.swa.num_free >= swa

    @precondition(lambda self: self.tier.kept)
    @rule(data=st.data())
    def forget(self, data) -> None:
        """The tier is a cache, too."""
        del self.tier.kept[data.draw(st.sampled_from(sorted(self.tier.kept)))]

    @invariant()
    def accounting_is_exact(self) -> None:
        if not hasattr(self, "tree"):
            return
        self.tree.check()
        self.pool.check((sequence.kv for sequence in self.running), *self.tree.cached_pages())

    def teardown(self) -> None:
        if not hasattr(self, "tree"):
            return
        for sequence in self.running:
            self.pool.free(sequence.kv)
        self.tree.clear()
        assert self.pool.full.num_used == self.pool.swa.num_used == self.tree.num_pages == 0


TestSharing = Sharing.TestCase
TestSharing.settings = settings(max_examples=120, stateful_step_count=50, deadline=None)


class Bench:
    """Runs whole prompts over a tree, in chunks, as the scheduler does."""

    def __init__(self, *, window: int, full: int = 200, swa: int = 200) -> None:
        self.pool = DualPool(
            num_full_pages=full, num_swa_pages=swa, page_size=4, window_keys=window, step_tokens=16
        )
        self.tree = PrefixTree(self.pool)

    def run(self, tokens: list[int], spans: tuple[EmbedSpan, ...] = ()) -> int:
        """Computes and keeps a prompt; how many of its tokens were there already."""
        most = (len(tokens) - 1) // 4
        keys = list(page_keys(tokens, spans, 0, 4))
        match = self.tree.match(keys[:most])
        kv = self.tree.begin(keys, match)
        cached = kv.num_tokens
        points = {match.num_known, len(tokens) // 4}
        while kv.num_tokens < len(tokens):
            count = min(16, len(tokens) - kv.num_tokens)
            need = self.pool.num_missing_pages(kv, count)
            self.tree.make_room(need, need)
            self.pool.extend(kv, count)
            whole = kv.num_tokens // 4
            self.tree.insert(keys[:whole], kv, [point for point in points if point <= whole])
            self.pool.slide(kv, kv.num_tokens)
        self.pool.free(kv)
        self.tree.check()
        self.pool.check([], *self.tree.cached_pages())
        return cached


def test_a_shared_beginning_hits_from_the_third_request_on() -> None:
    """The first leaves no window where the others will part from it; the second finds the pages and leaves one."""
    bench = Bench(window=9)
    system = list(range(64))
    assert [bench.run([*system, *([100 + user] * 30)]) for user in range(4)] == [0, 0, 64, 64]


def test_a_longer_conversation_goes_on_where_it_ended() -> None:
    bench = Bench(window=9)
    tokens = list(range(50))
    assert bench.run(tokens) == 0
    assert bench.run([*tokens, *range(200, 240)]) == 48
    # Asked again, word for word: one token must run, so the last page is not used.
    assert bench.run(tokens[:48]) == 0
    assert bench.run(tokens[:48]) == 44


def test_windows_go_before_pages_and_pages_oldest_first() -> None:
    bench = Bench(window=9, full=40, swa=40)
    first, second = list(range(32)), list(range(100, 132))
    bench.run(first), bench.run(second)
    assert bench.pool.swa.num_idle == 2 * 2
    bench.tree.make_room(0, bench.pool.swa.num_pages - 2)
    # Only the younger one's window is left; the pages all are.
    assert bench.tree.num_windows == 1
    assert bench.tree.num_pages == 16
    assert bench.run([*second, 1]) == 32
    assert bench.run([*first, 1]) == 0
    bench.tree.make_room(40 - 8, 0)
    assert bench.tree.match(list(page_keys(second, (), 0, 4))).num_known == 0
    assert bench.tree.match(list(page_keys(first, (), 0, 4))).num_known == 8


def test_what_is_in_use_is_never_evicted() -> None:
    bench = Bench(window=9, full=20, swa=20)
    tokens = list(range(33))
    bench.run(tokens)
    keys = list(page_keys(tokens, (), 0, 4))
    kv = bench.tree.begin(keys, bench.tree.match(keys))
    assert kv.num_tokens == 32
    bench.tree.clear()
    assert bench.tree.num_pages == 8
    assert (bench.pool.full.num_free, bench.pool.swa.num_free) == (12, 18)
    with pytest.raises(AssertionError, match="13 pages wanted, 12 available"):
        bench.tree.make_room(13, 0)
    bench.tree.check()
    bench.pool.free(kv)
    bench.tree.clear()
    assert bench.pool.full.num_used == bench.pool.swa.num_used == 0


def span(start: int, length: int, digest: str) -> EmbedSpan:
    return EmbedSpan(start=start, length=length, content_key=digest, embeddings=None)


def test_pictures_are_told_apart_by_their_digest_and_rows() -> None:
    bench = Bench(window=1)
    tokens = [1, 2, 3, *[7] * 14, *range(50, 73)]
    assert bench.run(tokens, (span(3, 14, "cat"),)) == 0
    assert bench.run(tokens, (span(3, 14, "cat"),)) == 36
    assert bench.run(tokens, (span(3, 14, "dog"),)) == 0
    # Two pictures of half the size are not one.
    assert bench.run(tokens, (span(3, 7, "cat"), span(10, 7, "cat"))) == 8
    assert bench.run(tokens) == 0


@pytest.mark.parametrize("window", [1, 2, 5, 6, 9])
def test_a_match_is_as_long_as_the_window_allows(window: int) -> None:
    """Whatever is reused, the keys before it are there: brute force over the length of the shared beginning."""
    for shared in range(40):
        bench = Bench(window=window)
        bench.run(list(range(40)))
        cached = bench.run([*range(shared), *range(1000, 1050 - shared)])
        # The one window kept is at the end of the first prompt; a window of one key is always there.
        assert cached == (shared // 4 * 4 if window == 1 or shared == 40 else 0)
