"""Counts HTTP requests by route and status, around the whole application. Knows ASGI only."""

from __future__ import annotations

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from mm_pipeline.metrics import Recorder
from serve_apps.observability.catalogue import REQUESTS

HUNG_UP = 499
"""The status of a request whose client was gone before its answer began, as nginx has it."""


class CountedRequests:
    """ASGI middleware. Passes everything on as it comes."""

    def __init__(self, app: ASGIApp, *, recorder: Recorder) -> None:
        self._app = app
        self._recorder = recorder

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        status = HUNG_UP

        async def watched(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        try:
            await self._app(scope, receive, watched)
        finally:
            # The route's own path: what clients put into a path would make ever more labels.
            route = getattr(scope.get("route"), "path", "other")
            self._recorder.count(REQUESTS, route=route, status=str(status))
