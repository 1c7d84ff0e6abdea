"""The HTTP side over a fake chat service: the application, a client, and a caller that can hang up."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import httpx2

from mm_pipeline.metrics import MemoryRecorder
from serve_apps.api.routes import ApiSettings, create_api
from tests.helpers import fake_chat_service

USER = {"role": "user", "content": "hi"}
BODY: dict[str, Any] = {"model": "demo", "messages": [USER]}


async def healthy() -> dict[str, Any]:
    return {"status": "ok"}


async def no_metrics() -> str:
    return ""


def make_app(
    *, health=healthy, metrics=no_metrics, api_keys=(), max_body_bytes=2**20, recorder=None, **parts
):
    recorder = recorder or MemoryRecorder()
    settings = ApiSettings(max_body_bytes=max_body_bytes, api_keys=api_keys, system_fingerprint="fp_1")
    service = fake_chat_service(recorder=recorder, **parts)
    return create_api(service, health=health, metrics=metrics, recorder=recorder, settings=settings)


def client_of(app) -> httpx2.AsyncClient:
    return httpx2.AsyncClient(transport=httpx2.ASGITransport(app), base_url="http://test")


def events_of(text: str) -> list[Any]:
    assert text.endswith("\n\n")
    lines = text.removesuffix("\n\n").split("\n\n")
    assert all(line.startswith("data: ") for line in lines)
    return [line if line == "data: [DONE]" else json.loads(line.removeprefix("data: ")) for line in lines]


class Caller:
    """Calls an ASGI application directly, as a server does, and can hang up."""

    def __init__(self, app, body: dict[str, Any]) -> None:
        self.sent: list[dict[str, Any]] = []
        self._app = app
        self._body = json.dumps(body).encode()
        self._gone = asyncio.Event()
        self._delivered = False

    def start(self) -> asyncio.Task[None]:
        scope = {
            "type": "http",
            "asgi": {"version": "3.0", "spec_version": "2.3"},
            "http_version": "1.1",
            "method": "POST",
            "path": "/v1/chat/completions",
            "raw_path": b"/v1/chat/completions",
            "query_string": b"",
            "root_path": "",
            "headers": [],
            "scheme": "http",
            "server": ("test", 80),
            "client": ("test", 1),
        }
        return asyncio.create_task(self._app(scope, self._receive, self._send))

    def hang_up(self) -> None:
        self._gone.set()

    async def _receive(self) -> dict[str, Any]:
        if not self._delivered:
            self._delivered = True
            return {"type": "http.request", "body": self._body, "more_body": False}
        await self._gone.wait()
        return {"type": "http.disconnect"}

    async def _send(self, message: dict[str, Any]) -> None:
        self.sent.append(message)
