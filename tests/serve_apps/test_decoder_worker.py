"""The decoder actor as a plain object."""

from __future__ import annotations

import threading

import pytest

from mm_pipeline.errors import UnsupportedMediaError
from mm_pipeline.options import MediaOptions
from serve_apps.decoders.worker import DecoderWorker
from tests.fake_decoder import FakeDecoder, script

OPTIONS = MediaOptions(fps=2.0)


def read_all(worker: DecoderWorker) -> list:
    found = []
    while (part := worker.next()) is not None:
        found.append(part)
        if isinstance(part, Exception):
            break
    return found


def test_items_come_one_after_another():
    worker = DecoderWorker(FakeDecoder)
    for num_parts in (3, 0, 2):
        worker.start(script(num_parts), "video", OPTIONS)
        parts = read_all(worker)
        assert [int(part.frames[0, 0, 0, 0]) for part in parts] == list(range(num_parts))
        assert all(part.options == OPTIONS for part in parts)
        assert worker.next() is None


def test_what_is_wrong_with_an_item_comes_after_its_good_parts():
    worker = DecoderWorker(FakeDecoder)
    worker.start(script(5, error_at=2), "audio", OPTIONS)
    *parts, error = read_all(worker)
    assert len(parts) == 2
    assert isinstance(error, UnsupportedMediaError)
    worker.start(script(1), "audio", OPTIONS)
    assert len(read_all(worker)) == 1


def test_nothing_is_decoded_before_it_is_asked_for():
    worker = DecoderWorker(FakeDecoder)
    worker.start(script(9), "video", OPTIONS)
    for _ in range(2):
        worker.next()
    worker.finish()
    worker.start(script(9), "video", OPTIONS)
    assert worker.next().made == 3


def test_stop_ends_a_decoding_that_hangs():
    worker = DecoderWorker(FakeDecoder)
    worker.start(script(2, hang_at=1), "video", OPTIONS)
    worker.next()
    timer = threading.Timer(0.05, worker.stop)
    timer.start()
    assert worker.next() is None
    timer.join()
    worker.finish()


def test_finish_closes_the_decoder():
    closed = []

    class Watched:
        def decode(self, data, modality, options, cancel):
            try:
                yield from FakeDecoder().decode(data, modality, options, cancel)
            finally:
                closed.append(data)

    worker = DecoderWorker(Watched)
    worker.start(script(2), "video", OPTIONS)
    worker.next()
    worker.finish()
    worker.finish()
    assert closed == [script(2)]


def test_a_bug_is_raised_and_ends_the_item():
    worker = DecoderWorker(FakeDecoder)
    worker.start(script(2, bug_at=0), "video", OPTIONS)
    with pytest.raises(ZeroDivisionError):
        worker.next()
    assert worker.next() is None
