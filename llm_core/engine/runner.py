"""Runs one step of the scheduler on the model: builds the batch, injects embeddings, returns logits."""

from __future__ import annotations

from collections.abc import Iterator
from collections.abc import Sequence as Seq
from contextlib import contextmanager

import torch
from torch import Tensor

from kernels.attention.base import AttentionLayout
from llm_core.config import LayerKind
from llm_core.kv.dual import DualPool
from llm_core.kv.storage import KVStorage
from llm_core.kv.tiers.base import PageLoad
from llm_core.kv.tiers.tiers import KVTiers
from llm_core.model import ForwardBatch, HybridDecoder, TokenRange
from llm_core.scheduler import Chunk, Step


class Runner:
    """Joins a model, its KV storage and the pool that says where each token lies."""

    def __init__(
        self, model: HybridDecoder, storage: KVStorage, pool: DualPool, tiers: KVTiers | None = None
    ) -> None:
        self.model = model
        self.tiers = tiers
        self.storage = storage
        self.pool = pool
        self.device = model.embed_tokens.weight.device

    @torch.inference_mode()
    def hidden_states(self, step: Step) -> Tensor:
        """Runs the step's tokens. Returns [T, hidden] after the final norm, chunks in order."""
        with self._loading(step.loads):
            hidden: Tensor = self.model(self._embeddings(step.chunks), self._batch(step), self.storage)
        return hidden

    @contextmanager
    def _loading(self, loads: Seq[PageLoad]) -> Iterator[None]:
        """Each layer waits for its own pages; behind the block nothing is copied any more."""
        if not loads:
            yield
            return
        assert self.tiers is not None
        transfer = self.tiers.load(loads)
        self.storage.loading = transfer
        try:
            yield
        finally:
            self.storage.loading = None
            transfer.join()

    @torch.inference_mode()
    def run(self, step: Step) -> tuple[list[Chunk], Tensor]:
        """Runs the step. Returns the chunks whose sequence gets a new token, and their logits [N, vocab]."""
        chunks = step.chunks
        hidden = self.hidden_states(step)
        ends, sampled, total = [], [], 0
        for chunk in chunks:
            total += chunk.end - chunk.begin
            if chunk.is_last:
                ends.append(total - 1)
                sampled.append(chunk)
        if not ends:
            return [], hidden.new_empty(0, self.model.config.vocab_size)
        rows = hidden if len(ends) == total else hidden[torch.tensor(ends, device=self.device)]
        return sampled, self.model.logits(rows)

    def _embeddings(self, chunks: Seq[Chunk]) -> Tensor:
        """[T, hidden]: the tokens' own, overwritten where a span of media embeddings lies."""
        ids: list[int] = []
        injections = []
        for chunk in chunks:
            offset = len(ids) - chunk.begin
            ids += chunk.sequence.tokens(chunk.begin, chunk.end)
            for span in chunk.sequence.request.spans:
                begin, end = max(span.start, chunk.begin), min(span.start + span.length, chunk.end)
                if begin < end:
                    vectors = span.embeddings[begin - span.start : end - span.start]
                    injections.append((begin + offset, end + offset, vectors))
                    # Placeholder ids need not be in the vocabulary.
                    ids[begin + offset : end + offset] = [0] * (end - begin)
        x = self.model.embed(torch.tensor(ids, device=self.device))
        for begin, end, vectors in injections:
            x[begin:end] = vectors.to(device=self.device, dtype=x.dtype)
        return x

    def _batch(self, step: Step) -> ForwardBatch:
        positions: list[int] = []
        slots: dict[LayerKind, list[int]] = {"full": [], "swa": []}
        for chunk in step.chunks:
            positions += range(chunk.begin, chunk.end)
            self._add_slots(chunk, slots)
        num_decodes = len(step.decodes)
        ranges = []
        if step.decodes:
            ranges.append(self._range(step.decodes, 0, num_decodes, is_decode=True))
        if step.prefills:
            ranges.append(self._range(step.prefills, num_decodes, len(positions), is_decode=False))
        return ForwardBatch(
            positions=torch.tensor(positions, device=self.device),
            slots={kind: torch.tensor(values, device=self.device) for kind, values in slots.items()},
            ranges=tuple(ranges),
        )

    def _add_slots(self, chunk: Chunk, slots: dict[LayerKind, list[int]]) -> None:
        kv, size = chunk.sequence.kv, self.pool.page_size
        assert kv is not None
        swa_pages = self.pool.swa_pages(kv)
        position = chunk.begin
        while position < chunk.end:
            page, offset = divmod(position, size)
            count = min(size - offset, chunk.end - position)
            full = kv.full_pages[page] * size + offset
            swa = swa_pages[page - kv.swa_begin_page] * size + offset
            slots["full"] += range(full, full + count)
            slots["swa"] += range(swa, swa + count)
            position += count

    def _range(self, chunks: Seq[Chunk], begin: int, end: int, *, is_decode: bool) -> TokenRange:
        full_pages, swa_pages, starts = [], [], []
        for chunk in chunks:
            kv = chunk.sequence.kv
            assert kv is not None
            full_pages.append(kv.full_pages)
            swa_pages.append(self.pool.swa_pages(kv))
            starts.append(kv.swa_begin_page * self.pool.page_size)
        q_lens = tuple(chunk.end - chunk.begin for chunk in chunks)
        kv_lens = tuple(chunk.end for chunk in chunks)
        layouts: dict[LayerKind, AttentionLayout] = {
            "full": AttentionLayout(
                q_lens=q_lens,
                kv_lens=kv_lens,
                kv_starts=(0,) * len(chunks),
                pages=tuple(full_pages),
            ),
            "swa": AttentionLayout(
                q_lens=q_lens,
                kv_lens=kv_lens,
                kv_starts=tuple(starts),
                pages=tuple(swa_pages),
            ),
        }
        return TokenRange(begin=begin, end=end, is_decode=is_decode, layouts=layouts)
