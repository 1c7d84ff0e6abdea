"""Deltas across threads: none lost, in order, piled up ones together."""

from __future__ import annotations

import asyncio
import threading

from llm_core.core import GenerateRequest, OutputDelta
from serve_apps.chat.delta_batches import delta_batches
from tests.helpers import FakeEngine, wait_until

REQUEST = GenerateRequest(request_id="r", token_ids=(1, 2))


class BurstEngine:
    """Puts out many deltas at once when told to."""

    def __init__(self) -> None:
        self.on_output = None
        self.aborted: list[str] = []

    def submit(self, request, on_output) -> None:
        self.on_output = on_output

    def abort(self, request_id) -> None:
        self.aborted.append(request_id)

    def burst(self, first: int, last: int, *, finish: bool) -> None:
        def run() -> None:
            for i in range(first, last):
                reason = "stop" if finish and i == last - 1 else None
                self.on_output(OutputDelta(request_id="r", token_ids=(i,), finish_reason=reason))

        thread = threading.Thread(target=run)
        thread.start()
        thread.join()


async def test_deltas_that_piled_up_come_in_one_batch_and_none_is_lost():
    engine = BurstEngine()
    batches = delta_batches(engine, REQUEST)
    assert await anext(batches) == []
    engine.burst(0, 50, finish=False)
    first = await anext(batches)
    engine.burst(50, 100, finish=True)
    rest = [delta async for batch in batches for delta in batch]
    assert [delta.token_ids[0] for delta in first + rest] == list(range(100))
    assert len(first) == 50
    assert engine.aborted == []


async def test_closing_early_aborts_once():
    engine = FakeEngine()
    engine.gate.clear()
    batches = delta_batches(engine, REQUEST)
    assert await anext(batches) == []
    await batches.aclose()
    assert engine.aborted == ["r"]


async def test_cancelling_aborts():
    engine = FakeEngine()
    engine.gate.clear()

    async def read() -> None:
        async for _ in delta_batches(engine, REQUEST):
            pass

    task = asyncio.create_task(read())
    await wait_until(lambda: bool(engine.running))
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    assert engine.aborted == ["r"]
