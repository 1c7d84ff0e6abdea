"""The path of each modality, and items that no context can hold: refused before they are encoded."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from concurrent.futures import CancelledError, ThreadPoolExecutor

import numpy as np
import pytest
import torch

from mm_pipeline.audio import AudioSettings
from mm_pipeline.decoding import FramePart, MelPart, PlanPart, ReportPart
from mm_pipeline.encoders import BatchedEncoders, Caller
from mm_pipeline.errors import DeadlineExceededError, EncoderClosedError, UnsupportedMediaError
from mm_pipeline.image import ImageInput
from mm_pipeline.options import MediaOptions
from mm_pipeline.pipeline import EncodedMedia
from mm_pipeline.pipeline.image import PreparedImage
from serve_apps.api.errors import ApiError
from serve_apps.chat.encode import ItemEncoder

OPTIONS = MediaOptions(max_pixels=5000)
PLAN = PlanPart(frame_times_s=(0.0, 1.0, 2.0), frames_per_unit=2, tokens_per_unit=5, audio_start_s=0.0)
FRAMES = FramePart(frames=np.zeros((2, 3, 4, 4), np.uint8))
# 100 frames are 25 rows of codes, and those 7 tokens.
MEL = MelPart(mel=np.zeros((100, 128), np.float32))


class FakeEncoder:
    """Each item's first value tells which one it was."""

    identity, hidden_size = "fake", 2

    def encode(self, items):
        return [torch.full((item.num_tokens, 2), item.patches[0, 0].item()) for item in items]


class FakeImages:
    """Pictures of one token whose value is their length."""

    def __init__(self) -> None:
        self.at_once = self.most_at_once = 0

    def key(self, data, *, max_pixels=None):
        return f"{data} {max_pixels}"

    def prepare(self, data, *, max_pixels=None, key=None):
        self.at_once += 1
        self.most_at_once = max(self.most_at_once, self.at_once)
        time.sleep(0.01)
        self.at_once -= 1
        image = ImageInput(patches=torch.full((4, 8), float(len(data))), grid_thw=(1, 2, 2), num_tokens=1)
        return PreparedImage(image=image, content_key=key or "", timings={"preprocess_ms": 1.0})

    def smallest(self):
        return self.prepare(b"")

    def run(self, prepared, encoder):
        (rows,) = encoder.encode([prepared.image])
        return EncodedMedia(
            embeddings=rows,
            num_tokens=1,
            modality="image",
            content_key=prepared.content_key,
            timings=prepared.timings,
        )


class FakeMedia:
    """Counts what it reads."""

    def __init__(self) -> None:
        self.read: list[object] = []

    def key(self, data, modality, options):
        return f"{modality} {options.max_pixels}"

    def encode(self, parts, key, *, image_encoder, audio_encoder):
        self.read += parts
        return EncodedMedia(embeddings=torch.zeros(0, 2), num_tokens=0, modality="video", content_key=key)


class FakeParts:
    """A decoder that hands out given parts and knows whether it was closed."""

    def __init__(self, *parts: object) -> None:
        self._parts = parts
        self.asked: tuple[object, ...] = ()
        self.closed = False

    def decode(self, data, modality, options, cancel) -> Iterator[object]:
        self.asked = (data, modality, options, cancel)
        try:
            for part in self._parts:
                if isinstance(part, Exception):
                    raise part
                yield part
        finally:
            self.closed = True


def encode(decoder, modality="video", max_tokens=1000, media=None, cancel=None, deadline=None):
    with BatchedEncoders(FakeEncoder(), None) as encoders:
        encoder = ItemEncoder(FakeImages(), media or FakeMedia(), AudioSettings(), encoders, max_preparing=2)
        return encoder.encode(
            b"data",
            modality,
            OPTIONS,
            decoder=decoder,
            source="reference",
            max_tokens=max_tokens,
            caller=Caller(owner="request", deadline=deadline, cancel=cancel or threading.Event()),
            key=encoder.key(b"data", modality, OPTIONS),
        )


def test_pictures_of_many_callers_share_batches_and_few_are_decoded_at_once():
    images, batches = FakeImages(), []
    with BatchedEncoders(FakeEncoder(), None, on_batch=batches.append) as encoders:
        encoder = ItemEncoder(images, FakeMedia(), AudioSettings(), encoders, max_preparing=2)

        def ask(number):
            return encoder.encode(
                bytes(number),
                "image",
                OPTIONS,
                decoder=FakeParts(),
                source="reference",
                max_tokens=10,
                caller=Caller(owner=str(number)),
                key=str(number),
            )

        with ThreadPoolExecutor(16) as pool:
            found = list(pool.map(ask, range(1, 33)))
    assert [media.embeddings[0, 0].item() for media in found] == list(range(1, 33))
    assert images.most_at_once <= 2
    assert sum(report.num_items for report in batches) == 32
    assert set(found[0].timings) == {"preprocess_ms", "queue_ms", "batch_ms"}


def test_a_cancelled_picture_is_not_decoded():
    cancel = threading.Event()
    cancel.set()
    with pytest.raises(CancelledError):
        encode(FakeParts(), "image", cancel=cancel)


def test_an_item_whose_time_is_over_is_not_decoded():
    decoder = FakeParts(PLAN, FRAMES)
    for modality in ("image", "video"):
        with pytest.raises(DeadlineExceededError):
            encode(decoder, modality, deadline=time.monotonic())
    assert decoder.asked == ()
    encode(decoder, deadline=time.monotonic() + 60)


def test_a_probe_goes_through_the_encoder():
    with BatchedEncoders(FakeEncoder(), None) as encoders:
        encoder = ItemEncoder(FakeImages(), FakeMedia(), AudioSettings(), encoders, max_preparing=1)
        encoder.probe(5.0)
        assert encoder.stats().done == 1
        encoder.close()
        with pytest.raises(EncoderClosedError):
            encoder.probe(5.0)


def test_a_picture_is_not_decoded_elsewhere():
    decoder = FakeParts()
    assert encode(decoder, "image").content_key == "b'data' 5000"
    assert decoder.asked == ()


@pytest.mark.parametrize("modality", ["video", "audio"])
def test_parts_stream_from_the_decoder_to_the_encoder(modality):
    decoder, media, cancel = FakeParts(PLAN, FRAMES, MEL, ReportPart()), FakeMedia(), threading.Event()
    assert encode(decoder, modality, media=media, cancel=cancel).content_key == f"{modality} 5000"
    assert media.read == [PLAN, FRAMES, MEL, ReportPart()]
    assert decoder.asked == ("reference", modality, OPTIONS, cancel)
    assert decoder.closed


def test_another_modality_is_400():
    with pytest.raises(ApiError, match="'smell' came"):
        encode(FakeParts(), "smell")


def test_a_video_over_the_context_is_refused_by_its_plan():
    decoder = FakeParts(PLAN, FRAMES)
    with pytest.raises(ApiError, match="10 tokens of frames; the context has 9 tokens in all") as info:
        encode(decoder, max_tokens=9)
    assert (info.value.status, info.value.code) == (400, "context_length_exceeded")
    assert "max_frames" in info.value.message
    assert decoder.closed
    encode(FakeParts(PLAN, FRAMES), max_tokens=10)


def test_sound_is_counted_as_it_comes():
    decoder = FakeParts(MEL, MEL, MEL)
    with pytest.raises(ApiError, match="13 tokens of sound so far"):
        encode(decoder, "audio", max_tokens=12)
    assert decoder.closed
    with pytest.raises(ApiError, match="10 tokens of frames and 7 tokens of sound so far"):
        encode(FakeParts(PLAN, FRAMES, MEL), max_tokens=16)


def test_what_the_decoder_raises_comes_through():
    decoder = FakeParts(PLAN, UnsupportedMediaError("noise"))
    with pytest.raises(UnsupportedMediaError, match="noise"):
        encode(decoder)
    assert decoder.closed
