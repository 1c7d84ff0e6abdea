"""Continuous batching: each step decodes every running sequence and fills a token budget with prefill chunks."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from llm_core.kv.dual import DualPool
from llm_core.scheduler.sequence import Sequence


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


class Scheduler:
    """First come, first served. A sequence is admitted when both pools can hold it to its end.

    Args:
        max_running: most sequences at once.
        prefill_tokens: most prompt tokens per step, over all sequences.
    """

    def __init__(self, pool: DualPool, *, max_running: int, prefill_tokens: int) -> None:
        self.pool = pool
        self.max_running = max_running
        self.prefill_tokens = prefill_tokens
        self.waiting: deque[Sequence] = deque()
        self.running: list[Sequence] = []

    @property
    def has_work(self) -> bool:
        return bool(self.waiting or self.running)

    def add(self, sequence: Sequence) -> None:
        self.waiting.append(sequence)

    def next_step(self) -> Step:
        """Chooses the next step's chunks, admits what fits, and gives every chunk its pages."""
        decodes = [
            Chunk(sequence, sequence.num_computed, sequence.num_tokens)
            for sequence in self.running
            if sequence.is_decoding
        ]
        prefills = []
        budget = self.prefill_tokens
        for sequence in self.running:
            if budget and not sequence.is_decoding:
                prefills.append(self._chunk(sequence, budget))
                budget -= prefills[-1].end - prefills[-1].begin
        while budget and self._admit_next():
            prefills.append(self._chunk(self.running[-1], budget))
            budget -= prefills[-1].end - prefills[-1].begin
        step = Step(decodes=tuple(decodes), prefills=tuple(prefills))
        for chunk in step.chunks:
            kv = chunk.sequence.kv
            assert kv is not None
            self.pool.extend(kv, chunk.end - kv.num_tokens)
        return step

    def complete(self, step: Step) -> None:
        """The step has run: its tokens are in the cache, and windows move on."""
        for chunk in step.chunks:
            sequence = chunk.sequence
            if sequence.kv is None:
                continue
            sequence.num_computed = chunk.end
            self.pool.slide(sequence.kv, chunk.end)

    def remove(self, sequence: Sequence) -> None:
        """Forgets a sequence, waiting or running, and frees what it holds."""
        if sequence.kv is None:
            self.waiting.remove(sequence)
            return
        self.running.remove(sequence)
        self.pool.free(sequence.kv)
        sequence.kv = None

    def _chunk(self, sequence: Sequence, budget: int) -> Chunk:
        end = min(sequence.num_tokens, sequence.num_computed + budget)
        return Chunk(sequence, sequence.num_computed, end)

    def _admit_next(self) -> bool:
        if not self.waiting or len(self.running) >= self.max_running:
            return False
        sequence = self.waiting[0]
        if not self.pool.can_admit(sequence.max_tokens):
            return False
        self.waiting.popleft()
        sequence.kv = self.pool.admit(sequence.max_tokens)
        self.running.append(sequence)
        return True
