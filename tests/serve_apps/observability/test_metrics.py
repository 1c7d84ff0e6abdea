"""The recorder on Ray's metrics, without Ray running: what it takes and what it refuses."""

from __future__ import annotations

import pytest

from mm_pipeline.metrics import CACHE_HITS, QUEUED_ITEMS, MemoryRecorder
from serve_apps.observability.catalogue import ITL_SECONDS, METRICS
from serve_apps.observability.metrics import Metrics


def test_every_metric_of_the_catalogue_can_be_recorded():
    recorder = Metrics()
    for spec in METRICS:
        labels = dict.fromkeys(spec.labels, "x")
        record = {"counter": recorder.count, "gauge": recorder.gauge, "histogram": recorder.observe}[
            spec.kind
        ]
        record(spec, 1.0, **labels)
    assert len({spec.name for spec in METRICS}) == len(METRICS)


@pytest.mark.parametrize("make", [Metrics, MemoryRecorder])
def test_both_recorders_refuse_the_same(make):
    recorder = make()
    with pytest.raises(ValueError, match="has the labels"):
        recorder.count(CACHE_HITS)
    with pytest.raises(ValueError, match="is a gauge, and was recorded as a counter"):
        recorder.count(QUEUED_ITEMS)
    with pytest.raises(ValueError, match="is a histogram, and was recorded as a gauge"):
        recorder.gauge(ITL_SECONDS, 1.0)


def test_counting_nothing_is_no_mistake():
    Metrics().count(CACHE_HITS, 0, tier="memory")
