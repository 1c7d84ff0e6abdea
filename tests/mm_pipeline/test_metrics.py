"""Recorders: what they refuse, running totals, and what batchers and pipelines fill."""

from __future__ import annotations

import threading

import pytest

from mm_pipeline import metrics
from mm_pipeline.batcher import BatcherStats, BatchReport
from mm_pipeline.metrics import (
    BATCH_COST,
    BATCH_ITEMS,
    BATCH_QUEUE_SECONDS,
    BATCHED_ITEMS,
    CACHE_HITS,
    PIPELINE_METRICS,
    QUEUED_BYTES,
    QUEUED_COST,
    QUEUED_ITEMS,
    RETRIED_ITEMS,
    STAGE_SECONDS,
    MemoryRecorder,
    MetricSpec,
)
from mm_pipeline.recording import Totals, record_batch, record_queue, record_stages


def test_every_metric_of_the_module_is_in_its_list_once():
    defined = [value for value in vars(metrics).values() if isinstance(value, MetricSpec)]
    assert sorted(spec.name for spec in defined) == sorted(spec.name for spec in PIPELINE_METRICS)
    assert len({spec.name for spec in PIPELINE_METRICS}) == len(PIPELINE_METRICS)


@pytest.mark.parametrize("spec", PIPELINE_METRICS, ids=lambda spec: spec.name)
def test_names_and_buckets_are_what_prometheus_takes(spec):
    assert spec.name.startswith("mm_")
    assert spec.name.replace("_", "").isalnum()
    assert not spec.name.endswith(("_total", "_bucket", "_sum", "_count"))
    assert list(spec.buckets) == sorted(set(spec.buckets))


@pytest.mark.parametrize(
    "labels", [{}, {"tiers": "memory"}, {"tier": "memory", "more": "x"}], ids=["none", "other", "more"]
)
def test_wrong_labels_are_refused(labels):
    recorder = MemoryRecorder()
    with pytest.raises(ValueError, match="mm_cache_hits has the labels"):
        recorder.count(CACHE_HITS, 1, **labels)
    assert recorder.total(CACHE_HITS) == 0


def test_a_value_of_another_kind_is_refused():
    with pytest.raises(ValueError, match="mm_cache_hits is a counter, and was recorded as a gauge"):
        MemoryRecorder().gauge(CACHE_HITS, 1, tier="memory")


def test_a_spec_needs_buckets_exactly_when_it_is_a_histogram():
    with pytest.raises(ValueError, match="x is a counter with 1 buckets"):
        MetricSpec(name="x", kind="counter", description="", buckets=(1.0,))
    with pytest.raises(ValueError, match="x is a histogram with 0 buckets"):
        MetricSpec(name="x", kind="histogram", description="")


def test_a_memory_recorder_loses_nothing_between_threads():
    recorder = MemoryRecorder()

    def work(tier: str) -> None:
        for _ in range(1000):
            recorder.count(CACHE_HITS, 1, tier=tier)

    threads = [threading.Thread(target=work, args=(tier,)) for tier in ("memory", "disk") * 2]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert recorder.total(CACHE_HITS) == 4000
    assert recorder.total(CACHE_HITS, tier="disk") == 2000


def test_totals_become_growth_and_a_restart_counts_from_zero():
    recorder = MemoryRecorder()
    totals = Totals(recorder)
    for total in (5, 5, 8):
        totals.count(CACHE_HITS, total, tier="memory")
    totals.count(CACHE_HITS, 2, tier="disk")
    totals.count(CACHE_HITS, 3, tier="memory")
    assert recorder.values(CACHE_HITS, tier="memory") == [5, 0, 3, 3]
    assert recorder.values(CACHE_HITS, tier="disk") == [2]


def test_a_batch_report():
    recorder = MemoryRecorder()
    report = BatchReport(
        kind="image",
        num_items=3,
        cost=700,
        num_bytes=9,
        num_failed=1,
        num_retried=2,
        queue_s=(0.1, 0.2, 0.3),
        prepare_s=0.0,
        run_s=0.5,
    )
    record_batch(recorder, report)
    record_batch(recorder, report)
    assert recorder.total(BATCHED_ITEMS, kind="image") == 6
    assert recorder.total(RETRIED_ITEMS, kind="image") == 4
    assert recorder.values(BATCH_ITEMS) == [3, 3]
    assert recorder.values(BATCH_COST) == [700, 700]
    assert recorder.values(BATCH_QUEUE_SECONDS) == [0.1, 0.2, 0.3] * 2


def test_the_queue_of_a_batcher():
    recorder = MemoryRecorder()
    stats = BatcherStats(
        queued_items=4,
        queued_bytes=100,
        queued_cost={"image": 30, "audio": 0},
        queued_s=0.5,
        busy_s=2.0,
        running_items=0,
        submitted=4,
        done=0,
        failed=0,
        cancelled=0,
        expired=0,
        rejected=0,
        batches=0,
        retried=0,
    )
    record_queue(recorder, stats)
    assert (recorder.values(QUEUED_ITEMS), recorder.values(QUEUED_BYTES)) == ([4], [100])
    assert [recorder.values(QUEUED_COST, kind=kind) for kind in ("image", "audio")] == [[30], [0]]


def test_stages_are_seconds_and_sums_of_stages_are_left_out():
    recorder = MemoryRecorder()
    record_stages(recorder, "video", {"decode_ms": 1500.0, "cache_ms": 0.0, "decode_and_encode_ms": 2000.0})
    assert recorder.values(STAGE_SECONDS, modality="video", stage="decode") == [1.5]
    assert recorder.values(STAGE_SECONDS, modality="video", stage="cache") == [0.0]
    assert len(recorder.values(STAGE_SECONDS)) == 2
