"""The encoder deployment: media bytes in, a reference to their embeddings out.

Videos and sounds are decoded in processes of their own, part by part while the parts before are encoded here.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import ray
import torch
from ray import ObjectRef, serve

from mm_pipeline.decoding import MediaDecoder
from mm_pipeline.options import MediaOptions
from serve_apps.chat.create import create_item_encoder, decoding_config
from serve_apps.chat.errors import to_api_error
from serve_apps.decoders.pool import DecoderPool
from serve_apps.deployments.failure import Failure
from serve_apps.deployments.ray_errors import CALL_ERRORS, from_call
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


class Encoder:
    """Encodes a few media at a time, on threads of its own so that health checks are answered meanwhile.

    Videos and sounds have other threads than pictures, which would else wait for minutes behind them: one thread
    for each decoder process.
    """

    def __init__(self, settings: ServerSettings) -> None:
        torch.set_num_threads(settings.num_threads)
        self._decoders = DecoderPool(
            partial(MediaDecoder, decoding_config(settings.checkpoint), settings.media),
            num_workers=settings.decoder_workers,
            timeout_s=settings.media.decode_timeout_s,
        )
        self._encoder = create_item_encoder(
            settings.checkpoint, limits=settings.media, device=settings.encoder_device
        )
        self._picture_threads = ThreadPoolExecutor(settings.encoder_threads, thread_name_prefix="encode")
        self._media_threads = ThreadPoolExecutor(settings.decoder_workers, thread_name_prefix="encode-media")
        # They have been starting beside the loading of the weights.
        self._decoders.wait_until_ready()

    async def encode(
        self, reference: list[ObjectRef[bytes]], modality: str, options: MediaOptions, max_tokens: int
    ) -> EncodedReference | Failure:
        """reference: one reference to the bytes. It lies in a list so that Ray does not resolve it before the call
        begins, and calls that wait hold no bytes. max_tokens: of the whole context.

        A cancelled call that has not begun is dropped from the queue; one that has ends at its next part.
        """
        threads = self._picture_threads if modality == "image" else self._media_threads
        cancel = threading.Event()
        try:
            return await asyncio.get_running_loop().run_in_executor(
                threads, self._encode, reference[0], modality, options, max_tokens, cancel
            )
        except CALL_ERRORS as error:
            return Failure(error=from_call(error, "media store"))
        except Exception as error:
            return Failure(error=to_api_error(error))
        finally:
            cancel.set()

    async def is_ready(self) -> bool:
        """True: a replica is called only once it is built."""
        return True

    def _encode(
        self,
        reference: ObjectRef[bytes],
        modality: str,
        options: MediaOptions,
        max_tokens: int,
        cancel: threading.Event,
    ) -> EncodedReference:
        encoded = self._encoder.encode(
            ray.get(reference),
            modality,
            options,
            decoder=self._decoders,
            source=reference,
            max_tokens=max_tokens,
            cancel=cancel,
        )
        return EncodedReference(
            embeddings=ray.put(pack_tensor(encoded.embeddings)),
            num_tokens=encoded.num_tokens,
            modality=encoded.modality,
            content_key=encoded.content_key,
            timings=encoded.timings,
            layout=encoded.layout,
            notes=encoded.notes,
        )

    def __del__(self) -> None:
        for name in ("_picture_threads", "_media_threads"):
            threads = getattr(self, name, None)
            if threads is not None:
                threads.shutdown(wait=False, cancel_futures=True)
        decoders = getattr(self, "_decoders", None)
        if decoders is not None:
            decoders.close()


def encoder_deployment(settings: ServerSettings) -> serve.Application:
    """The deployment, bound to its settings. Calls with the same session_id meet the same replica."""
    decorate = serve.deployment(
        name="Encoder",
        num_replicas=settings.num_encoders,
        # Calls that wait hold a reference only, and pictures must get past videos that wait for a decoder.
        max_ongoing_requests=settings.chat.max_requests + 4 * settings.encoder_threads,
        max_queued_requests=4 * settings.chat.max_requests,
        health_check_period_s=10.0,
        health_check_timeout_s=30.0,
        graceful_shutdown_timeout_s=10.0,
        max_constructor_retry_count=2,
        request_router_config={"request_router_class": _ROUTER},
        ray_actor_options={"num_cpus": 0, "num_gpus": settings.gpus_per_encoder},
    )
    return decorate(Encoder).bind(settings)
