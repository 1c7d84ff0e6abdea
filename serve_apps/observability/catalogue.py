"""The fixed list of a server's metrics: those of `mm_pipeline.metrics` and those of requests. Does not know Ray."""

from __future__ import annotations

from mm_pipeline.metrics import PIPELINE_METRICS, SECONDS, MetricSpec

REQUESTS = MetricSpec(
    name="mm_requests",
    kind="counter",
    description="HTTP requests. Status 499: the client hung up before the answer began.",
    labels=("route", "status"),
)
ACTIVE_REQUESTS = MetricSpec(
    name="mm_active_requests", kind="gauge", description="Chat requests that are worked on."
)
ANSWERS = MetricSpec(
    name="mm_answers",
    kind="counter",
    description="Chat requests by how they ended: done, refused (the client's mistake), rejected (overload), "
    "expired (deadline), cancelled (the client hung up) or failed.",
    labels=("outcome",),
)
TTFT_SECONDS = MetricSpec(
    name="mm_ttft_seconds",
    kind="histogram",
    description="Seconds from a request to its first token.",
    buckets=SECONDS,
)
ITL_SECONDS = MetricSpec(
    name="mm_itl_seconds",
    kind="histogram",
    description="Seconds per token after the first; one value for each group of tokens that came together.",
    buckets=SECONDS,
)
E2E_SECONDS = MetricSpec(
    name="mm_e2e_seconds",
    kind="histogram",
    description="Seconds from a request to the end of its answer.",
    buckets=SECONDS,
)
TOKENS = MetricSpec(
    name="mm_tokens",
    kind="counter",
    description="Tokens of finished answers: prompt, of which cached, image, video and audio; completion.",
    labels=("kind",),
)

METRICS = (
    *PIPELINE_METRICS,
    REQUESTS,
    ACTIVE_REQUESTS,
    ANSWERS,
    TTFT_SECONDS,
    ITL_SECONDS,
    E2E_SECONDS,
    TOKENS,
)
"""Every metric of a server."""
