"""Whether an engine works, found out by watching it work.

A check that only asks the process stays green over a hung engine. This one waits for a step of the engine: those
of running requests count, and an idle engine is given a request of one token.
"""

from __future__ import annotations

import asyncio
from typing import Protocol
from uuid import uuid4

from llm_core.core import GenerateRequest, SamplingParams
from llm_core.engine.settings import EngineStats
from llm_core.errors import EngineError, EngineOverloadedError
from serve_apps.api.errors import ApiError, unavailable
from serve_apps.chat.delta_batches import SubmitAbort, delta_batches

_POLL_SECONDS = 0.02


class Watched(SubmitAbort, Protocol):
    """The part of the engine used here."""

    def stats(self) -> EngineStats: ...


class EngineWatch:
    """Checks one engine. Checks that overlap share one look, so that none pile up behind a hung engine."""

    def __init__(self, engine: Watched, *, timeout_s: float) -> None:
        self._engine = engine
        self._timeout_s = timeout_s
        self._look: asyncio.Task[None] | None = None

    async def check(self) -> None:
        """Returns once the engine has made progress; raises ApiError 503 if it makes none in time."""
        if self._look is None or self._look.done():
            self._look = asyncio.create_task(self._check())
        # The look goes on for the others when one of those who wait for it is cancelled.
        await asyncio.shield(self._look)

    async def _check(self) -> None:
        try:
            async with asyncio.timeout(self._timeout_s):
                await self._progress()
        except TimeoutError:
            raise _hung(self._timeout_s) from None
        except EngineOverloadedError:
            # A full queue is not a fault; a hung engine shows when running requests make no step.
            return
        except EngineError:
            raise unavailable("The engine has stopped and is being restarted.") from None

    async def _progress(self) -> None:
        before = await asyncio.to_thread(self._engine.stats)
        if before.num_running + before.num_waiting == 0:
            await self._probe()
            return
        # The engine has no event to wait for, and a check is rare.
        while (await asyncio.to_thread(self._engine.stats)).num_steps == before.num_steps:  # noqa: ASYNC110
            await asyncio.sleep(_POLL_SECONDS)

    async def _probe(self) -> None:
        request = GenerateRequest(
            request_id=f"health-{uuid4().hex}",
            token_ids=(0,),
            sampling=SamplingParams(temperature=0.0, max_tokens=1, ignore_eos=True),
        )
        async for _ in delta_batches(self._engine, request):
            pass


def _hung(timeout_s: float) -> ApiError:
    return unavailable(f"The engine has made no progress for {timeout_s:g} seconds.")
