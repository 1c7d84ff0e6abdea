"""The image encoder deployment: media bytes in, a reference to their embeddings out."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import ray
import torch
from ray import ObjectRef, serve

from mm_pipeline.options import MediaOptions
from serve_apps.api.errors import bad_request
from serve_apps.chat.create import create_image_pipeline
from serve_apps.chat.errors import to_api_error
from serve_apps.deployments.failure import Failure
from serve_apps.deployments.tensors import PackedTensor, pack_tensor
from serve_apps.settings import ServerSettings

_ROUTER = "ray.serve.experimental.consistent_hash_router.ConsistentHashRouter"


@dataclass(frozen=True, kw_only=True)
class EncodedReference:
    """Encoded media whose embeddings stay in the object store; the store keeps them while this is held."""

    embeddings: ObjectRef[PackedTensor] = field(repr=False)
    num_tokens: int
    modality: str
    content_key: str
    timings: Mapping[str, float]
    layout: Any = field(default=None, repr=False)
    notes: tuple[str, ...] = ()


class ImageEncoder:
    """Encodes pictures, a few at a time, on threads of its own so that health checks are answered meanwhile."""

    def __init__(self, settings: ServerSettings) -> None:
        torch.set_num_threads(settings.num_threads)
        self._pipeline = create_image_pipeline(
            settings.checkpoint, limits=settings.media, device=settings.encoder_device
        )
        self._threads = ThreadPoolExecutor(settings.encoder_threads, thread_name_prefix="encode")

    async def encode(
        self, reference: list[ObjectRef[bytes]], modality: str, options: MediaOptions
    ) -> EncodedReference | Failure:
        """reference: one reference to the bytes. It lies in a list so that Ray does not resolve it before the call
        begins, and calls that wait hold no bytes. A cancelled call that has not begun is dropped from the queue."""
        if modality != "image":
            return Failure(error=bad_request(f"This server encodes pictures, but '{modality}' came."))
        try:
            return await asyncio.get_running_loop().run_in_executor(
                self._threads, self._encode, reference[0], options
            )
        except Exception as error:
            return Failure(error=to_api_error(error))

    def _encode(self, reference: ObjectRef[bytes], options: MediaOptions) -> EncodedReference:
        encoded = self._pipeline.encode(ray.get(reference), max_pixels=options.max_pixels)
        return EncodedReference(
            embeddings=ray.put(pack_tensor(encoded.embeddings)),
            num_tokens=encoded.num_tokens,
            modality=encoded.modality,
            content_key=encoded.content_key,
            timings=encoded.timings,
        )

    def __del__(self) -> None:
        threads = getattr(self, "_threads", None)
        if threads is not None:
            threads.shutdown(wait=False, cancel_futures=True)


def encoder_deployment(settings: ServerSettings) -> serve.Application:
    """The deployment, bound to its settings. Calls with the same session_id meet the same replica."""
    decorate = serve.deployment(
        name="ImageEncoder",
        num_replicas=settings.num_encoders,
        # Each call holds its media bytes in the replica, so few are let in; the others wait as references.
        max_ongoing_requests=4 * settings.encoder_threads,
        max_queued_requests=4 * settings.chat.max_requests,
        health_check_period_s=10.0,
        health_check_timeout_s=30.0,
        graceful_shutdown_timeout_s=10.0,
        max_constructor_retry_count=2,
        request_router_config={"request_router_class": _ROUTER},
        ray_actor_options={"num_cpus": 0, "num_gpus": settings.gpus_per_encoder},
    )
    return decorate(ImageEncoder).bind(settings)
