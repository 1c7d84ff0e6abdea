"""What batchers and pipelines report, told to a recorder. Knows their reports and which metrics they fill."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import TYPE_CHECKING

from mm_pipeline.metrics import (
    BATCH_COST,
    BATCH_ITEMS,
    BATCH_QUEUE_SECONDS,
    BATCH_SECONDS,
    BATCHED_COST,
    BATCHED_ITEMS,
    BATCHES,
    CACHE_BYTES,
    CACHE_ENTRIES,
    CACHE_EVICTIONS,
    CACHE_PINNED_BYTES,
    QUEUED_BYTES,
    QUEUED_COST,
    QUEUED_ITEMS,
    RETRIED_ITEMS,
    STAGE_SECONDS,
    STAGES,
    MetricSpec,
    Recorder,
)

if TYPE_CHECKING:
    from mm_pipeline.batcher import BatcherStats, BatchReport
    from mm_pipeline.store import TierStats


class Totals:
    """Feeds counters from running totals that others keep, such as `stats()` of a store or a batcher."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self._lock = threading.Lock()
        self._seen: dict[tuple[str, tuple[tuple[str, str], ...]], float] = {}

    def count(self, metric: MetricSpec, total: float, **labels: str) -> None:
        """Add what `total` has grown by since the last call; a smaller total began anew at 0."""
        key = (metric.name, tuple(sorted(labels.items())))
        with self._lock:
            seen = self._seen.get(key, 0.0)
            self._seen[key] = total
        self._recorder.count(metric, total - seen if total >= seen else total, **labels)


def record_stages(recorder: Recorder, modality: str, timings: Mapping[str, float]) -> None:
    """timings: as in `EncodedMedia.timings`, milliseconds. Only `STAGES` are recorded: other times overlap them."""
    for stage in STAGES:
        milliseconds = timings.get(f"{stage}_ms")
        if milliseconds is not None:
            recorder.observe(STAGE_SECONDS, milliseconds / 1e3, modality=modality, stage=stage)


def record_batch(recorder: Recorder, report: BatchReport) -> None:
    """What a batcher's `on_batch` is given."""
    recorder.count(BATCHES, kind=report.kind)
    recorder.count(BATCHED_ITEMS, report.num_items, kind=report.kind)
    recorder.count(BATCHED_COST, report.cost, kind=report.kind)
    recorder.count(RETRIED_ITEMS, report.num_retried, kind=report.kind)
    recorder.observe(BATCH_ITEMS, report.num_items, kind=report.kind)
    recorder.observe(BATCH_COST, report.cost, kind=report.kind)
    recorder.observe(BATCH_SECONDS, report.run_s, kind=report.kind)
    for seconds in report.queue_s:
        recorder.observe(BATCH_QUEUE_SECONDS, seconds, kind=report.kind)


def record_queue(recorder: Recorder, stats: BatcherStats) -> None:
    """What waits in a batcher now."""
    recorder.gauge(QUEUED_ITEMS, stats.queued_items)
    recorder.gauge(QUEUED_BYTES, stats.queued_bytes)
    for kind, cost in stats.queued_cost.items():
        recorder.gauge(QUEUED_COST, cost, kind=kind)


def record_tiers(recorder: Recorder, totals: Totals, tiers: Mapping[str, TierStats]) -> None:
    """How full a store is, and what it has evicted. Hits and misses are counted by those who look things up."""
    for tier, stats in tiers.items():
        totals.count(CACHE_EVICTIONS, stats.evicted, tier=tier)
        recorder.gauge(CACHE_BYTES, stats.num_bytes, tier=tier)
        recorder.gauge(CACHE_PINNED_BYTES, stats.pinned_bytes, tier=tier)
        recorder.gauge(CACHE_ENTRIES, stats.num_entries, tier=tier)
