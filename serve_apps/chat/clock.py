"""The clocks of one request: milliseconds per stage for its answer, and the same events told to a recorder."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence

from llm_core.core import OutputDelta
from mm_pipeline.metrics import Recorder
from serve_apps.chat.base import EncodedItem
from serve_apps.chat.events import Usage
from serve_apps.observability.catalogue import E2E_SECONDS, ITL_SECONDS, TOKENS, TTFT_SECONDS


class RequestClock:
    """Starts when it is made. Methods are called in the order of a request's life."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self._start = self._lap = time.perf_counter()
        self._first_token: float | None = None
        self._last_token = 0.0
        self._num_tokens = 0
        self._timings: dict[str, float] = {}

    def lap(self, name: str) -> None:
        """Ends a stage that began where the one before ended."""
        now = time.perf_counter()
        self._timings[name] = (now - self._lap) * 1e3
        self._lap = now

    def add_stages(self, encoded: Sequence[EncodedItem]) -> None:
        """The encoder's own stages, summed over the items; they overlap and lie within encode_ms."""
        for item in encoded:
            for name, value in item.timings.items():
                key = f"encoder_{name}"
                self._timings[key] = self._timings.get(key, 0.0) + value

    def so_far(self) -> Mapping[str, float]:
        """The stages that have ended."""
        return dict(self._timings)

    def tokens(self, last: OutputDelta) -> None:
        """A batch of tokens has come, of which `last` is the last."""
        now = time.perf_counter()
        num_new = last.num_output_tokens - self._num_tokens
        if self._first_token is None:
            self._first_token = now
            self._recorder.observe(TTFT_SECONDS, now - self._start)
        elif num_new > 0:
            self._recorder.observe(ITL_SECONDS, (now - self._last_token) / num_new)
        self._last_token = now
        self._num_tokens = last.num_output_tokens

    def finish(self, last: OutputDelta, usage: Usage) -> dict[str, float]:
        """The whole request is done; its timings."""
        now = time.perf_counter()
        first = now if self._first_token is None else self._first_token
        self._recorder.observe(E2E_SECONDS, now - self._start)
        for kind, num_tokens in (
            ("prompt", usage.prompt_tokens),
            ("cached", usage.cached_tokens),
            ("image", usage.image_tokens),
            ("video", usage.video_tokens),
            ("audio", usage.audio_tokens),
            ("completion", usage.completion_tokens),
        ):
            self._recorder.count(TOKENS, num_tokens, kind=kind)
        return self._timings | {
            "queue_ms": last.queue_ms,
            "prefill_ms": last.prefill_ms,
            "decode_ms": (now - first) * 1e3,
            "ttft_ms": (first - self._start) * 1e3,
            "total_ms": (now - self._start) * 1e3,
        }
