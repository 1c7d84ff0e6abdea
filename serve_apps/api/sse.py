"""Server-sent events: the bytes of a streamed answer."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, Mapping
from typing import Any

from starlette.responses import StreamingResponse
from starlette.types import Receive, Scope, Send

DONE = b"data: [DONE]\n\n"


def sse_event(data: dict[str, Any]) -> bytes:
    """One event whose data is a JSON object. JSON has no raw newlines, so it always fits one data line."""
    return b"data: " + json_bytes(data) + b"\n\n"


def json_bytes(data: dict[str, Any]) -> bytes:
    """Compact UTF-8 JSON."""
    return json.dumps(data, ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode(
        "utf-8", "replace"
    )


class SseResponse(StreamingResponse):
    """A streamed answer that closes its source as soon as the client is gone.

    A plain StreamingResponse leaves an interrupted generator to the garbage collector, and until then the
    engine would go on generating for nobody. `source` is closed even when the body was never begun.
    """

    def __init__(
        self,
        body: AsyncGenerator[bytes, None],
        *,
        source: AsyncGenerator[Any, None],
        headers: Mapping[str, str],
    ) -> None:
        super().__init__(
            body,
            media_type="text/event-stream",
            headers={"Cache-Control": "no-cache", "X-Accel-Buffering": "no", **headers},
        )
        self._body = body
        self._source = source

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            await self._body.aclose()
            await self._source.aclose()
