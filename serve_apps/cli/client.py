"""A small client of the OpenAI-compatible API on the standard library alone."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import closing
from typing import Any
from urllib.error import HTTPError, URLError
from urllib.parse import urlsplit
from urllib.request import OpenerDirector, ProxyHandler, Request, build_opener

from serve_apps.cli import CliError

_LOOPBACK = {"localhost", "127.0.0.1", "::1"}


class Client:
    """Talks to one server. Every failure is a CliError of one line."""

    def __init__(self, url: str, *, api_key: str | None = None, timeout_s: float = 600.0) -> None:
        parts = urlsplit(url if "://" in url else f"http://{url}")
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise CliError(f"'{url}' is not an http address; give one such as http://127.0.0.1:8000")
        self._base = f"{parts.scheme}://{parts.netloc}{parts.path.rstrip('/').removesuffix('/v1')}/v1"
        self._api_key = api_key
        self._timeout_s = timeout_s
        # A proxy that is set for the outside world does not know this machine's own addresses.
        handlers = [ProxyHandler({})] if parts.hostname in _LOOPBACK else []
        self._opener: OpenerDirector = build_opener(*handlers)

    def model(self) -> str:
        """The first model the server has."""
        with closing(self._open("/models", None)) as response:
            models = json.load(response)["data"]
        if not models:
            raise CliError(f"the server at {self._base} has no model")
        name: str = models[0]["id"]
        return name

    def chat_chunks(self, body: dict[str, Any]) -> Iterator[dict[str, Any]]:
        """The chunks of a streamed chat completion."""
        with closing(self._open("/chat/completions", {**body, "stream": True})) as response:
            for line in response:
                data = line.strip().removeprefix(b"data: ")
                if not line.startswith(b"data: ") or data == b"[DONE]":
                    continue
                chunk: dict[str, Any] = json.loads(data)
                if "error" in chunk:
                    raise CliError(chunk["error"]["message"])
                yield chunk

    def _open(self, path: str, body: dict[str, Any] | None) -> Any:
        headers = {"Content-Type": "application/json"}
        if self._api_key:
            headers["Authorization"] = f"Bearer {self._api_key}"
        data = None if body is None else json.dumps(body).encode()
        request = Request(self._base + path, data=data, headers=headers)
        try:
            return self._opener.open(request, timeout=self._timeout_s)
        except HTTPError as error:
            raise CliError(_message(error)) from error
        except (URLError, OSError) as error:
            raise CliError(
                f"no server answers at {self._base}; start one with 'mmserve serve' or give --url"
            ) from error


def _message(error: HTTPError) -> str:
    with error:
        raw = error.read()
    try:
        message: str = json.loads(raw)["error"]["message"]
    except (ValueError, KeyError, TypeError):
        return f"the server answered {error.code} without saying why"
    return message
