"""The health check sees a hung engine, whatever it was doing."""

from __future__ import annotations

import asyncio
import time

import pytest

from llm_core.core import GenerateRequest
from llm_core.engine.settings import EngineStats
from llm_core.errors import EngineDeadError, EngineOverloadedError
from serve_apps.api.errors import ApiError
from serve_apps.deployments.health import EngineWatch
from tests.helpers import FakeEngine, wait_until


class StatsEngine(FakeEngine):
    """A fake engine with numbers; `steps_per_look` is how it moves on between two looks."""

    steps_per_look = 0
    num_steps = 0

    def stats(self) -> EngineStats:
        self.num_steps += self.steps_per_look
        return EngineStats(
            num_running=len(self.running),
            num_waiting=0,
            num_finished=0,
            num_steps=self.num_steps,
            full_pages_used=0,
            full_pages_total=1,
            swa_pages_used=0,
            swa_pages_total=1,
            kv_bytes_used=0,
            full_pages_cached=0,
            swa_pages_cached=0,
            num_preemptions=0,
            num_prompt_tokens=0,
            num_cached_tokens=0,
        )


def busy(engine: FakeEngine) -> None:
    engine.gate.clear()
    engine.submit(GenerateRequest(request_id="busy", token_ids=(1,)), lambda delta: None)


async def test_an_idle_engine_answers_a_probe():
    engine = StatsEngine()
    await EngineWatch(engine, timeout_s=5).check()
    assert engine.requests[0].sampling.max_tokens == 1


async def test_an_idle_engine_that_hangs_fails_in_time_and_its_probe_is_withdrawn():
    engine = StatsEngine()
    engine.gate.clear()
    watch = EngineWatch(engine, timeout_s=0.1)
    begin = time.monotonic()
    results = await asyncio.gather(*(watch.check() for _ in range(5)), return_exceptions=True)
    assert time.monotonic() - begin < 2
    assert all(isinstance(result, ApiError) and result.status == 503 for result in results)
    assert len(engine.requests) == 1
    assert engine.running == {}


async def test_a_busy_engine_that_moves_on_is_healthy_without_a_probe():
    engine = StatsEngine()
    engine.steps_per_look = 1
    busy(engine)
    await EngineWatch(engine, timeout_s=5).check()
    assert len(engine.requests) == 1
    engine.shutdown()


async def test_a_busy_engine_that_stands_still_fails():
    engine = StatsEngine()
    busy(engine)
    with pytest.raises(ApiError, match=r"no progress for 0\.1 seconds"):
        await EngineWatch(engine, timeout_s=0.1).check()
    engine.shutdown()


async def test_a_dead_engine_fails_and_a_full_one_does_not():
    with pytest.raises(ApiError, match="stopped"):
        await EngineWatch(StatsEngine(submit_error=EngineDeadError("x")), timeout_s=5).check()
    await EngineWatch(
        StatsEngine(submit_error=EngineOverloadedError("x", retry_after_s=1)), timeout_s=5
    ).check()


async def test_a_cancelled_check_leaves_the_others_alone():
    engine = StatsEngine()
    engine.gate.clear()
    watch = EngineWatch(engine, timeout_s=5)
    first, second = asyncio.create_task(watch.check()), asyncio.create_task(watch.check())
    await wait_until(lambda: bool(engine.running))
    first.cancel()
    await asyncio.sleep(0)
    engine.gate.set()
    await second
    assert first.cancelled()


async def test_the_engine_may_recover():
    engine = StatsEngine()
    engine.gate.clear()
    watch = EngineWatch(engine, timeout_s=0.1)
    with pytest.raises(ApiError):
        await watch.check()
    engine.gate.set()
    await watch.check()
