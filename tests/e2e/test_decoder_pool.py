"""The pool of decoder processes on real Ray: streaming, back-pressure, crash, deadline, cancel, no leaks."""

from __future__ import annotations

import logging
import os
import signal
import threading
import time
from collections.abc import Iterator
from concurrent.futures import CancelledError, ThreadPoolExecutor
from contextlib import closing, suppress
from functools import partial

import pytest
import ray
from ray.exceptions import RayActorError

from mm_pipeline.errors import UnsupportedMediaError
from mm_pipeline.options import MediaOptions
from serve_apps.api.errors import ApiError
from serve_apps.decoders.pool import DecoderPool
from tests.fake_decoder import FakeDecoder, FakePart, script

pytestmark = pytest.mark.e2e

OPTIONS = MediaOptions(fps=3.0)


@pytest.fixture(scope="module", autouse=True)
def local_ray() -> Iterator[None]:
    ray.init(
        address="local",
        num_cpus=2,
        include_dashboard=False,
        log_to_driver=False,
        configure_logging=False,
        logging_level=logging.ERROR,
        object_store_memory=100 * 2**20,
    )
    yield
    ray.shutdown()


@pytest.fixture(scope="module")
def pool(local_ray: None) -> Iterator[DecoderPool]:
    pool = DecoderPool(FakeDecoder, num_workers=2, timeout_s=60.0)
    pool.wait_until_ready()
    yield pool
    pool.close()


@pytest.fixture(scope="module")
def hasty(local_ray: None) -> Iterator[DecoderPool]:
    """One process, little patience."""
    pool = DecoderPool(FakeDecoder, num_workers=1, timeout_s=0.5, stop_timeout_s=0.3)
    yield pool
    pool.close()


def decode(pool: DecoderPool, data: object, cancel: threading.Event | None = None) -> list[FakePart]:
    return list(pool.decode(data, "video", OPTIONS, cancel or threading.Event()))


def is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def wait_until_dead(pid: int) -> None:
    deadline = time.monotonic() + 20
    while is_alive(pid):
        assert time.monotonic() < deadline, f"process {pid} is still there"
        time.sleep(0.05)


def test_parts_come_in_order_from_another_process(pool):
    for data in (script(5), ray.put(script(5))):
        parts = decode(pool, data)
        assert [part.index for part in parts] == list(range(5))
        assert all(int(part.frames.max()) == part.index for part in parts)
        assert {part.options for part in parts} == {OPTIONS}
        assert os.getpid() not in {part.pid for part in parts}
    assert decode(pool, script(0)) == []


def test_at_most_one_part_is_made_ahead(pool):
    with closing(pool.decode(script(50), "video", OPTIONS, threading.Event())) as parts:
        first = next(parts)
        next(parts)
        time.sleep(0.3)
    # The process says how many parts it has made: those two and the one that was under way.
    pids: dict[int, int] = {}
    while first.pid not in pids:
        found = decode(pool, script(1))[0]
        pids[found.pid] = found.made
    assert pids[first.pid] - first.made == 3


def test_an_item_that_is_damaged_further_on_gives_its_good_parts_first(pool):
    found = []
    with pytest.raises(UnsupportedMediaError, match="the rest of the file is noise"):
        found.extend(pool.decode(script(5, error_at=2), "video", OPTIONS, threading.Event()))
    assert len(found) <= 2


def test_a_crash_costs_its_item_and_nothing_else(pool):
    with (
        ThreadPoolExecutor(2) as threads,
        closing(pool.decode(script(3), "audio", OPTIONS, threading.Event())) as parts,
    ):
        bystander = next(parts)
        crashed = threads.submit(decode, pool, script(3, crash_at=1))
        error = crashed.exception(timeout=60)
        assert [part.pid for part in parts] == [bystander.pid] * 2
    assert isinstance(error, UnsupportedMediaError)
    assert error.status == 415
    assert "the decoder crashed on this item" in error.message
    # Both places are filled again: two items at once, in two processes.
    with ThreadPoolExecutor(2) as threads:
        with closing(pool.decode(script(2), "video", OPTIONS, threading.Event())) as parts:
            one = next(parts)
            other = threads.submit(decode, pool, script(2)).result(timeout=60)[0]
        assert one.pid != other.pid


def test_a_worker_that_was_killed_while_idle_is_not_the_next_items_fault(pool):
    pids = {decode(pool, script(1))[0].pid for _ in range(2)}
    for pid in pids:
        os.kill(pid, signal.SIGKILL)
        wait_until_dead(pid)
    assert len(pids) == 2
    assert decode(pool, script(2))[0].pid not in pids


def test_cancel_ends_a_decoding_and_the_worker_is_used_again(pool):
    cancel = threading.Event()
    parts = pool.decode(script(3, hang_at=1), "video", OPTIONS, cancel)
    first = next(parts)
    threading.Timer(0.2, cancel.set).start()
    begin = time.monotonic()
    with pytest.raises(CancelledError):
        next(parts)
    assert time.monotonic() - begin < 5
    assert is_alive(first.pid)
    with pytest.raises(CancelledError):
        decode(pool, script(1), cancel)


def test_a_decoder_that_does_not_stop_is_killed(hasty):
    parts = hasty.decode(script(3, deaf_at=1), "video", OPTIONS, threading.Event())
    first = next(parts)
    parts.close()
    wait_until_dead(first.pid)
    assert len(decode(hasty, script(3))) == 3


def test_an_item_over_its_time_is_given_up_and_its_process_killed(hasty):
    pid = decode(hasty, script(1))[0].pid
    found = []
    begin = time.monotonic()
    with pytest.raises(UnsupportedMediaError, match=r"within 0\.5 s, which is decode_timeout_s"):
        found.extend(hasty.decode(script(3, deaf_at=1), "video", OPTIONS, threading.Event()))
    assert time.monotonic() - begin < 10
    assert len(found) == 1
    wait_until_dead(pid)


def test_a_slow_reader_costs_an_item_none_of_its_time(hasty):
    num_parts = 0
    for _ in hasty.decode(script(3), "video", OPTIONS, threading.Event()):
        num_parts += 1
        time.sleep(0.3)
    assert num_parts == 3


def test_a_bug_in_the_decoder_is_an_error_and_the_pool_goes_on(pool):
    with pytest.raises(ZeroDivisionError):
        decode(pool, script(2, bug_at=1))
    assert len(decode(pool, script(2))) == 2


def test_nothing_is_left_behind_after_many_items(pool):
    store = ray.available_resources()["object_store_memory"]
    threads_before, files_before = threading.active_count(), len(os.listdir("/proc/self/fd"))
    for round_ in range(40):
        with suppress(UnsupportedMediaError):
            decode(pool, ray.put(script(4, error_at=round_ % 8, size=256)))
        parts = pool.decode(script(4, size=256), "video", OPTIONS, threading.Event())
        next(parts)
        parts.close()
    assert threading.active_count() <= threads_before + 1
    assert len(os.listdir("/proc/self/fd")) <= files_before + 4
    deadline = time.monotonic() + 10
    # A part has 393,216 bytes; a few bytes of the last item may still be held by its error.
    while ray.available_resources()["object_store_memory"] < store - 100_000:
        assert time.monotonic() < deadline
        time.sleep(0.1)


def test_a_decoder_that_cannot_be_made_is_an_error_at_once(local_ray):
    pool = DecoderPool(partial(int, "no number"), num_workers=1, timeout_s=60.0)
    with pytest.raises(RayActorError, match="no number"):
        pool.wait_until_ready()
    with pytest.raises(ApiError, match="is being restarted") as info:
        decode(pool, script(1))
    assert info.value.status == 503
    pool.close()


def test_closing_the_pool_ends_its_processes(hasty):
    pid = decode(hasty, script(1))[0].pid
    hasty.close()
    wait_until_dead(pid)
