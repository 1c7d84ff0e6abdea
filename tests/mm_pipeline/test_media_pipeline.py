"""Videos and sounds from bytes to embeddings, with encoders that say what they were given."""

from __future__ import annotations

import pickle
import threading
from collections.abc import Sequence
from concurrent.futures import CancelledError
from typing import Any, cast

import numpy as np
import pytest
import torch

from mm_pipeline.audio import AudioSettings, audio_tokens
from mm_pipeline.decoding import FramePart, MediaDecoder, MelPart, PlanPart, ReportPart
from mm_pipeline.encoders import SegmentedAudioEncoder
from mm_pipeline.errors import InvalidMediaError, MediaTooLargeError, UnsupportedMediaError
from mm_pipeline.image import ImageInput
from mm_pipeline.limits import MediaLimits
from mm_pipeline.options import MediaOptions
from mm_pipeline.pipeline import MediaEncoder
from tests.media_files.encode import Audio, Video, steady, write
from tests.media_files.files import tone

CONFIG: dict[str, Any] = {
    "vision_config": {"patch_size": 16, "spatial_merge_size": 2, "temporal_patch_size": 2},
    "audio_config": {"audio_segment_size": 300, "group_size": 4},
    "processor_config": {
        "fps": 2.0,
        "min_frames": 4,
        "max_frames": 64,
        "video_min_pixels": 2048,
        "video_max_pixels": 64 * 96,
    },
}
HIDDEN = 8


class ToneOfPatches:
    """An embedding is the mean of its patch group, so equal frames give equal rows."""

    identity = "vision/test"
    hidden_size = HIDDEN

    def encode(self, items: Sequence[ImageInput]) -> list[torch.Tensor]:
        return [
            item.patches.unflatten(0, (item.num_tokens, -1)).mean(dim=(1, 2))[:, None].expand(-1, HIDDEN)
            for item in items
        ]


class CountingStream:
    def __init__(self) -> None:
        self.mels: list[torch.Tensor] = []

    def add(self, mel: torch.Tensor) -> None:
        self.mels.append(mel)

    def finish(self) -> torch.Tensor:
        frames = sum(len(mel) for mel in self.mels)
        return torch.full((audio_tokens(frames, AudioSettings.from_config(CONFIG)), HIDDEN), 7.0)


class CountingSound:
    identity = "audio/test"

    def stream(self) -> CountingStream:
        return CountingStream()


@pytest.fixture(scope="module")
def clip() -> bytes:
    """4 s, 10 frames a second, 192 x 128, with 4 s of sound."""
    return write(
        "mp4",
        Video(frames=steady(40, fps=10)),
        Audio(samples=tone(4.0, 44_100)[None]),
    )


def decode(
    data: bytes, modality: str = "video", config: dict[str, Any] = CONFIG, **options: Any
) -> list[Any]:
    decoder = MediaDecoder(config, MediaLimits())
    return list(decoder.decode(data, modality, MediaOptions(**options), threading.Event()))


def encoder(*, hears: bool = True) -> MediaEncoder:
    sound = cast(SegmentedAudioEncoder, CountingSound()) if hears else None
    return MediaEncoder(ToneOfPatches(), sound, CONFIG, MediaLimits())


def test_a_video_with_sound(clip: bytes) -> None:
    parts = decode(clip)
    assert isinstance(parts[0], PlanPart)
    assert isinstance(parts[-1], ReportPart)
    assert parts[-1].decode_ms > 0
    assert parts[-1].notes == ()
    frames = np.concatenate([part.frames for part in parts if isinstance(part, FramePart)])
    assert frames.shape == (8, 3, 64, 96)
    assert len(parts[0].frame_times_s) == 8
    mels = [part.mel for part in parts if isinstance(part, MelPart)]
    assert [len(mel) for mel in mels][:-1] == [300]
    encoded = encoder().encode(parts, "key")
    assert encoded.modality == "video"
    assert encoded.layout is not None
    assert encoded.layout.tokens_per_unit == 2 * 3
    assert encoded.layout.num_video_tokens == 4 * 6
    assert encoded.num_tokens == encoded.layout.num_tokens == len(encoded.embeddings)
    assert torch.equal(encoded.embeddings[24:], torch.full((encoded.layout.audio_tokens, HIDDEN), 7.0))
    assert encoded.layout.audio_tokens == pytest.approx(25, abs=1)
    assert encoded.timings["decode_ms"] == parts[-1].decode_ms


def test_parts_travel_between_processes(clip: bytes) -> None:
    parts = decode(clip)
    again = encoder().encode(pickle.loads(pickle.dumps(parts)), "key")
    assert torch.equal(again.embeddings, encoder().encode(parts, "key").embeddings)


def test_the_same_frames_whatever_else_is_wanted(clip: bytes) -> None:
    silent = decode(clip, use_audio_in_video=False)
    assert not any(isinstance(part, MelPart) for part in silent)
    rows = encoder().encode(silent, "key").embeddings
    assert torch.equal(rows, encoder().encode(decode(clip), "key").embeddings[: len(rows)])


def test_a_part_of_a_video_keeps_the_videos_clock(clip: bytes) -> None:
    parts = decode(clip, start_s=1.0, end_s=3.0)
    assert parts[0].frame_times_s[0] == pytest.approx(1.0)
    assert parts[0].frame_times_s[-1] < 3.0
    assert parts[0].audio_start_s == 1.0
    assert sum(len(part.mel) for part in parts if isinstance(part, MelPart)) == 201


def test_a_sound(clip: bytes) -> None:
    parts = decode(clip, "audio")
    assert [type(part) for part in parts] == [MelPart, MelPart, ReportPart]
    encoded = encoder().encode(parts, "key")
    assert (encoded.modality, encoded.layout) == ("audio", None)
    assert encoded.num_tokens == len(encoded.embeddings) == pytest.approx(25, abs=1)


def test_a_video_without_sound_and_a_model_that_does_not_hear(clip: bytes) -> None:
    silent = write("mp4", Video(frames=steady(20, fps=10)))
    encoded = encoder().encode(decode(silent), "key")
    assert encoded.layout is not None
    assert encoded.layout.audio_tokens == 0
    assert encoded.notes == ()
    with pytest.raises(UnsupportedMediaError, match="no sound"):
        decode(silent, "audio")
    deaf = {name: value for name, value in CONFIG.items() if name != "audio_config"}
    assert not any(isinstance(part, MelPart) for part in decode(clip, config=deaf))
    with pytest.raises(UnsupportedMediaError, match="does not hear"):
        decode(clip, "audio", config=deaf)
    with pytest.raises(InvalidMediaError, match="does not hear"):
        encoder(hears=False).encode(decode(clip), "key")


def test_damage_is_told(clip: bytes) -> None:
    torn = bytearray(clip)
    at = clip.index(b"mdat") + 4000
    torn[at : at + 600] = bytes(600)
    notes = encoder().encode(decode(bytes(torn)), "key").notes
    assert notes
    assert all("/" not in note for note in notes)


def test_limits_hold(clip: bytes) -> None:
    with pytest.raises(MediaTooLargeError, match="max_frames is 65"):
        decode(clip, max_frames=65)
    small = MediaDecoder(CONFIG, MediaLimits(max_video_pixels=100 * 100))
    with pytest.raises(MediaTooLargeError, match="max_video_pixels"):
        list(small.decode(clip, "video", MediaOptions(), threading.Event()))
    short = MediaDecoder(CONFIG, MediaLimits(max_media_duration_s=2.0))
    for modality in ("video", "audio"):
        with pytest.raises(MediaTooLargeError):
            list(short.decode(clip, modality, MediaOptions(), threading.Event()))
    with pytest.raises(ValueError, match="modality is 'image'"):
        decode(clip, "image")


def test_cancel_and_close_end_all_threads(clip: bytes) -> None:
    before = threading.active_count()
    cancel = threading.Event()
    parts = MediaDecoder(CONFIG, MediaLimits()).decode(clip, "video", MediaOptions(), cancel)
    next(parts)
    cancel.set()
    with pytest.raises(CancelledError):
        list(parts)
    assert threading.active_count() == before
    parts = MediaDecoder(CONFIG, MediaLimits()).decode(clip, "video", MediaOptions(), threading.Event())
    assert isinstance(next(parts), PlanPart)
    assert isinstance(next(parts), FramePart)
    parts.close()  # type: ignore[attr-defined]
    assert threading.active_count() == before


def test_every_wish_enters_the_key(clip: bytes) -> None:
    wishes: list[dict[str, Any]] = [
        {},
        {"fps": 1.0},
        {"min_frames": 2},
        {"max_frames": 8},
        {"max_pixels": 32 * 32},
        {"total_pixels": 4096},
        {"start_s": 0.5},
        {"end_s": 3.0},
        {"use_audio_in_video": False},
    ]
    media = encoder()
    keys = [media.key(clip, "video", MediaOptions(**wish)) for wish in wishes]
    assert len(set(keys)) == len(keys)
    assert media.key(clip, "video", MediaOptions(fps=2.0)) == keys[0]
    assert media.key(clip, "audio", MediaOptions()) != media.key(clip, "audio", MediaOptions(end_s=3.0))
    assert media.key(clip, "audio", MediaOptions()) == media.key(clip, "audio", MediaOptions(fps=9.0))
    assert encoder(hears=False).key(clip, "video", MediaOptions()) != keys[0]
    with pytest.raises(ValueError, match="modality is 'image'"):
        media.key(clip, "image", MediaOptions())


def test_frames_stay_at_the_size_a_request_asked_for(clip: bytes) -> None:
    encoded = encoder().encode(decode(clip, max_pixels=32 * 32), "key")
    assert encoded.layout is not None
    assert encoded.layout.tokens_per_unit == 1
    assert encoded.layout.num_tokens == encoded.num_tokens
