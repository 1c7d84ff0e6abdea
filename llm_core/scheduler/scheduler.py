"""Continuous batching: each step decodes every running sequence and fills a token budget with prefill chunks."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import count

from llm_core.kv.dual import DualPool
from llm_core.kv.tiers.base import LowerTiers, PageLoad
from llm_core.prefix import Match, PrefixTree
from llm_core.scheduler.queue import Queue
from llm_core.scheduler.sequence import Sequence
from llm_core.scheduler.settings import SchedulerSettings


@dataclass(frozen=True)
class Chunk:
    """Positions [begin, end) of a sequence, to run in this step."""

    sequence: Sequence
    begin: int
    end: int

    @property
    def is_last(self) -> bool:
        """After it every known token has run, so the next token can be chosen."""
        return self.end == self.sequence.num_tokens


@dataclass(frozen=True)
class Step:
    """Decodes are one token each; their chunks come first in the batch."""

    decodes: tuple[Chunk, ...]
    prefills: tuple[Chunk, ...]

    @property
    def chunks(self) -> tuple[Chunk, ...]:
        return self.decodes + self.prefills

    @property
    def loads(self) -> list[PageLoad]:
        """What must be in its page before the layer that reads it runs."""
        return [load for chunk in self.prefills for load in chunk.sequence.loads]


class Scheduler:
    """Admits sequences, gives them pages step by step, and takes them away again when a pool runs short.

    A sequence is admitted when both pools can hold its prompt. Its answer takes pages as it grows; when none are
    left, the sequence admitted last of those with the lowest priority gives up its own and waits to run again, most
    of it from the prefix cache. The first one of the highest priority never does, so there is always progress.
    """

    def __init__(self, pool: DualPool, settings: SchedulerSettings, tiers: LowerTiers | None = None) -> None:
        self.pool = pool
        self.settings = settings
        self.tree = PrefixTree(pool, tiers)
        self.waiting = Queue(
            self._num_uncached,
            policy=settings.policy,
            waiting_credit=settings.waiting_credit,
            priority_tokens=settings.priority_tokens,
            step_tokens=settings.step_tokens,
        )
        self.running: list[Sequence] = []
        self.num_preemptions = 0
        self._admissions = count()

    @property
    def has_work(self) -> bool:
        return bool(self.waiting or self.running)

    def add(self, sequence: Sequence) -> None:
        self.waiting.add(sequence)

    def next_step(self) -> Step:
        """Chooses the next step's chunks, admits what fits, and gives every chunk its pages.

        With work there is always at least one chunk.
        """
        preempted_before = self.num_preemptions
        decodes = [
            Chunk(sequence, sequence.num_computed, sequence.num_tokens)
            for sequence in sorted(self.running, key=_rank)
            if sequence.is_decoding and self._grow(sequence, 1)
        ]
        least = min(self.pool.page_size, self.settings.step_tokens)
        budget = max(self.settings.step_tokens - len(decodes), least)
        return Step(
            decodes=_with_pages(decodes), prefills=_with_pages(self._prefills(budget, preempted_before))
        )

    def _prefills(self, budget: int, preempted_before: int) -> list[Chunk]:
        """Chunks of prompts, of who runs already and who waits, by their tags; all of one bucket.

        Nobody is admitted once a sequence has given way in this step: it would come back at once, and again.
        """
        started = [sequence for sequence in self.running if not sequence.is_decoding]
        started.sort(key=self.waiting.tag, reverse=True)
        chunks: list[Chunk] = []
        bucket: int | None = None
        may_admit = self.num_preemptions == preempted_before
        while budget > 0:
            waiting = (
                self.waiting.first() if may_admit and len(self.running) < self.settings.max_running else None
            )
            if waiting is not None and started and self.waiting.tag(waiting) > self.waiting.tag(started[-1]):
                waiting = None
            sequence = waiting or (started.pop() if started else None)
            if sequence is None:
                break
            if bucket not in (None, self._bucket(sequence)):
                may_admit = may_admit and sequence is not waiting
                continue
            if sequence is waiting and not self._admit(sequence):
                may_admit = False
                continue
            end = min(sequence.num_tokens, sequence.num_computed + budget)
            if self._grow(sequence, end - sequence.num_computed):
                bucket = self._bucket(sequence)
                chunks.append(Chunk(sequence, sequence.num_computed, end))
                budget -= end - sequence.num_computed
            may_admit = may_admit and self.num_preemptions == preempted_before
        return chunks

    def complete(self, step: Step) -> None:
        """The step has run: its tokens are in the cache, windows move on, and prompts are there for others."""
        for chunk in step.chunks:
            sequence = chunk.sequence
            if sequence.kv is None:
                continue
            sequence.num_computed = chunk.end
            sequence.loads = ()
            if not sequence.output_ids or chunk.end - chunk.begin > 1:
                self._keep(
                    sequence, (p for p in sequence.window_points if p * self.pool.page_size > chunk.begin)
                )
            self.pool.slide(sequence.kv, chunk.end)

    def remove(self, sequence: Sequence) -> None:
        """Forgets a sequence, waiting or running; what it has computed stays for others while there is room."""
        if sequence.kv is None:
            self.waiting.remove(sequence)
            return
        self.running.remove(sequence)
        self._release(sequence)

    def check(self) -> None:
        """Asserts that pools, tree and sequences agree on who owns what."""
        self.tree.check()
        kvs = (sequence.kv for sequence in self.running)
        self.pool.check((kv for kv in kvs if kv is not None), *self.tree.cached_pages())

    def _release(self, sequence: Sequence) -> None:
        assert sequence.kv is not None
        self._keep(sequence, (sequence.num_computed // self.pool.page_size,))
        self.pool.free(sequence.kv)
        sequence.kv = None
        sequence.loads = ()

    def _keep(self, sequence: Sequence, window_points: Iterable[int]) -> None:
        if not self.settings.prefix_cache:
            return
        assert sequence.kv is not None
        if sequence.loads:
            # The step that was to fill its pages did not end.
            return
        whole = sequence.num_computed // self.pool.page_size
        keys = sequence.page_keys(whole, self.pool.page_size)
        points = [point for point in window_points if point <= whole]
        self.tree.insert(keys, sequence.kv, points, sequence.num_kept)
        sequence.num_kept = whole

    def _match(self, sequence: Sequence) -> Match:
        if not self.settings.prefix_cache:
            return Match()
        # The last token always runs: its logits are wanted.
        most = (sequence.num_tokens - 1) // self.pool.page_size
        return self.tree.match(sequence.page_keys(most, self.pool.page_size))

    def _num_uncached(self, sequence: Sequence) -> int:
        return sequence.num_tokens - self._match(sequence).num_pages * self.pool.page_size

    def _bucket(self, sequence: Sequence) -> int:
        return bisect_left(self.settings.bucket_bounds, sequence.max_tokens)

    def _admit(self, sequence: Sequence) -> bool:
        """Admits a waiting sequence if both pools can hold its prompt."""
        pool = self.pool
        # Those who run may need a page each before long, and what is left of their prompts.
        promised = sum(pool.pages_for(other.num_tokens) - len(_pages(other)) + 1 for other in self.running)
        if self.running and promised >= pool.full.num_available:
            return False
        match = self._match(sequence)
        keys = sequence.page_keys(match.num_pages, pool.page_size)
        while (fetched := self.tree.fetch(keys, match)) is None:
            # A tier has made room for something else meanwhile: there is less to go on from.
            match = self._match(sequence)
            keys = sequence.page_keys(match.num_pages, pool.page_size)
        kv = self.tree.begin(keys, match)
        need = pool.pages_for(sequence.num_tokens) - len(kv.full_pages)
        need_swa = pool.max_swa_pages(sequence.num_tokens) - pool.num_held_swa(kv)
        if need + promised > pool.full.num_available or need_swa + len(self.running) > pool.swa.num_available:
            pool.cancel(kv)
            return False
        self.waiting.remove(sequence)
        sequence.loads = self.tree.load(kv, match, fetched)
        sequence.kv = kv
        sequence.num_computed = kv.num_tokens
        sequence.num_kept = len(match.pages)
        if not sequence.num_preempted:
            sequence.num_cached = kv.num_tokens
            sequence.window_points = self._window_points(sequence, match)
        sequence.admission = next(self._admissions)
        self.running.append(sequence)
        return True

    def _window_points(self, sequence: Sequence, match: Match) -> set[int]:
        """Where others are likely to part from this prompt: its end, where it parted itself, and at a stride."""
        size, num_prompt = self.pool.page_size, sequence.num_prompt
        points = {(num_prompt - 1) // size, match.num_known}
        if num_prompt <= self.settings.short_prompt_tokens:
            stride = max(1, self.settings.window_stride // size)
            points.update(range(stride, num_prompt // size + 1, stride))
        return points

    def _grow(self, sequence: Sequence, num_tokens: int) -> bool:
        """Pages for the next tokens, at the cost of the cache and of who was admitted later.

        False if there are none even so: then the sequence itself is preempted.
        """
        kv = sequence.kv
        if kv is None:
            return False
        need = self.pool.num_missing_pages(kv, num_tokens)
        while need > self.pool.full.num_available or need > self.pool.swa.num_available:
            victim = max(self.running, key=_rank)
            self._preempt(victim)
            if victim is sequence:
                return False
        self.tree.make_room(need, need)
        self.pool.extend(kv, num_tokens)
        return True

    def _preempt(self, sequence: Sequence) -> None:
        self.running.remove(sequence)
        self._release(sequence)
        sequence.num_computed = 0
        sequence.num_preempted += 1
        self.num_preemptions += 1
        self.waiting.add(sequence)


def _rank(sequence: Sequence) -> tuple[int, int]:
    """Who comes before whom when there is not enough for all."""
    return sequence.request.priority, sequence.admission


def _pages(sequence: Sequence) -> list[int]:
    return [] if sequence.kv is None else sequence.kv.full_pages


def _with_pages(chunks: Iterable[Chunk]) -> tuple[Chunk, ...]:
    """Those whose sequence was not preempted by one chosen after it."""
    return tuple(chunk for chunk in chunks if chunk.sequence.kv is not None)
