"""The decoder deployment: one llm_core engine in the replica's process."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from dataclasses import asdict, replace
from typing import Any

import torch
from ray import serve

from llm_core.core import GenerateRequest, OutputDelta
from llm_core.engine import Engine
from serve_apps.api.errors import ApiError
from serve_apps.chat.base import ModelInfo, take_rows
from serve_apps.chat.delta_batches import delta_batches
from serve_apps.chat.errors import to_api_error
from serve_apps.deployments.failure import Failure
from serve_apps.deployments.health import EngineWatch
from serve_apps.deployments.tensors import PackedTensor, unpack_tensor
from serve_apps.settings import ServerSettings


class DecoderEngine:
    """Streams tokens. Embeddings arrive as object references that Ray resolves before the call begins."""

    def __init__(self, settings: ServerSettings) -> None:
        torch.set_num_threads(settings.num_threads)
        self._engine = Engine.from_checkpoint(settings.checkpoint, settings.engine)
        self._engine.start()
        self._watch = EngineWatch(self._engine, timeout_s=settings.health_timeout_s)

    async def generate(
        self, request: GenerateRequest, *embeddings: PackedTensor
    ) -> AsyncGenerator[list[OutputDelta] | Failure, None]:
        """Batches as `delta_batches` gives them, or one Failure.

        The request's spans carry `EmbeddingRows` whose item is a number: `embeddings[number]` holds the rows.
        """
        items = [unpack_tensor(packed) for packed in embeddings]
        spans = tuple(
            replace(span, embeddings=take_rows(replace(span.embeddings, item=items[span.embeddings.item])))
            for span in request.spans
        )
        try:
            async for batch in delta_batches(self._engine, replace(request, spans=spans)):
                yield batch
        except Exception as error:
            yield Failure(error=to_api_error(error))

    async def model_info(self) -> ModelInfo:
        """What is loaded."""
        return ModelInfo(max_context=self._engine.max_context)

    async def health(self) -> dict[str, Any] | Failure:
        """The engine's numbers once it has been seen to work, or a Failure."""
        try:
            await self._watch.check()
        except ApiError as error:
            return Failure(error=error)
        return asdict(self._engine.stats())

    async def check_health(self) -> None:
        """Ray asks this now and then, and replaces the replica when it keeps raising."""
        await self._watch.check()

    def __del__(self) -> None:
        engine = getattr(self, "_engine", None)
        if engine is not None:
            engine.shutdown()


def engine_deployment(settings: ServerSettings) -> serve.Application:
    """The deployment, bound to its settings."""
    # The engine bounds its own queue and says when to come back. Ray's bound lies above it, so that health
    # checks and requests that are about to be refused still get through.
    max_ongoing = settings.engine.max_running + settings.engine.max_queued + 32
    decorate = serve.deployment(
        name="DecoderEngine",
        num_replicas=1,
        max_ongoing_requests=max_ongoing,
        max_queued_requests=settings.chat.max_requests,
        health_check_period_s=10.0,
        health_check_timeout_s=3 * settings.health_timeout_s,
        graceful_shutdown_timeout_s=10.0,
        max_constructor_retry_count=2,
        ray_actor_options={"num_cpus": 0, "num_gpus": settings.gpus_per_engine},
    )
    return decorate(DecoderEngine).bind(settings)
