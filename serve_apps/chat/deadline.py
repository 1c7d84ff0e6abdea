"""Deadlines of requests: how long one may take, and a stream that ends there."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import TypeVar

from serve_apps.api.errors import deadline_exceeded

_T = TypeVar("_T")


def allowed_timeout_s(limit_s: float, *asked_s: float | None) -> float:
    """The shortest of the server's limit and what the request asks for; None asks for nothing."""
    return min([limit_s, *(asked for asked in asked_s if asked is not None)])


async def before_deadline(events: AsyncGenerator[_T, None], timeout_s: float) -> AsyncGenerator[_T, None]:
    """The same events. Raises ApiError 504 once `timeout_s` seconds have passed since the first was asked for.

    What the source is at is cancelled at the deadline; the time between two events is the reader's own and is
    never interrupted. Closes the source.
    """
    deadline = asyncio.get_running_loop().time() + timeout_s
    async with aclosing(events):
        while True:
            try:
                async with asyncio.timeout_at(deadline) as scope:
                    event = await anext(events)
            except StopAsyncIteration:
                return
            except TimeoutError:
                if scope.expired():
                    raise deadline_exceeded(timeout_s) from None
                raise
            yield event
