"""What can be measured while media are encoded, and whom it is told to.

Names, kinds and labels of the metrics of this package, and the protocol of a recorder. Does not know Prometheus or
Ray: a recorder that exports is `serve_apps.observability.metrics`.
"""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, Protocol

Kind = Literal["counter", "gauge", "histogram"]

SECONDS = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0, 60.0, 300.0)
"""Upper bounds of buckets for durations, in seconds."""

STAGES = ("fetch", "queue", "cache", "key", "batch", "decode", "preprocess", "encode")
"""Values of the label `stage`. queue: waiting for the encoder. cache: looking up and reading a stored result.
batch: the forward pass an item shared with others."""


@dataclass(frozen=True, kw_only=True)
class MetricSpec:
    """One metric. Every value recorded for it names exactly these labels.

    name: without the suffixes that Prometheus adds (`_total`, `_bucket`). buckets: upper bounds of a histogram.
    """

    name: str
    kind: Kind
    description: str
    labels: tuple[str, ...] = ()
    buckets: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        if (self.kind == "histogram") != bool(self.buckets):
            raise ValueError(f"{self.name} is a {self.kind} with {len(self.buckets)} buckets")

    def check(self, kind: Kind, labels: Mapping[str, str]) -> None:
        """Raises ValueError unless a value of this kind with these labels belongs to the metric."""
        if self.kind != kind:
            raise ValueError(f"{self.name} is a {self.kind}, and was recorded as a {kind}")
        if len(labels) != len(self.labels) or any(name not in labels for name in self.labels):
            raise ValueError(f"{self.name} has the labels {self.labels}, and {tuple(labels)} came")


class Recorder(Protocol):
    """Takes what happened. Thread-safe and quick; raises ValueError for another metric's kind or labels."""

    def count(self, metric: MetricSpec, value: float = 1.0, **labels: str) -> None:
        """Add to a counter; 0 adds nothing."""
        ...

    def gauge(self, metric: MetricSpec, value: float, **labels: str) -> None:
        """Set a gauge."""
        ...

    def observe(self, metric: MetricSpec, value: float, **labels: str) -> None:
        """One value of a histogram."""
        ...


class NoRecorder:
    """Forgets everything."""

    def count(self, metric: MetricSpec, value: float = 1.0, **labels: str) -> None:
        """See `Recorder.count`."""

    def gauge(self, metric: MetricSpec, value: float, **labels: str) -> None:
        """See `Recorder.gauge`."""

    def observe(self, metric: MetricSpec, value: float, **labels: str) -> None:
        """See `Recorder.observe`."""


NO_RECORDER: Recorder = NoRecorder()
"""For those who have nobody to tell."""


class MemoryRecorder:
    """Keeps every value, for tests and benchmarks. Questions take any part of the labels."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._values: dict[str, list[tuple[dict[str, str], float]]] = defaultdict(list)

    def count(self, metric: MetricSpec, value: float = 1.0, **labels: str) -> None:
        """See `Recorder.count`."""
        self._keep("counter", metric, value, labels)

    def gauge(self, metric: MetricSpec, value: float, **labels: str) -> None:
        """See `Recorder.gauge`."""
        self._keep("gauge", metric, value, labels)

    def observe(self, metric: MetricSpec, value: float, **labels: str) -> None:
        """See `Recorder.observe`."""
        self._keep("histogram", metric, value, labels)

    def values(self, metric: MetricSpec, **labels: str) -> list[float]:
        """All values whose labels include these, in the order they came."""
        with self._lock:
            return [value for own, value in self._values[metric.name] if labels.items() <= own.items()]

    def total(self, metric: MetricSpec, **labels: str) -> float:
        """The sum of `values`."""
        return sum(self.values(metric, **labels))

    def _keep(self, kind: Kind, metric: MetricSpec, value: float, labels: dict[str, str]) -> None:
        metric.check(kind, labels)
        with self._lock:
            self._values[metric.name].append((labels, value))


BATCHES = MetricSpec(
    name="mm_batches", kind="counter", description="Batches the encoders have run.", labels=("kind",)
)
BATCHED_ITEMS = MetricSpec(
    name="mm_batched_items", kind="counter", description="Pieces of work in these batches.", labels=("kind",)
)
BATCHED_COST = MetricSpec(
    name="mm_batched_cost",
    kind="counter",
    description="Their cost: patches of pictures and frames, mel frames of sound.",
    labels=("kind",),
)
BATCH_ITEMS = MetricSpec(
    name="mm_batch_items",
    kind="histogram",
    description="Pieces of work in a batch.",
    labels=("kind",),
    buckets=(1, 2, 4, 8, 16, 32, 64, 128, 256),
)
BATCH_COST = MetricSpec(
    name="mm_batch_cost",
    kind="histogram",
    description="Cost of a batch.",
    labels=("kind",),
    buckets=(64, 256, 1024, 4096, 16384, 65536, 262144),
)
BATCH_SECONDS = MetricSpec(
    name="mm_batch_seconds",
    kind="histogram",
    description="Seconds a batch ran.",
    labels=("kind",),
    buckets=SECONDS,
)
BATCH_QUEUE_SECONDS = MetricSpec(
    name="mm_batch_queue_seconds",
    kind="histogram",
    description="Seconds a piece of work waited for its batch.",
    labels=("kind",),
    buckets=SECONDS,
)
RETRIED_ITEMS = MetricSpec(
    name="mm_retried_items",
    kind="counter",
    description="Pieces of work that ran again alone because their batch failed.",
    labels=("kind",),
)
QUEUED_ITEMS = MetricSpec(
    name="mm_queued_items", kind="gauge", description="Pieces of work that wait for an encoder."
)
QUEUED_COST = MetricSpec(
    name="mm_queued_cost", kind="gauge", description="Cost of the work that waits.", labels=("kind",)
)
QUEUED_BYTES = MetricSpec(name="mm_queued_bytes", kind="gauge", description="Memory they hold, in bytes.")
STAGE_SECONDS = MetricSpec(
    name="mm_stage_seconds",
    kind="histogram",
    description="Seconds of one stage of one media item.",
    labels=("modality", "stage"),
    buckets=SECONDS,
)
ENCODER_ITEMS = MetricSpec(
    name="mm_encoder_items",
    kind="counter",
    description="Media items by how they ended: encoded, hit, coalesced, cancelled, expired, rejected or failed.",
    labels=("modality", "outcome"),
)
CACHE_HITS = MetricSpec(
    name="mm_cache_hits", kind="counter", description="Lookups that found an entry.", labels=("tier",)
)
CACHE_MISSES = MetricSpec(
    name="mm_cache_misses", kind="counter", description="Lookups that found none.", labels=("tier",)
)
CACHE_EVICTIONS = MetricSpec(
    name="mm_cache_evictions", kind="counter", description="Entries that made room.", labels=("tier",)
)
CACHE_BYTES = MetricSpec(
    name="mm_cache_bytes", kind="gauge", description="Bytes of all entries.", labels=("tier",)
)
CACHE_PINNED_BYTES = MetricSpec(
    name="mm_cache_pinned_bytes",
    kind="gauge",
    description="Bytes of entries that requests hold.",
    labels=("tier",),
)
CACHE_ENTRIES = MetricSpec(
    name="mm_cache_entries", kind="gauge", description="Number of entries.", labels=("tier",)
)

PIPELINE_METRICS = (
    BATCHES,
    BATCHED_ITEMS,
    BATCHED_COST,
    BATCH_ITEMS,
    BATCH_COST,
    BATCH_SECONDS,
    BATCH_QUEUE_SECONDS,
    RETRIED_ITEMS,
    QUEUED_ITEMS,
    QUEUED_COST,
    QUEUED_BYTES,
    STAGE_SECONDS,
    ENCODER_ITEMS,
    CACHE_HITS,
    CACHE_MISSES,
    CACHE_EVICTIONS,
    CACHE_BYTES,
    CACHE_PINNED_BYTES,
    CACHE_ENTRIES,
)
"""Every metric of this package."""
