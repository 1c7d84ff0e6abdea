"""The directory actor: one per cluster, under a name. Its books are `DirectoryTable`; here is what needs Ray.

It holds references and no embeddings: those lie in the object store of the node that computed them, and belong to
the process that put them there. Ray loses them with that process (since 2.56 `ray.put` cannot give them to another
owner), so the death of a replica makes its entries misses.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Iterable, Sequence
from contextlib import suppress
from typing import Any, cast

import ray
from ray.actor import ActorHandle

from mm_pipeline.recording import Totals, record_tiers
from mm_pipeline.store.base import Entry, TierStats
from serve_apps.observability.metrics import Metrics
from serve_apps.store.table import DirectoryTable, Found, Lead, Synced

NAMESPACE = "mm-pipeline"
_MAX_CALLS = 10_000
"""Calls under way at once. Those that wait for another replica's result cost one each."""


class Directory:
    """The actor's class. See `DirectoryTable` for what its calls mean; holders are named by themselves."""

    def __init__(self, max_bytes: int, lease_s: float) -> None:
        self._table = DirectoryTable(
            max_bytes, lease_s=lease_s, now=time.monotonic, claim_ended=self._claim_ended
        )
        self._recorder = Metrics()
        self._totals = Totals(self._recorder)
        # By key: resolved when the claim on it ends, with whether its entry was rejected.
        self._endings: dict[str, asyncio.Future[bool]] = {}

    async def lookup(self, key: str, holder: str) -> Found | None:
        return self._table.lookup(key, holder)

    async def claim(self, key: str, holder: str, wait_s: float) -> Found | Lead:
        """As the table's, but waits so long for a claim of another holder to end.

        "lead" without a claim where the other's entry was too large to be listed: all who wait compute at once.
        """
        deadline = time.monotonic() + wait_s
        while True:
            answer = self._table.claim(key, holder)
            left_s = deadline - time.monotonic()
            if answer != "wait" or left_s <= 0:
                return answer
            ending = self._endings.setdefault(key, asyncio.get_running_loop().create_future())
            patience_s = min(left_s, self._table.claim_lapses_in_s(key) + 0.01)
            with suppress(TimeoutError):
                if await asyncio.wait_for(asyncio.shield(ending), patience_s):
                    return "lead"

    async def unclaim(self, key: str, holder: str) -> None:
        self._table.unclaim(key, holder)

    async def publish(
        self, reference: Sequence[Any], reference_id: str, entry: Entry, holder: str, pin: bool
    ) -> int | None:
        """reference: one reference, in a list so that Ray does not resolve it."""
        return self._table.publish(reference[0], reference_id, entry, holder, pin=pin)

    async def report_lost(self, key: str, reference_id: str, holder: str) -> None:
        self._table.report_lost(key, reference_id, holder)

    async def sync(self, holder: str, held: Iterable[int], released: Iterable[int]) -> Synced:
        record_tiers(self._recorder, self._totals, {"shared": self._table.stats()})
        return self._table.sync(holder, held, released)

    async def leave(self, holder: str) -> None:
        self._table.leave(holder)

    async def set_aliases(self, aliases: Iterable[tuple[str, str, str]]) -> None:
        for alias in aliases:
            self._table.aliases.set(*alias)

    async def alias(self, uuid_key: str, settings_key: str) -> str | None:
        return self._table.aliases.get(uuid_key, settings_key)

    async def stats(self) -> TierStats:
        return self._table.stats()

    async def counts(self) -> dict[str, int]:
        """Leases and claims in force, and the process; checks the books first. For tests."""
        self._table.check()
        return {"leases": self._table.num_leases(), "claims": self._table.num_claims(), "pid": os.getpid()}

    def _claim_ended(self, key: str, rejected: bool) -> None:
        ending = self._endings.pop(key, None)
        if ending is not None:
            ending.set_result(rejected)


def connect_directory(
    name: str, max_bytes: int, *, lease_s: float = 15.0, detached: bool = True
) -> ActorHandle[Directory]:
    """The directory of that name, started where there is none yet; then it has this bound and these leases.

    lease_s: how long a silent process keeps its leases and claims. Ray restarts the actor, empty, whenever it dies;
    it lives until `ray.kill` or the end of the cluster, or, where it is not detached, as long as the process that
    started it.
    """
    actor = ray.remote(Directory).options(
        name=name,
        namespace=NAMESPACE,
        lifetime="detached" if detached else "non_detached",
        get_if_exists=True,
        max_restarts=-1,
        max_task_retries=0,
        max_concurrency=_MAX_CALLS,
        num_cpus=0,
    )
    return cast("ActorHandle[Directory]", actor.remote(max_bytes, lease_s))
