"""Batches across requests give what one by one gives; cutting, order, deadlines and faults."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from concurrent.futures import CancelledError, ThreadPoolExecutor
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from mm_pipeline.batcher import BatchReport
from mm_pipeline.encoders import (
    BatchedEncoders,
    BatchSettings,
    Caller,
    SegmentedAudioEncoder,
    create_audio_encoder,
    create_image_encoder,
)
from mm_pipeline.encoders.base import Encoder
from mm_pipeline.encoders.batched import cut_by_frames
from mm_pipeline.encoders.staging import staging_for
from mm_pipeline.errors import DeadlineExceededError, QueueFullError
from mm_pipeline.image import ImageInput
from tests.golden import load_golden, load_golden_json

LONG_S = 30.0
ME = Caller(owner="me")


class Source:
    """Tensors in memory, read like a safetensors file."""

    def __init__(self, tensors: dict[str, torch.Tensor]) -> None:
        self.tensors = tensors

    def keys(self) -> list[str]:
        return list(self.tensors)

    def get_tensor(self, name: str) -> torch.Tensor:
        return self.tensors[name]


@pytest.fixture(scope="module")
def image_encoder() -> Encoder:
    tensors, config = load_golden("golden_vision"), load_golden_json("config_vision")
    source = Source({name: tensor for name, tensor in tensors.items() if name.startswith("visual.")})
    return create_image_encoder({"vision_config": config}, source, torch.float32, "cpu")


@pytest.fixture(scope="module")
def audio_encoder() -> SegmentedAudioEncoder:
    configs = load_golden_json("config_audio")
    codes = load_golden("golden_audio", "golden_audio_encoder")
    prefix = "audio_tokenizer."
    tokenizer = {
        name.removeprefix(prefix): tensor
        for name, tensor in load_golden("golden_audio", "golden_audio_tokenizer").items()
        if name.startswith(prefix)
    }
    ours = {n: t for n, t in codes.items() if n.startswith(("speech_embeddings.", "audio_encoder."))}
    config = {"audio_config": configs["audio_config"]}
    return create_audio_encoder(
        config, Source(ours), configs["audio_tokenizer"], Source(tokenizer), torch.float32, "cpu"
    )


def picture(height: int, width: int, *, groups: int = 1, seed: int = 0) -> ImageInput:
    """height, width: in tokens."""
    rows = groups * 4 * height * width
    patches = torch.randn(rows, 1536, generator=torch.Generator().manual_seed(seed))
    return ImageInput(patches=patches, grid_thw=(groups, 2 * height, 2 * width), num_tokens=rows // 4)


def mel(frames: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(frames, 128, generator=torch.Generator().manual_seed(seed)) - 4


def close(made: torch.Tensor, expected: torch.Tensor) -> None:
    torch.testing.assert_close(made, expected, atol=1e-5, rtol=1e-5)


class Held:
    """An image encoder that waits before its first batch."""

    def __init__(self, encoder: Encoder) -> None:
        self._encoder = encoder
        self.identity = encoder.identity
        self.hidden_size = encoder.hidden_size
        self.begun = threading.Event()
        self.go_on = threading.Event()

    def encode(self, items: Any) -> list[torch.Tensor]:
        self.begun.set()
        assert self.go_on.wait(LONG_S)
        return self._encoder.encode(items)


@pytest.fixture
def held(image_encoder: Encoder) -> Iterator[Held]:
    held = Held(image_encoder)
    yield held
    held.go_on.set()


@given(
    shapes=st.lists(
        st.tuples(st.integers(1, 3), st.integers(1, 3), st.integers(1, 4)), min_size=1, max_size=5
    )
)
@settings(max_examples=20, deadline=None)
def test_videos_are_cut_at_frame_groups(shapes: list[tuple[int, int, int]]) -> None:
    for height, width, groups in shapes:
        item = picture(height, width, groups=groups)
        pieces = cut_by_frames(item, 40)
        assert torch.equal(torch.cat([piece.patches for piece in pieces]), item.patches)
        assert sum(piece.num_tokens for piece in pieces) == item.num_tokens
        for piece in pieces:
            assert piece.grid_thw[1:] == item.grid_thw[1:]
            assert len(piece.patches) == 4 * piece.num_tokens
            assert len(piece.patches) == piece.grid_thw[0] * piece.grid_thw[1] * piece.grid_thw[2]
            assert len(piece.patches) <= 40
        if len(pieces) > 1:
            assert len(pieces[0].patches) + 4 * height * width > 40


def test_pictures_and_videos_of_many_requests(image_encoder: Encoder) -> None:
    """A small budget cuts the videos, and one picture is larger than it."""
    shapes = [(1, 1, 1), (2, 3, 1), (4, 4, 1), (2, 2, 5), (3, 1, 2), (6, 6, 1), (1, 2, 7)]
    requests = [
        [picture(*shapes[(first + step) % 7][:2], groups=shapes[(first + step) % 7][2], seed=first)
         for step in range(1 + first % 3)]
        for first in range(14)
    ]  # fmt: skip
    reports: list[BatchReport] = []
    with (
        BatchedEncoders(
            image_encoder, None, settings=BatchSettings(max_patches=64), on_batch=reports.append
        ) as encoders,
        ThreadPoolExecutor(14) as threads,
    ):
        made = list(
            threads.map(
                lambda request: encoders.images(Caller(owner=str(id(request)))).encode(request), requests
            )
        )
        assert encoders.sounds(ME) is None
        stats = encoders.stats()
    assert (stats.queued_items, stats.queued_bytes, stats.running_items) == (0, 0, 0)
    assert all(report.cost <= 64 for report in reports)
    assert sum(report.num_items for report in reports) == stats.done > stats.batches
    for request, found in zip(requests, made, strict=True):
        for item, embeddings in zip(request, found, strict=True):
            close(embeddings, image_encoder.encode([item])[0])


def test_an_item_keeps_only_its_own_rows(held: Held) -> None:
    with BatchedEncoders(held, None) as encoders, ThreadPoolExecutor(3) as threads:
        encode = [threads.submit(encoders.images(ME).encode, [picture(2, 2, seed=n)]) for n in range(3)]
        assert held.begun.wait(LONG_S)
        held.go_on.set()
        for future in encode:
            (embeddings,) = future.result(LONG_S)
            assert embeddings.untyped_storage().nbytes() == embeddings.nbytes


@given(
    sounds=st.lists(
        st.lists(st.sampled_from([1, 2, 3, 16, 40, 64, 101]), min_size=1, max_size=4), min_size=1, max_size=4
    ),
    budget=st.sampled_from([50, 1000]),
)
@settings(max_examples=12, deadline=None)
def test_sounds_of_many_requests(image_encoder, audio_encoder, sounds, budget) -> None:
    """Also where a segment leaves a group of codes open."""
    requests = [[mel(frames, seed=n) for n, frames in enumerate(lengths)] for lengths in sounds]
    with (
        BatchedEncoders(
            image_encoder, audio_encoder, settings=BatchSettings(max_mel_frames=budget)
        ) as encoders,
        ThreadPoolExecutor(len(requests)) as threads,
    ):

        def encode(segments: list[torch.Tensor]) -> torch.Tensor:
            found = encoders.sounds(ME)
            assert found is not None
            return found.encode([iter(segments)])[0]

        made = list(threads.map(encode, requests))
        stats = encoders.stats()
    assert (stats.queued_items, stats.running_items, stats.done) == (0, 0, sum(map(len, sounds)))
    for segments, found in zip(requests, made, strict=True):
        close(found, audio_encoder.encode([segments])[0])


@given(lengths=st.lists(st.integers(1, 200), min_size=1, max_size=8))
@settings(max_examples=15, deadline=None)
def test_codes_are_those_of_each_segment_alone(audio_encoder, lengths: list[int]) -> None:
    mels = [mel(frames, seed=n) for n, frames in enumerate(lengths)]
    for one, segment in zip(mels, audio_encoder.encode_segments(mels), strict=True):
        codes = audio_encoder.codes(one)
        assert torch.equal(segment.codes, codes)
        close(segment.embeddings, audio_encoder.embed(codes))


def test_nearly_tied_codes_are_made_alone(audio_encoder, monkeypatch: pytest.MonkeyPatch) -> None:
    """With a bound that calls everything a tie each segment runs a second time, and only then."""
    tokenizer = audio_encoder._tokenizer
    alone = []
    monkeypatch.setattr(tokenizer, "_alone", lambda one, run=tokenizer._alone: alone.append(one) or run(one))
    mels = [mel(frames, seed=frames) for frames in (30, 41, 64)]
    expected = [segment.codes for segment in audio_encoder.encode_segments(mels)]
    num_near = len(alone)
    monkeypatch.setattr("mm_pipeline.encoders.mimo_audio_tokenizer._NEAR", 1e9)
    again = [segment.codes for segment in audio_encoder.encode_segments(mels)]
    assert len(alone) == num_near + 3
    assert num_near < 3
    assert all(torch.equal(one, other) for one, other in zip(expected, again, strict=True))
    assert audio_encoder.encode_segments([]) == []


def test_a_bad_segment_costs_only_its_own_sound(held: Held, audio_encoder: SegmentedAudioEncoder) -> None:
    with BatchedEncoders(held, audio_encoder) as encoders, ThreadPoolExecutor(4) as threads:
        picture_first = threads.submit(encoders.images(ME).encode, [picture(1, 1)])
        assert held.begun.wait(LONG_S)
        sounds = [encoders.sounds(ME) for _ in range(3)]
        given = [mel(40), mel(40)[:, :127], mel(40)]
        encode = [
            threads.submit(sound.encode, [[one]]) for sound, one in zip(sounds, given, strict=True) if sound
        ]
        held.go_on.set()
        for good in (0, 2):
            close(encode[good].result(LONG_S)[0], audio_encoder.encode([[mel(40)]])[0])
        with pytest.raises(ValueError, match=r"is \(40, 127\); need \[frames, 128\]"):
            encode[1].result(LONG_S)
        picture_first.result(LONG_S)
        sound = encoders.sounds(ME)
        assert sound is not None
        with pytest.raises(ValueError, match="no sound to encode"):
            sound.stream().finish()


class FakeStaging:
    """A device that is this memory."""

    def __init__(self) -> None:
        self.copied: list[list[int]] = []
        self.num_finished = 0
        self.threads: set[str] = set()

    def copy(self, tensors: Any) -> list[torch.Tensor]:
        self.threads.add(threading.current_thread().name)
        lengths = [len(tensor) for tensor in tensors]
        self.copied.append(lengths)
        return list(torch.cat(list(tensors)).split(lengths))

    def finish(self) -> None:
        self.num_finished += 1


def test_the_next_batch_is_copied_while_one_runs(held: Held, image_encoder, audio_encoder) -> None:
    staging = FakeStaging()
    pictures = [picture(1, 1), picture(2, 1, seed=1), picture(1, 2, groups=2, seed=2)]
    with (
        BatchedEncoders(held, audio_encoder, staging=staging) as encoders,
        ThreadPoolExecutor(3) as threads,
    ):
        first = threads.submit(encoders.images(ME).encode, pictures[:1])
        assert held.begun.wait(LONG_S)
        second = threads.submit(encoders.images(ME).encode, pictures[1:])
        until = time.monotonic() + LONG_S
        while sum(map(sum, staging.copied)) < sum(len(item.patches) for item in pictures):
            assert time.monotonic() < until
            time.sleep(0.001)
        assert staging.num_finished == 0
        held.go_on.set()
        made = first.result(LONG_S) + second.result(LONG_S)
        sounds = encoders.sounds(ME)
        assert sounds is not None
        close(sounds.encode([[mel(50), mel(70)]])[0], audio_encoder.encode([[mel(50), mel(70)]])[0])
        num_batches = encoders.stats().batches
    for item, found in zip(pictures, made, strict=True):
        close(found, image_encoder.encode([item])[0])
    assert staging.num_finished == num_batches
    assert staging.threads == {"encoder-prepare"}


def test_a_cpu_needs_no_copies() -> None:
    assert staging_for("cpu") is None


def test_nobody_waits_past_the_deadline_even_for_a_running_batch(held: Held) -> None:
    with BatchedEncoders(held, None) as encoders:
        for _ in range(2):
            late = encoders.images(Caller(owner="a", deadline=time.monotonic() + 0.05))
            with pytest.raises(DeadlineExceededError):
                late.encode([picture(1, 1)])
        held.go_on.set()


def test_a_cancelled_request_leaves_the_queue(held: Held) -> None:
    cancel = threading.Event()
    with BatchedEncoders(held, None) as encoders, ThreadPoolExecutor(2) as threads:
        first = threads.submit(encoders.images(ME).encode, [picture(1, 1)])
        assert held.begun.wait(LONG_S)
        images = encoders.images(Caller(owner="b", cancel=cancel))
        second = threads.submit(images.encode, [picture(1, 1), picture(2, 2)])
        while encoders.stats().queued_items < 2:
            time.sleep(0.001)
        cancel.set()
        held.go_on.set()
        first.result(LONG_S)
        with pytest.raises(CancelledError):
            second.result(LONG_S)
    assert encoders.stats().cancelled == 2


def test_a_full_queue_refuses_new_requests_and_makes_begun_ones_wait(held: Held) -> None:
    settings = BatchSettings(max_items=1)
    with BatchedEncoders(held, None, settings=settings) as encoders, ThreadPoolExecutor(2) as threads:
        first = threads.submit(encoders.images(ME).encode, [picture(1, 1, seed=n) for n in range(4)])
        assert held.begun.wait(LONG_S)
        while encoders.stats().queued_items == 0:
            time.sleep(0.001)
        with pytest.raises(QueueFullError):
            encoders.images(Caller(owner="b")).encode([picture(1, 1)])
        held.go_on.set()
        assert len(first.result(LONG_S)) == 4
