"""The encoder deployment: media bytes in, a reference to their embeddings out.

What was encoded before comes from the store that all replicas share. Videos and sounds are decoded in processes of
their own, part by part while the parts before are encoded here.
"""

from __future__ import annotations

import asyncio
import os
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, TypeVar
from uuid import uuid4

import ray
import torch
from ray import ObjectRef, serve

from mm_pipeline.batcher import BatcherStats, BatchReport, Station
from mm_pipeline.decoding import MediaDecoder
from mm_pipeline.encoders.batched import Caller
from mm_pipeline.errors import DeadlineExceededError, QueueFullError
from mm_pipeline.metrics import ENCODER_ITEMS
from mm_pipeline.options import MediaOptions
from mm_pipeline.pipeline import EncodedMedia
from mm_pipeline.recording import record_batch, record_queue
from mm_pipeline.store import Flights, TierStats
from mm_pipeline.store.media import media_of
from serve_apps.chat.create import create_item_encoder, decoding_config
from serve_apps.chat.errors import to_api_error
from serve_apps.decoders.pool import DecoderCrashedError, DecoderPool
from serve_apps.deployments.autoscaling import LOAD, LoadMeter, autoscaling_config
from serve_apps.deployments.failure import Failure
from serve_apps.deployments.ray_errors import CALL_ERRORS, from_call
from serve_apps.deployments.tensors import PackedTensor, pack_tensor
from serve_apps.observability.metrics import Metrics
from serve_apps.settings import Router, ServerSettings
from serve_apps.store.replica import ReplicaStore
from serve_apps.store.shared import SharedLease

_ROUTERS: dict[Router, dict[str, Any]] = {
    "hash": {"request_router_class": "ray.serve.experimental.consistent_hash_router.ConsistentHashRouter"},
    "round-robin": {"request_router_class": "ray.serve.experimental.round_robin_router.RoundRobinRouter"},
}
_PROBE_S = 20.0
# They hold bytes and wait: for the store, or for a batch.
_WAITING_THREADS = 64

_T = TypeVar("_T")


@dataclass(frozen=True, kw_only=True)
class EncodedReference:
    """Encoded media whose embeddings stay in the object store; the store keeps them while this is held.

    call: for which they were computed or looked up.
    """

    embeddings: ObjectRef[PackedTensor] = field(repr=False)
    num_tokens: int
    modality: str
    content_key: str
    timings: Mapping[str, float]
    layout: Any = field(default=None, repr=False)
    notes: tuple[str, ...] = ()
    call: str = ""


@dataclass(frozen=True, kw_only=True)
class EncoderStats:
    """pid: of this replica. batcher: its own. tiers: of the store, by name. in_flight: items being looked up or
    computed."""

    pid: int

    batcher: BatcherStats
    tiers: Mapping[str, TierStats]
    in_flight: int


@dataclass(frozen=True, kw_only=True)
class _Item:
    """What one call asks for; see `Encoder.encode`."""

    reference: ObjectRef[bytes]
    modality: str
    options: MediaOptions
    max_tokens: int
    owner: str
    deadline: float | None
    key: str
    call: str


class Encoder:
    """Finds embeddings in the store, or computes them in batches with other requests' items.

    Calls for the same item share one computation. Threads are many where they wait for batches or for the store,
    and few where they would only take each other's cores: `encoder_threads` pictures are decoded at once, and one
    video or sound for each decoder process.
    """

    def __init__(self, settings: ServerSettings) -> None:
        torch.set_num_threads(settings.num_threads)
        self._decoders = DecoderPool(
            partial(MediaDecoder, decoding_config(settings.checkpoint), settings.media),
            num_workers=settings.decoder_workers,
            timeout_s=settings.media.decode_timeout_s,
        )
        self._recorder = Metrics()
        self._encoder = create_item_encoder(
            settings.checkpoint,
            limits=settings.media,
            device=settings.encoder_device,
            max_preparing=settings.encoder_threads,
            on_batch=self._record_batch,
        )
        self._store = None
        if settings.embedding_store_bytes:
            alone = settings.embedding_store_scope == "replica"
            num_sharing = max(settings.num_encoders, settings.max_encoders) if alone else 1
            self._store = ReplicaStore(
                settings.embedding_store_bytes // num_sharing,
                settings.disk_store,
                settings.disk_store_bytes,
                self._recorder,
                alone=alone,
            )
        self._flights: Flights[EncodedReference] = Flights()
        self._look_ups = ThreadPoolExecutor(_WAITING_THREADS, thread_name_prefix="look-up")
        self._picture_threads = ThreadPoolExecutor(_WAITING_THREADS, thread_name_prefix="encode")
        self._media_threads = ThreadPoolExecutor(_WAITING_THREADS, thread_name_prefix="encode-media")
        self._decoding = Station(settings.decoder_workers)
        self._load = LoadMeter(settings.encoder_queue_s)
        # They have been starting beside the loading of the weights, as has the store's directory.
        self._decoders.wait_until_ready()
        if self._store is not None:
            self._store.wait_until_ready()

    async def encode(
        self,
        reference: list[ObjectRef[bytes]],
        modality: str,
        options: MediaOptions,
        max_tokens: int,
        owner: str,
        uuid_key: str | None,
        timeout_s: float | None,
    ) -> EncodedReference | Failure:
        """reference: one reference to the bytes. It lies in a list so that Ray does not resolve it before the call
        begins, and calls that wait hold no bytes. max_tokens: of the whole context. owner, uuid_key: see
        `Backend.encode`. timeout_s: what is not encoded so many seconds from now is dropped and fails with a 504.

        A cancelled call that has not begun is dropped; one that has ends at its next part, and another call for
        the same item takes its place.
        """
        outcome = "failed"
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        try:
            key = await self._on(self._look_ups, self._key, reference[0], modality, options)
            item = _Item(
                reference=reference[0],
                modality=modality,
                options=options,
                max_tokens=max_tokens,
                owner=owner,
                deadline=deadline,
                key=key,
                call=uuid4().hex,
            )
            waited = time.perf_counter()
            found = await self._flights.run_async(key, partial(self._find_or_compute, item))
            outcome = "hit" if "cache_ms" in found.timings else "encoded"
            if found.call != item.call:
                # Another call's work: this one has only waited for it.
                outcome = "coalesced"
                found = replace(found, timings={"cache_ms": 1000 * (time.perf_counter() - waited)})
            if uuid_key is not None and self._store is not None:
                await self._on(self._look_ups, self._name, self._store, uuid_key, item)
            return found
        except CALL_ERRORS as error:
            return Failure(error=from_call(error, "media store"))
        except asyncio.CancelledError:
            outcome = "cancelled"
            raise
        except Exception as error:
            outcome = _outcome_of(error)
            return Failure(error=to_api_error(error))
        finally:
            self._recorder.count(ENCODER_ITEMS, modality=modality, outcome=outcome)

    async def find(
        self, uuid_key: str, modality: str, options: MediaOptions
    ) -> EncodedReference | Failure | None:
        """What is kept under a client's name for it, computing nothing; None where nothing is."""
        if self._store is None:
            return None
        try:
            found = await self._on(self._look_ups, self._find_named, self._store, uuid_key, modality, options)
        except CALL_ERRORS as error:
            return Failure(error=from_call(error, "media store"))
        except Exception as error:
            return Failure(error=to_api_error(error))
        if found is not None:
            self._recorder.count(ENCODER_ITEMS, modality=modality, outcome="hit")
        return found

    async def is_ready(self) -> bool:
        """True: a replica is called only once it is built."""
        return True

    async def check_health(self) -> None:
        """Ray calls it from time to time and replaces a replica whose encoder does not answer."""
        # Not on the threads of calls, which may all be waiting for another replica's result.
        await asyncio.to_thread(self._encoder.probe, _PROBE_S)
        if self._store is not None:
            await asyncio.to_thread(self._store.record)

    async def record_autoscaling_stats(self) -> dict[str, float]:
        """Ray asks for it where the number of replicas follows the load."""
        batches = self._encoder.stats()
        stations = (self._encoder.preparing, self._decoding)
        stages = [(station.busy_s(), station.queued_s()) for station in stations]
        return {LOAD: self._load.load([(batches.busy_s, batches.queued_s), *stages])}

    async def stats(self) -> EncoderStats:
        """For tests and benchmarks: exact numbers of this replica, and of the store it shares."""
        tiers = {} if self._store is None else await self._on(self._look_ups, self._store.stats)
        return EncoderStats(
            pid=os.getpid(), batcher=self._encoder.stats(), tiers=tiers, in_flight=len(self._flights)
        )

    def _key(self, reference: ObjectRef[bytes], modality: str, options: MediaOptions) -> str:
        return self._encoder.key(ray.get(reference), modality, options)

    async def _find_or_compute(self, item: _Item) -> EncodedReference:
        cancel = threading.Event()
        threads, compute = self._picture_threads, self._compute
        if item.modality != "image":
            # Pictures must get past videos that wait for a decoder.
            threads, compute = self._media_threads, self._compute_media
        look_up = None if self._store is None else self._look_ups.submit(self._find, self._store, item)
        try:
            if look_up is not None:
                found = await asyncio.wrap_future(look_up)
                if found is not None:
                    return found
            return await self._on(threads, compute, item, cancel)
        except BaseException:
            if look_up is not None:
                # A lookup goes on for whom nobody waits any more, and may end with a claim.
                look_up.add_done_callback(partial(self._give_up, item.key))
            raise
        finally:
            cancel.set()

    def _give_up(self, key: str, look_up: Future[EncodedReference | None]) -> None:
        assert self._store is not None
        self._look_ups.submit(self._store.give_up, key)

    def _find(self, store: ReplicaStore, item: _Item) -> EncodedReference | None:
        started = time.perf_counter()
        lease = store.find(item.key)
        return None if lease is None else _hit(lease, started, item.call)

    def _find_named(
        self, store: ReplicaStore, uuid_key: str, modality: str, options: MediaOptions
    ) -> EncodedReference | None:
        started = time.perf_counter()
        lease = store.find_named(uuid_key, self._encoder.settings_key(modality, options))
        return None if lease is None else _hit(lease, started)

    def _name(self, store: ReplicaStore, uuid_key: str, item: _Item) -> None:
        store.name(uuid_key, self._encoder.settings_key(item.modality, item.options), item.key)

    def _compute_media(self, item: _Item, cancel: threading.Event) -> EncodedReference:
        with self._decoding.turn():
            try:
                return self._compute(item, cancel)
            except DecoderCrashedError:
                # Somebody may have killed the process. Where the item is at fault it crashes the next one too.
                return self._compute(item, cancel)

    def _compute(self, item: _Item, cancel: threading.Event) -> EncodedReference:
        encoded = self._encoder.encode(
            ray.get(item.reference),
            item.modality,
            item.options,
            decoder=self._decoders,
            source=item.reference,
            max_tokens=item.max_tokens,
            caller=Caller(owner=item.owner, deadline=item.deadline, cancel=cancel),
            key=item.key,
        )
        if self._store is None:
            return _encoded(encoded, None, encoded.timings, item.call)
        with self._store.keep(item.key, encoded) as lease:
            return _encoded(encoded, lease.reference, encoded.timings, item.call)

    def _record_batch(self, report: BatchReport) -> None:
        record_batch(self._recorder, report)
        record_queue(self._recorder, self._encoder.stats())

    async def _on(self, threads: ThreadPoolExecutor, call: Callable[..., _T], *args: Any) -> _T:
        return await asyncio.get_running_loop().run_in_executor(threads, call, *args)

    def __del__(self) -> None:
        # Ray calls it when a replica ends.
        self.close()

    def close(self) -> None:
        """Ends threads, decoder processes and what is kept, built or half built. Idempotent."""
        for name in ("_look_ups", "_picture_threads", "_media_threads"):
            threads = getattr(self, name, None)
            if threads is not None:
                threads.shutdown(wait=False, cancel_futures=True)
        for name in ("_encoder", "_decoders", "_store"):
            part = getattr(self, name, None)
            if part is not None:
                part.close()


def _encoded(
    media: EncodedMedia,
    embeddings: ObjectRef[PackedTensor] | None,
    timings: Mapping[str, float],
    call: str = "",
) -> EncodedReference:
    """embeddings: where they lie already. Raises ObjectStoreFullError where they do not and find no room."""
    if embeddings is None:
        embeddings = ray.put(pack_tensor(media.embeddings))
    return EncodedReference(
        embeddings=embeddings,
        num_tokens=media.num_tokens,
        modality=media.modality,
        content_key=media.content_key,
        timings=timings,
        layout=media.layout,
        notes=media.notes,
        call=call,
    )


def _hit(lease: SharedLease, started: float, call: str = "") -> EncodedReference:
    """started: when the lookup began, by `time.perf_counter`. Ends the lease."""
    with lease:
        waited_ms = 1000 * (time.perf_counter() - started)
        return _encoded(media_of(lease), lease.reference, {"cache_ms": waited_ms}, call)


def _outcome_of(error: Exception) -> str:
    if isinstance(error, DeadlineExceededError):
        return "expired"
    return "rejected" if isinstance(error, QueueFullError) else "failed"


def encoder_deployment(settings: ServerSettings) -> serve.Application:
    """The deployment, bound to its settings. Calls with the same session_id meet the same replica."""
    replicas: dict[str, Any] = {"num_replicas": settings.num_encoders}
    if settings.max_encoders > settings.num_encoders:
        replicas = {"autoscaling_config": autoscaling_config(settings.num_encoders, settings.max_encoders)}
    decorate = serve.deployment(
        name="Encoder",
        **replicas,
        # Calls that wait hold a reference only, and pictures must get past videos that wait for a decoder.
        max_ongoing_requests=settings.chat.max_requests,
        max_queued_requests=4 * settings.chat.max_requests,
        health_check_period_s=10.0,
        health_check_timeout_s=30.0,
        graceful_shutdown_timeout_s=10.0,
        max_constructor_retry_count=2,
        request_router_config=_ROUTERS[settings.router],
        ray_actor_options={"num_cpus": 0, "num_gpus": settings.gpus_per_encoder},
    )
    return decorate(Encoder).bind(settings)
