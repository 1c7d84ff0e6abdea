"""The recorder of a server's processes: Ray's metrics, which every node exports for Prometheus.

Each process of the cluster records into its node's agent, a few seconds later; nothing is sent while a request
waits. Ray adds labels for deployment, replica and process, so that replicas stay apart.

Ray only estimates the `_sum` of a histogram, from the middles of its buckets. Use quantiles, or counters where a
mean matters: `mm_batched_items_total / mm_batches_total`.
"""

from __future__ import annotations

from typing import Any

from ray.serve.metrics import Counter, Gauge, Histogram

from mm_pipeline.metrics import MetricSpec
from serve_apps.observability.catalogue import METRICS


class Metrics:
    """See `mm_pipeline.metrics.Recorder`. One per process, made where Ray is connected."""

    def __init__(self) -> None:
        self._counters: dict[str, Counter] = {}
        self._gauges: dict[str, Gauge] = {}
        self._histograms: dict[str, Histogram] = {}
        for spec in METRICS:
            # Ray's annotations say tuples of one label.
            labels: Any = spec.labels
            if spec.kind == "counter":
                self._counters[spec.name] = Counter(spec.name, spec.description, labels)
            elif spec.kind == "gauge":
                self._gauges[spec.name] = Gauge(spec.name, spec.description, labels)
            else:
                self._histograms[spec.name] = Histogram(
                    spec.name, spec.description, list(spec.buckets), labels
                )

    def count(self, metric: MetricSpec, value: float = 1.0, **labels: str) -> None:
        """See `Recorder.count`."""
        metric.check("counter", labels)
        # Ray raises for 0.
        if value:
            self._counters[metric.name].inc(value, labels)

    def gauge(self, metric: MetricSpec, value: float, **labels: str) -> None:
        """See `Recorder.gauge`."""
        metric.check("gauge", labels)
        self._gauges[metric.name].set(value, labels)

    def observe(self, metric: MetricSpec, value: float, **labels: str) -> None:
        """See `Recorder.observe`."""
        metric.check("histogram", labels)
        self._histograms[metric.name].observe(value, labels)
