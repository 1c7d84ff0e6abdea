"""The ingress deployment: HTTP in front of a chat service whose backend are the other deployments."""

from __future__ import annotations

import asyncio
from typing import Any

from fastapi import FastAPI
from ray import serve
from ray.serve.handle import DeploymentHandle

from serve_apps.api.errors import unavailable
from serve_apps.api.routes import ApiSettings, create_api
from serve_apps.chat.create import create_chat_service, create_fetcher, system_fingerprint
from serve_apps.deployments.backend import RayBackend
from serve_apps.observability.exposition import exposition
from serve_apps.observability.metrics import Metrics
from serve_apps.settings import ServerSettings


class Ingress:
    """Holds the tokenizer and the connections for downloads, no weights. Nothing blocks its event loop."""

    def __init__(
        self, settings: ServerSettings, encoder: DeploymentHandle[Any], engine: DeploymentHandle[Any]
    ) -> None:
        self._settings = settings
        self._backend = RayBackend(encoder, engine)
        self._fetcher = create_fetcher(settings.media)
        self._recorder = Metrics()
        self._service = create_chat_service(
            settings.checkpoint,
            model_name=settings.model_name,
            backend=self._backend,
            fetcher=self._fetcher,
            chat_limits=settings.chat,
            media_limits=settings.media,
            recorder=self._recorder,
        )

    def __serve_build_asgi_app__(self) -> FastAPI:
        """Ray asks for this once the replica is built."""
        return create_api(
            self._service,
            health=self.health,
            metrics=exposition,
            recorder=self._recorder,
            settings=ApiSettings(
                max_body_bytes=self._settings.max_body_bytes,
                api_keys=self._settings.api_keys,
                system_fingerprint=system_fingerprint(self._settings.checkpoint),
            ),
        )

    async def health(self) -> dict[str, Any]:
        """What GET /health shows. Raises ApiError 503 when the engine does not show progress in time."""
        # The engine's own check ends first; this one is for a process that does not answer at all.
        timeout_s = self._settings.health_timeout_s + 1.0
        try:
            async with asyncio.timeout(timeout_s):
                numbers = await self._backend.health()
        except TimeoutError:
            raise unavailable(
                f"The server has not come up or has not answered for {timeout_s:g} seconds."
            ) from None
        return {"status": "ok", "active_requests": self._service.num_active, "engine": numbers}

    async def __del__(self) -> None:
        fetcher = getattr(self, "_fetcher", None)
        if fetcher is not None:
            await fetcher.close()


def ingress_deployment(
    settings: ServerSettings, encoder: serve.Application, engine: serve.Application
) -> serve.Application:
    """The deployment, bound to the two behind it."""
    decorate = serve.deployment(
        name="Ingress",
        num_replicas=1,
        # The chat service refuses what is over its bound with an OpenAI error object; the rest of Ray's bound is
        # for health checks and refusals.
        max_ongoing_requests=settings.chat.max_requests + 64,
        max_queued_requests=64,
        backpressure_config={"status_code": 503, "retry_after_s": 1.0},
        health_check_period_s=10.0,
        health_check_timeout_s=30.0,
        graceful_shutdown_timeout_s=10.0,
        max_constructor_retry_count=2,
        ray_actor_options={"num_cpus": 0},
    )
    return decorate(serve.ingress()(Ingress)).bind(settings, encoder, engine)
