"""The chat service's backend over Ray Serve handles.

Media bytes go into the object store once; embeddings go from the encoder's to the decoder's process through the
object store. The ingress handles references only.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Sequence
from contextvars import Context
from dataclasses import replace
from typing import Any, cast

import ray
from ray.serve.handle import DeploymentHandle, DeploymentResponseGenerator

from llm_core.core import GenerateRequest, OutputDelta
from mm_pipeline.content_key import content_key
from mm_pipeline.options import MediaOptions
from serve_apps.chat.base import EncodedItem, ModelInfo
from serve_apps.deployments.encoder import EncodedReference
from serve_apps.deployments.failure import Failure
from serve_apps.deployments.ray_errors import CALL_ERRORS, REPLICA_GONE, from_call


class RayBackend:
    """Encoder and decoder as other replicas."""

    def __init__(self, encoder: DeploymentHandle[Any], engine: DeploymentHandle[Any]) -> None:
        self._encoder = encoder
        self._engine = engine
        self._generate = engine.options(method_name="generate", stream=True)
        self._max_context: int | None = None
        self._encoder_was_ready = False

    async def find(self, uuid_key: str, modality: str, options: MediaOptions) -> EncodedItem | None:
        """See `Backend.find`."""
        try:
            found = await self._ask_encoder("find", uuid_key, uuid_key, modality, options)
        except CALL_ERRORS as error:
            raise from_call(error, "encoder") from error
        return None if found is None else _item(found)

    async def encode(
        self,
        data: bytes,
        modality: str,
        options: MediaOptions,
        *,
        owner: str,
        uuid_key: str | None = None,
        deadline: float | None = None,
    ) -> EncodedItem:
        """See `Backend.encode`."""
        try:
            if self._max_context is None:
                self._max_context = (await self.model_info()).max_context
            reference, key = await asyncio.to_thread(_store, data, modality)
            # What is left of the time travels: clocks of two nodes have nothing in common.
            timeout_s = None if deadline is None else deadline - time.monotonic()
            found = await self._ask_encoder(
                "encode", key, [reference], modality, options, self._max_context, owner, uuid_key, timeout_s
            )
        except CALL_ERRORS as error:
            raise from_call(error, "encoder") from error
        assert found is not None, "only `find` may find nothing"
        return _item(found)

    async def _ask_encoder(self, method: str, key: str, *args: Any) -> EncodedReference | None:
        """The result of one replica's method; calls with the same key meet the same replica. A call whose replica
        died is made once more. Raises ApiError and CALL_ERRORS."""
        try:
            found = await self._call_encoder(method, key, *args)
        except REPLICA_GONE:
            found = await self._call_encoder(method, key, *args)
        if isinstance(found, Failure):
            raise found.error
        return found

    async def _call_encoder(self, method: str, key: str, *args: Any) -> EncodedReference | Failure | None:
        handle = self._encoder.options(method_name=method, session_id=key)
        # Calls made while Ray handles an HTTP request inherit the request's internal id, and the router finds
        # waiting calls by that id: of several pictures in one request all but one would wait for ever. In an
        # empty context each call gets an id of its own.
        found: EncodedReference | Failure | None = await _result(Context().run(handle.remote, *args))
        return found

    async def generate(self, request: GenerateRequest) -> AsyncGenerator[Sequence[OutputDelta], None]:
        """See `Backend.generate`."""
        bare, references = without_items(request)
        call = cast("DeploymentResponseGenerator[Any]", self._generate.remote(bare, *references))
        finished = False
        try:
            async for found in call:
                if isinstance(found, Failure):
                    finished = True
                    raise found.error
                finished = bool(found) and found[-1].finish_reason is not None
                yield found
        except CALL_ERRORS as error:
            finished = True
            raise from_call(error, "engine") from error
        finally:
            if not finished:
                call.cancel()  # type: ignore[no-untyped-call]

    async def model_info(self) -> ModelInfo:
        """See `Backend.model_info`."""
        try:
            info: ModelInfo = await _result(self._engine.options(method_name="model_info").remote())
        except CALL_ERRORS as error:
            raise from_call(error, "engine") from error
        return info

    async def health(self) -> dict[str, Any]:
        """The engine's numbers, from the engine itself; waits for the encoder once. Raises ApiError 503."""
        try:
            found: dict[str, Any] | Failure = await _result(
                self._engine.options(method_name="health").remote()
            )
        except CALL_ERRORS as error:
            raise from_call(error, "engine") from error
        if isinstance(found, Failure):
            raise found.error
        if not self._encoder_was_ready:
            await self._wait_for_encoder()
        return found

    async def _wait_for_encoder(self) -> None:
        """A server that is coming up is not healthy before its encoders have their weights and processes."""
        try:
            await _result(self._encoder.options(method_name="is_ready").remote())
        except CALL_ERRORS as error:
            raise from_call(error, "encoder") from error
        self._encoder_was_ready = True


def _item(found: EncodedReference) -> EncodedItem:
    return EncodedItem(
        embeddings=found.embeddings,
        num_tokens=found.num_tokens,
        modality=found.modality,
        content_key=found.content_key,
        timings=found.timings,
        layout=found.layout,
        notes=found.notes,
    )


async def _result(call: Any) -> Any:
    """The result of a call; the call is cancelled when whoever waits for it is."""
    try:
        return await call
    except asyncio.CancelledError:
        call.cancel()
        raise


def without_items(request: GenerateRequest) -> tuple[GenerateRequest, list[Any]]:
    """The request with each span's item replaced by its number in the list of items, each of them listed once.

    A video's rows go to hundreds of spans, and its embeddings must not travel once for each.
    """
    items: list[Any] = []
    numbers: dict[int, int] = {}
    spans = []
    for span in request.spans:
        number = numbers.setdefault(id(span.embeddings.item), len(items))
        if number == len(items):
            items.append(span.embeddings.item)
        spans.append(replace(span, embeddings=replace(span.embeddings, item=number)))
    return replace(request, spans=tuple(spans)), items


def _store(data: bytes, modality: str) -> tuple[Any, str]:
    """A reference to the bytes, and the key by which the encoder replica is chosen."""
    # All replicas have the same encoder and settings, so modality and content are enough to tell media apart.
    return ray.put(data), content_key(modality, "", {}, data)
