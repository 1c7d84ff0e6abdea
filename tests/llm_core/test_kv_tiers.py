"""Pages below the device: bounds, files that lie, and answers that are the same wherever the KV has been."""

from __future__ import annotations

import threading
import time
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import hypothesis.strategies as st
import pytest
import torch
from hypothesis import given, settings

from llm_core.engine import Engine
from llm_core.kv.storage import KINDS, KVStorage
from llm_core.kv.tiers.base import PageLoad
from llm_core.kv.tiers.blocks import PageBlocks
from llm_core.kv.tiers.disk import DiskTier
from llm_core.kv.tiers.host import HostTier
from llm_core.kv.tiers.settings import TierSettings
from llm_core.kv.tiers.transfer import Transfer
from tests.llm_core.support import request, run, tiny_engine, tiny_model, tokens_of
from tests.llm_core.test_prefix_engine import chat, picture, together, tokens

PAGE = 4


@pytest.fixture(scope="module")
def model():
    return tiny_model()


def block(seed: int, size: int = 100) -> torch.Tensor:
    return torch.randint(0, 256, (size,), dtype=torch.uint8, generator=torch.Generator().manual_seed(seed))


def name(number: int) -> tuple[str, bytes]:
    return KINDS[number % 2], number.to_bytes(16, "big")


@given(steps=st.lists(st.tuples(st.booleans(), st.integers(0, 7), st.integers(1, 120)), max_size=60))
@settings(max_examples=150, deadline=None)
def test_the_host_tier_is_an_lru_bounded_by_bytes(steps) -> None:
    tier, model_ = HostTier(300), {}
    for puts, number, size in steps:
        if puts:
            evicted = tier.put(name(number), block(number, size))
            model_.pop(number, None)
            model_[number] = size
            gone = []
            while sum(model_.values()) > 300:
                gone.append(next(iter(model_)))
                del model_[gone[-1]]
            assert [one for one, _ in evicted] == [name(one) for one in gone]
        else:
            found = tier.get(name(number))
            assert (found is not None) == (number in model_)
            if found is not None:
                model_[number] = model_.pop(number)
                assert torch.equal(found, block(number, model_[number]))
        tier.check()


def test_files_survive_a_restart_and_the_oldest_go_first(tmp_path: Path) -> None:
    tier = DiskTier(tmp_path, 3 * 132)
    for number in range(3):
        tier.put(name(number), block(number))
        time.sleep(0.01)
    assert torch.equal(tier.get(name(0)), block(0))
    tier.put(name(3), block(3))
    tier.check()
    assert [number for number in range(4) if name(number) in tier] == [0, 2, 3]
    (tmp_path / "half.1234").write_bytes(b"not finished")
    again = DiskTier(tmp_path, 2 * 132)
    again.check()
    # Two fit now. The first was read last but one, the second not at all.
    assert [number for number in range(4) if name(number) in again] == [0, 3]
    assert torch.equal(again.get(name(3)), block(3))


@pytest.mark.parametrize("damage", ["cut", "changed", "empty", "gone"])
def test_a_file_that_is_not_what_was_written_is_a_miss(tmp_path: Path, damage: str) -> None:
    tier = DiskTier(tmp_path, 10_000)
    tier.put(name(1), block(1))
    (path,) = tmp_path.iterdir()
    content = path.read_bytes()
    if damage == "gone":
        path.unlink()
    else:
        path.write_bytes(
            {"cut": content[:-1], "changed": content[:-1] + bytes([content[-1] ^ 1]), "empty": b""}[damage]
        )
    assert tier.get(name(1)) is None
    assert name(1) not in tier
    assert not list(tmp_path.iterdir())
    tier.check()
    tier.put(name(1), block(1))
    assert torch.equal(tier.get(name(1)), block(1))


def test_a_disk_that_takes_nothing_keeps_nothing(tmp_path: Path) -> None:
    tier = DiskTier(tmp_path / "kv", 10_000)
    (tmp_path / "kv").rmdir()
    tier.put(name(1), block(1))
    assert name(1) not in tier
    assert tier.num_bytes == 0


def storage_of(model, dtype=torch.float32) -> KVStorage:
    storage = KVStorage(model.config, num_pages={"full": 6, "swa": 5}, page_size=PAGE, dtype=dtype)
    generator = torch.Generator().manual_seed(0)
    for kind in KINDS:
        for index in range(storage.num_layers(kind)):
            for part in storage.layer(kind, index):
                part.copy_(torch.randn(part.shape, generator=generator))
    return storage


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_page_taken_out_and_put_back_elsewhere_is_the_same(model, dtype) -> None:
    source, target = (
        storage_of(model, dtype),
        KVStorage(model.config, num_pages={"full": 6, "swa": 5}, page_size=PAGE, dtype=dtype),
    )
    reading, writing = PageBlocks(source), PageBlocks(target)
    places = {"full": {1: 4, 5: 0}, "swa": {2: 2, 0: 3}}
    loads = [
        PageLoad(kind=kind, page=to, block=reading.read(kind, page))
        for kind, moves in places.items()
        for page, to in moves.items()
    ]
    assert {load.block.nbytes for load in loads if load.kind == "full"} == {reading.num_bytes("full")}
    transfer = Transfer(writing, loads, model.cached_layers, target.device)
    for layer in model.cached_layers:
        transfer.wait(layer)
        for before, after in zip(source.layer(*layer), target.layer(*layer), strict=True):
            moves = places[layer[0]]
            for page in range(after.shape[1]):
                expected = [before[:, one] for one, to in moves.items() if to == page]
                assert torch.equal(
                    after[:, page], expected[0] if expected else torch.zeros_like(after[:, page])
                )
    transfer.join()


def test_each_layer_waits_for_itself_alone_and_a_failed_copy_says_so(model) -> None:
    storage = storage_of(model)
    blocks = PageBlocks(storage)
    loads = [PageLoad(kind="full", page=1, block=blocks.read("full", 0))] * 2
    layers = [layer for layer in model.cached_layers if layer[0] == "full"]
    bytes_per_layer = sum(len(loads) * part[:, :1].nbytes for part in storage.layer("full", 0))
    transfer = Transfer(blocks, loads, layers, storage.device, bytes_per_s=bytes_per_layer / 0.1)
    begun = time.monotonic()
    arrived = []
    for layer in layers:
        transfer.wait(layer)
        arrived.append(time.monotonic() - begun)
    assert arrived[1] - arrived[0] > 0.05
    beyond = [PageLoad(kind="full", page=99, block=loads[0].block)]
    broken = Transfer(blocks, beyond, layers, storage.device)
    with pytest.raises(IndexError, match="99"):
        broken.wait(layers[0])
    broken.join()


# 2 full layers and 2 sliding ones: room for about two short conversations on the device.
TIGHT = {"kv_memory_bytes": 220_000, "max_running": 2}
HOST = TierSettings(host_bytes=1 << 24)


@contextmanager
def running(model, **changes: Any):
    engine = tiny_engine(model, **{"page_size": PAGE, "prefill_chunk_tokens": 16, **changes})
    engine.start()
    try:
        yield engine
    finally:
        engine.shutdown()
        if engine.tiers is not None:
            engine.tiers._host.check()


def interrupted_chat(engine: Engine, turns: int) -> tuple[list[list[int]], list[int]]:
    """As `chat`; after each turn something long pushes everything off the device."""
    said, answers, cached = tokens(21, 1), [], []
    for turn in range(turns):
        said = said + tokens(9, 10 + turn)
        deltas = run(engine, request(said, f"t{turn}", spans=(picture(6, 11, "cat"),), max_tokens=7))
        answers.append(tokens_of(deltas))
        cached.append(deltas[-1].num_cached_tokens)
        said = said + answers[-1]
        run(engine, request(tokens(engine.max_context - 10, 77 + turn), f"long{turn}", max_tokens=2))
    return answers, cached


EVERYTHING_KEPT = [0, *((30 + 16 * turn + 6) // PAGE * PAGE for turn in range(3))]


@pytest.mark.parametrize("policy", ["write_back", "write_through"])
def test_a_chat_goes_on_from_host_memory(model, policy) -> None:
    with running(model, prefix_cache=False) as plain:
        expected, _ = chat(plain, 4)
    tiers = TierSettings(host_bytes=1 << 24, policy=policy)
    with running(model, **TIGHT, tiers=tiers) as engine:
        answers, cached = interrupted_chat(engine, 4)
        assert answers == expected
        assert cached == EVERYTHING_KEPT
        assert engine.stats().tiers.pages_from_host > 0


def test_a_chat_goes_on_from_files(model, tmp_path: Path) -> None:
    with running(model, prefix_cache=False) as plain:
        expected, _ = chat(plain, 4)
    # Host memory for less than what one long request pushes out.
    tiers = TierSettings(host_bytes=120_000, folder=tmp_path, disk_bytes=1 << 24)
    with running(model, **TIGHT, tiers=tiers) as engine:
        answers, cached = interrupted_chat(engine, 4)
        assert answers == expected
        assert cached == EVERYTHING_KEPT
        assert engine.stats().tiers.pages_from_disk > 0
        engine.tiers.check()


def test_what_was_written_through_is_there_after_a_restart(model, tmp_path: Path) -> None:
    tiers = TierSettings(host_bytes=1 << 24, folder=tmp_path, disk_bytes=1 << 24, policy="write_through")
    with running(model, tiers=tiers) as engine:
        answers, _ = chat(engine, 3)
    with running(model, tiers=tiers) as engine:
        again, cached = chat(engine, 3)
        assert again == answers
        assert cached == [28, 44, 60]


def test_damaged_files_cost_time_only(model, tmp_path: Path) -> None:
    with running(model, prefix_cache=False) as plain:
        expected, _ = chat(plain, 2)
    tiers = TierSettings(host_bytes=1 << 24, folder=tmp_path, disk_bytes=1 << 24, policy="write_through")
    with running(model, tiers=tiers) as engine:
        assert chat(engine, 2)[0] == expected
    files = sorted(tmp_path.iterdir())
    assert len(files) > 10
    for path in files[::3]:
        path.write_bytes(path.read_bytes()[:-2])
    for path in files[1::3]:
        path.write_bytes(path.read_bytes()[:-2] + b"xy")
    with running(model, tiers=tiers) as engine:
        assert chat(engine, 2)[0] == expected


def test_who_gives_way_comes_back_from_the_tiers(model) -> None:
    items = [request(tokens(18 + 3 * n, 20 + n), f"r{n}", max_tokens=40) for n in range(6)]
    with running(model) as roomy:
        expected = [tokens_of(run(roomy, item)) for item in items]
    with running(model, **{**TIGHT, "max_running": 6}, tiers=HOST) as tight:
        assert together(tight, items) == expected
        assert tight.stats().num_preemptions > 0


def test_a_tier_that_loses_a_page_at_the_last_moment_costs_time_only(model, monkeypatch) -> None:
    with running(model, **TIGHT, tiers=HOST) as engine:
        said = tokens(33, 1)
        answer = tokens_of(run(engine, request(said, "first", max_tokens=4)))
        run(engine, request(tokens(engine.max_context - 10, 5), "long", max_tokens=2))
        lost = []

        def lose(self: HostTier, wanted: Any) -> Any:
            lost.append(wanted)
            with self._lock:
                self._forget(wanted)

        monkeypatch.setattr(HostTier, "get", lose)
        assert tokens_of(run(engine, request(said, "second", max_tokens=4))) == answer
        assert lost


def test_a_failed_copy_ends_its_request_and_keeps_nothing_of_it(model, monkeypatch) -> None:
    with running(model, **TIGHT, tiers=HOST) as engine:
        said = tokens(33, 1)
        answer = tokens_of(run(engine, request(said, "first", max_tokens=4)))
        run(engine, request(tokens(engine.max_context - 10, 5), "long", max_tokens=2))
        scatter = PageBlocks.scatter

        def fail(*_: Any) -> None:
            raise OSError("the link is down")

        monkeypatch.setattr(PageBlocks, "scatter", fail)
        assert run(engine, request(said, "second", max_tokens=4))[-1].finish_reason == "error"
        monkeypatch.setattr(PageBlocks, "scatter", scatter)
        assert tokens_of(run(engine, request(said, "third", max_tokens=4))) == answer


def test_a_request_that_is_aborted_while_its_files_are_read_never_runs(model, tmp_path, monkeypatch) -> None:
    tiers = TierSettings(host_bytes=1 << 24, folder=tmp_path, disk_bytes=1 << 24, policy="write_through")
    said = tokens(33, 1)
    with running(model, tiers=tiers) as engine:
        run(engine, request(said, "first", max_tokens=4))
    reading, go_on = threading.Event(), threading.Event()
    get = DiskTier.get

    def slow(self: DiskTier, wanted: Any) -> Any:
        reading.set()
        assert go_on.wait(30)
        return get(self, wanted)

    monkeypatch.setattr(DiskTier, "get", slow)
    with running(model, tiers=tiers) as engine:
        deltas: list[Any] = []
        engine.submit(request(said, "second", max_tokens=4), deltas.append)
        assert reading.wait(30)
        engine.abort("second")
        deadline = time.monotonic() + 30
        while not deltas and time.monotonic() < deadline:
            time.sleep(0.01)
        assert [delta.finish_reason for delta in deltas] == ["abort"]
        go_on.set()
        monkeypatch.setattr(DiskTier, "get", get)
        run(engine, request(said, "third", max_tokens=4))
        assert len(deltas) == 1


@pytest.mark.parametrize(
    ("settings_", "words"),
    [
        ({"host_bytes": -1}, "host_bytes is -1"),
        ({"folder": Path("/nowhere"), "host_bytes": 5}, "give host_bytes and disk_bytes, too"),
    ],
)
def test_settings_that_cannot_be_met_are_named(settings_, words) -> None:
    with pytest.raises(ValueError, match=words):
        TierSettings(**settings_)
