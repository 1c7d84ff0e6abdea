"""Encoder replicas are added and removed under load, routed by content: every answer stays right."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import ray
import torch
from ray import serve
from ray.exceptions import ObjectLostError
from ray.serve._private.common import DeploymentID
from ray.serve.context import _get_global_client

from mm_pipeline.options import MediaOptions
from serve_apps.api.errors import ApiError
from serve_apps.chat.base import ModelInfo
from serve_apps.deployments.backend import RayBackend
from serve_apps.deployments.encoder import encoder_deployment
from serve_apps.deployments.server import QUIET, start_ray
from serve_apps.deployments.tensors import unpack_tensor
from serve_apps.settings import ServerSettings
from tests.e2e.media import picture

pytestmark = [pytest.mark.e2e, pytest.mark.slow]

APP = "scaled-encoders"
NUM_PICTURES = 24
CLIENTS = 6
PATIENCE_S = 120.0
EMBEDDING_BYTES = 8 * 64 * 4
# A batch of other pictures rounds differently.
CLOSE = {"atol": 1e-4, "rtol": 1e-4}


class Engine:
    """Says how long the context is; generates nothing."""

    def options(self, **_: Any) -> Engine:
        return self

    async def remote(self) -> ModelInfo:
        return ModelInfo(max_context=4096)


@pytest.fixture(scope="module")
def encoders(checkpoint: Path) -> Iterator[Any]:
    """Two replicas by the hash router, whose store holds a third of the pictures, so that many are computed."""
    settings = ServerSettings(
        checkpoint=checkpoint,
        num_encoders=2,
        decoder_workers=1,
        num_threads=1,
        embedding_store_bytes=NUM_PICTURES // 3 * EMBEDDING_BYTES,
    )
    start_ray()
    try:
        serve.start(proxy_location="Disabled", logging_config=QUIET)
        # So that the test says when, and not the load.
        yield serve.run(
            encoder_deployment(settings.resolved()),
            name=APP,
            route_prefix=None,
            logging_config=QUIET,
            external_scaler_enabled=True,
        )
    finally:
        ray.shutdown()


class Load:
    """Clients that ask for pictures in turns and compare what they get with what was right in calm."""

    def __init__(self, backend: RayBackend) -> None:
        self._backend = backend
        self._pictures = [picture(shade=number) for number in range(NUM_PICTURES)]
        self._expected: list[torch.Tensor] = []
        self._turns = itertools.count()
        self._stopped = False
        self.answers = self.wrong = self.computed = 0

    async def begin(self) -> None:
        self._expected = [await self._ask(number) for number in range(NUM_PICTURES)]

    async def run(self) -> None:
        await asyncio.gather(*(self._client() for _ in range(CLIENTS)))

    def stop(self) -> None:
        self._stopped = True

    async def _client(self) -> None:
        while not self._stopped:
            number = next(self._turns) % NUM_PICTURES
            found = await self._ask(number)
            expected = self._expected[number]
            self.wrong += found.shape != expected.shape or not torch.allclose(found, expected, **CLOSE)
            self.answers += 1

    async def _ask(self, number: int) -> torch.Tensor:
        """As a client would that heeds 503, which is also what the engine makes of embeddings that went with
        their replica."""
        deadline = time.monotonic() + PATIENCE_S
        while True:
            try:
                found = await self._backend.encode(
                    self._pictures[number], "image", MediaOptions(), owner=f"{number}"
                )
                packed = await asyncio.to_thread(ray.get, found.embeddings)
            except (ApiError, ObjectLostError) as error:
                if getattr(error, "status", 503) != 503 or time.monotonic() > deadline:
                    raise
                await asyncio.sleep(0.2)
                continue
            self.computed += "cache_ms" not in found.timings
            return unpack_tensor(packed)


async def replicas(encoders: Any) -> set[int]:
    """The processes that sessions meet."""
    calls = [encoders.options(method_name="stats", session_id=f"{number}").remote() for number in range(60)]
    return {stats.pid for stats in await asyncio.gather(*calls)}


def scale(num_replicas: int) -> None:
    controller = _get_global_client()._controller
    ray.get(controller.update_deployment_replicas.remote(DeploymentID("Encoder", APP), num_replicas))


async def until(condition: Callable[[], Any]) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not await condition():
        assert time.monotonic() < deadline, "it never came to that"
        await asyncio.sleep(0.3)


async def test_replicas_come_and_go_under_load(encoders: Any) -> None:
    load = Load(RayBackend(encoders, Engine()))
    await load.begin()
    before = await replicas(encoders)
    assert len(before) == 2
    clients = asyncio.create_task(load.run())

    async def num_met() -> int:
        assert not clients.done(), clients.exception()
        return len(await replicas(encoders))

    async def has(number: int) -> bool:
        return await num_met() == number

    async def answer(more: int) -> None:
        wanted = load.answers + more

        async def answered() -> bool:
            assert not clients.done(), clients.exception()
            return load.answers >= wanted

        await until(answered)

    try:
        await answer(2 * NUM_PICTURES)
        for number in (3, 2):
            scale(number)
            await until(lambda number=number: has(number))
            await answer(2 * NUM_PICTURES)
    finally:
        load.stop()
        await clients
    assert load.wrong == 0
    assert load.computed > NUM_PICTURES
