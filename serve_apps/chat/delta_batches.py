"""From the engine's thread to an event loop: deltas in batches, however many have piled up.

Every item a Ray Serve replica yields costs far more than a token does, so a busy loop must not pay per token.
Knows the engine's submit and abort. Does not know Ray.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from typing import Protocol

from llm_core.core import GenerateRequest, OutputDelta


class SubmitAbort(Protocol):
    """The part of the engine used here. `on_output` is called on the engine's thread."""

    def submit(self, request: GenerateRequest, on_output: Callable[[OutputDelta], None]) -> None: ...

    def abort(self, request_id: str) -> None: ...


async def delta_batches(
    engine: SubmitAbort, request: GenerateRequest
) -> AsyncGenerator[list[OutputDelta], None]:
    """An empty batch once the engine has taken the request, then every delta, in order, none lost.

    Ends after the delta that has a finish_reason. Closing or cancelling the generator before that aborts the
    request. Raises what `submit` raises: RequestError, EngineOverloadedError, EngineDeadError.
    """
    loop = asyncio.get_running_loop()
    waiting: list[OutputDelta] = []
    arrived = asyncio.Event()

    def on_loop(delta: OutputDelta) -> None:
        waiting.append(delta)
        arrived.set()

    def on_output(delta: OutputDelta) -> None:
        try:
            loop.call_soon_threadsafe(on_loop, delta)
        except RuntimeError:
            # The loop is closed: the process is going down, and nobody waits for this delta.
            return

    engine.submit(request, on_output)
    finished = False
    try:
        yield []
        while not finished:
            await arrived.wait()
            arrived.clear()
            batch = waiting.copy()
            waiting.clear()
            finished = batch[-1].finish_reason is not None
            yield batch
    finally:
        if not finished:
            engine.abort(request.request_id)
