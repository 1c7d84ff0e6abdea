"""A call that ends while the store is asked leaves no claim behind, whenever the store answers."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from mm_pipeline.options import MediaOptions
from serve_apps.deployments.encoder import Encoder, _Item
from tests.helpers import wait_until

LONG_S = 30.0


class SlowStore:
    """Takes its time to find nothing, which is a claim."""

    def __init__(self) -> None:
        self.asked = threading.Event()
        self.answer = threading.Event()
        self.steps: list[str] = []

    def find(self, key: str) -> None:
        self.asked.set()
        assert self.answer.wait(LONG_S)
        self.steps.append(f"claim {key}")

    def give_up(self, key: str) -> None:
        self.steps.append(f"give up {key}")

    def close(self) -> None:
        """Holds nothing."""


class BareEncoder(Encoder):
    """Its store and threads, without weights."""

    def __init__(self, store: Any) -> None:
        self._store = store
        self._look_ups = ThreadPoolExecutor(2)
        self._picture_threads = ThreadPoolExecutor(1)

    def _compute(self, item: _Item, cancel: threading.Event) -> Any:
        raise ValueError("no weights")


def item() -> _Item:
    reference: Any = None
    return _Item(
        reference=reference,
        modality="image",
        options=MediaOptions(),
        max_tokens=1,
        owner="o",
        deadline=None,
        key="k",
        call="c",
    )


async def test_a_call_that_is_cancelled_while_it_looks_up_gives_up_what_it_then_claims():
    store = SlowStore()
    encoder = BareEncoder(store)
    call = asyncio.create_task(encoder._find_or_compute(item()))
    await wait_until(store.asked.is_set)
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    assert store.steps == []
    store.answer.set()
    await wait_until(lambda: len(store.steps) == 2)
    assert store.steps == ["claim k", "give up k"]


async def test_a_call_that_fails_gives_up_its_claim():
    store = SlowStore()
    store.answer.set()
    encoder = BareEncoder(store)
    with pytest.raises(ValueError, match="no weights"):
        await encoder._find_or_compute(item())
    await wait_until(lambda: len(store.steps) == 2)
    assert store.steps == ["claim k", "give up k"]
