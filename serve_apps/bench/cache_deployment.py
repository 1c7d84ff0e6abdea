"""The encoder deployment as `mmserve bench cache` asks it: on its own Ray, through the handles the ingress uses.

Knows what is asked and timed. Does not know what the numbers are compared with.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, cast

import ray
from ray import serve
from ray.serve.handle import DeploymentHandle

from mm_pipeline.options import MediaOptions
from serve_apps.chat.base import EncodedItem, ModelInfo
from serve_apps.deployments.backend import RayBackend
from serve_apps.deployments.encoder import EncodedReference, Encoder, EncoderStats, encoder_deployment
from serve_apps.deployments.failure import Failure
from serve_apps.deployments.server import QUIET, start_ray
from serve_apps.settings import ServerSettings

Handle = DeploymentHandle[Any]

_OPTIONS = MediaOptions()
_OWNER = "bench"
_MAX_TOKENS = 2**20
# That all of them meet the same of three replicas happens once in 3 ** 63 times.
_NUM_SESSIONS = 64


@dataclass(frozen=True, kw_only=True)
class Latencies:
    """Seconds of each answer: to a picture's first request, and to those after it."""

    misses_s: Sequence[float]
    hits_s: Sequence[float]


@dataclass(frozen=True, kw_only=True)
class Hops:
    """Seconds of answers from the store: from the deployment, and from an encoder in this process."""

    through_serve_s: Sequence[float]
    in_process_s: Sequence[float]


class _NoEngine:
    """In place of the decoder engine's handle: nothing is generated, and the context bounds no picture."""

    def options(self, **_options: Any) -> _NoEngine:
        return self

    async def remote(self) -> ModelInfo:
        return ModelInfo(max_context=_MAX_TOKENS)


@contextmanager
def running_ray() -> Iterator[None]:
    """Ray and Serve on this machine, without HTTP; all ends with the block."""
    # Else it remarks on each process that this one starts.
    os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "false")
    start_ray()
    try:
        serve.start(proxy_location="Disabled", logging_config=QUIET)
        yield
    finally:
        ray.shutdown()


@contextmanager
def running_encoders(settings: ServerSettings, name: str) -> Iterator[Handle]:
    """The encoder deployment. name: one that this Ray has not seen, for handles keep the router of an old one."""
    try:
        yield serve.run(encoder_deployment(settings), name=name, route_prefix=None, logging_config=QUIET)
    finally:
        serve.delete(name)


def backend_of(encoders: Handle) -> RayBackend:
    """What the ingress encodes through."""
    return RayBackend(encoders, cast("Handle", _NoEngine()))


async def replay(backend: RayBackend, pictures: Sequence[bytes], trace: Sequence[int], clients: int) -> float:
    """Share of the trace's requests that were not computed. clients: at once, each with one request under way."""
    waiting = iter(trace)
    hits = 0

    async def client(owner: str) -> None:
        nonlocal hits
        for item in waiting:
            found = await backend.encode(pictures[item], "image", _OPTIONS, owner=owner)
            hits += is_hit(found)

    await asyncio.gather(*(client(f"client {number}") for number in range(clients)))
    return hits / len(trace)


async def first_and_later(backend: RayBackend, pictures: Sequence[bytes], later: int) -> Latencies:
    """pictures: new ones. later: further requests for each. Raises ValueError where the store does not keep one."""
    misses: list[float] = []
    hits: list[float] = []
    for picture in pictures:
        for number in range(1 + later):
            begin = time.perf_counter()
            found = await backend.encode(picture, "image", _OPTIONS, owner=_OWNER)
            (hits if number else misses).append(time.perf_counter() - begin)
            if is_hit(found) != (number > 0):
                raise ValueError(f"request {number + 1} for a picture was answered as another one should be")
    return Latencies(misses_s=misses, hits_s=hits)


async def second_replica_hits(encoders: Handle, pictures: Sequence[bytes]) -> float:
    """Share of pictures that a second replica has at once when a first one has computed them.

    pictures: new ones. encoders: routed by session. Raises ValueError for a picture that fails, and when all
    sessions meet the same replica.
    """
    first, second = await _two_sessions(encoders)
    hits = 0
    for picture in pictures:
        reference = ray.put(picture)
        computed, found = [await _encode_for(encoders, session, reference) for session in (first, second)]
        hits += not is_hit(computed) and is_hit(found)
    return hits / len(pictures)


async def hops(backend: RayBackend, encoder: Encoder, picture: bytes, count: int) -> Hops:
    """The same cached picture in turns from the deployment, and from `encoder` in this process over its store."""
    reference = ray.put(picture)
    through_serve: list[float] = []
    in_process: list[float] = []
    await backend.encode(picture, "image", _OPTIONS, owner=_OWNER)
    for _ in range(count):
        begin = time.perf_counter()
        answered = await backend.encode(picture, "image", _OPTIONS, owner=_OWNER)
        middle = time.perf_counter()
        found = await encoder.encode([reference], "image", _OPTIONS, _MAX_TOKENS, _OWNER, None, None)
        in_process.append(time.perf_counter() - middle)
        through_serve.append(middle - begin)
        if not (is_hit(answered) and is_hit(_checked(found))):
            raise ValueError("a cached picture was computed again")
    return Hops(through_serve_s=through_serve, in_process_s=in_process)


def is_hit(found: EncodedItem | EncodedReference) -> bool:
    """Whether the embeddings were there, or being computed for another request."""
    return "cache_ms" in found.timings


async def _two_sessions(encoders: Handle) -> tuple[str, str]:
    sessions: dict[int, str] = {}
    for number in range(_NUM_SESSIONS):
        session = f"session {number}"
        stats: EncoderStats = await encoders.options(method_name="stats", session_id=session).remote()
        sessions.setdefault(stats.pid, session)
        if len(sessions) == 2:
            first, second = sessions.values()
            return first, second
    raise ValueError(f"all of {_NUM_SESSIONS} sessions met the same replica; ask for more than one")


async def _encode_for(encoders: Handle, session: str, reference: Any) -> EncodedReference:
    handle = encoders.options(method_name="encode", session_id=session)
    return _checked(await handle.remote([reference], "image", _OPTIONS, _MAX_TOKENS, _OWNER, None, None))


def _checked(found: EncodedReference | Failure) -> EncodedReference:
    if isinstance(found, Failure):
        raise ValueError(f"the encoder did not answer: {found.error}")
    return found
