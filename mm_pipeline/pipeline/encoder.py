"""Decoded parts of a video or a sound to embeddings, part by part as they come. Knows encoders; decodes nothing."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

import numpy.typing as npt
import torch

from mm_pipeline.audio import AudioSettings
from mm_pipeline.content_key import SettingValue, content_key
from mm_pipeline.decoding.parts import DecodedPart, FramePart, MelPart, PlanPart, ReportPart
from mm_pipeline.encoders import Encoder, SoundEncoder
from mm_pipeline.errors import InvalidMediaError, UnsupportedMediaError
from mm_pipeline.limits import MediaLimits
from mm_pipeline.options import MediaOptions
from mm_pipeline.pipeline.media import EncodedMedia
from mm_pipeline.prompt.layout import VideoLayout
from mm_pipeline.video import VideoSettings
from mm_pipeline.video.patches import video_patches


class MediaEncoder:
    """Thread-safe. Encoding begins with the first part and holds one part and the embeddings at a time."""

    def __init__(
        self,
        image_encoder: Encoder,
        audio_encoder: SoundEncoder | None,
        config: Mapping[str, Any],
        limits: MediaLimits,
    ) -> None:
        """config: `config.json` of the encoders' checkpoint as a dict. audio_encoder: None for a model that does
        not hear; its videos are silent."""
        self._image_encoder = image_encoder
        self._audio_encoder = audio_encoder
        self._video = VideoSettings.from_config(config)
        self._audio = AudioSettings.from_config(config)
        self._limits = limits

    def key(self, data: bytes, modality: str, options: MediaOptions) -> str:
        """Content key of the embeddings of the parts that `MediaDecoder.decode` makes of the same arguments.

        Raises MediaError for options over a limit, ValueError for a modality other than "video" and "audio".
        """
        identity = "" if self._audio_encoder is None else self._audio_encoder.identity
        settings: dict[str, SettingValue] = {}
        if modality == "video":
            hears = options.use_audio_in_video and self._audio_encoder is not None
            settings |= self._video.lowered(options, self._limits).key_settings() | {"use_audio": hears}
            if hears:
                settings |= {f"audio.{name}": value for name, value in self._audio.key_settings().items()}
            identity = f"{self._image_encoder.identity} {identity if hears else ''}"
        elif modality == "audio":
            settings |= self._audio.key_settings()
            settings |= {"start_s": options.start_s, "end_s": options.end_s}
        else:
            raise ValueError(f"modality is {modality!r}; video and audio are encoded here")
        return content_key(modality, identity, settings, data)

    def encode(
        self,
        parts: Iterable[DecodedPart],
        key: str,
        *,
        image_encoder: Encoder | None = None,
        audio_encoder: SoundEncoder | None = None,
    ) -> EncodedMedia:
        """key: see `key`. image_encoder, audio_encoder: run instead of the own ones, which they must be equal to,
        such as ones that batch for this request. Raises what the parts and encoders raise, and
        UnsupportedMediaError for a sound without segments.
        """
        images = image_encoder or self._image_encoder
        sounds = audio_encoder or self._audio_encoder
        begin = time.perf_counter()
        plan: PlanPart | None = None
        report = ReportPart()
        video: list[torch.Tensor] = []
        sound = None if sounds is None else sounds.stream()
        hears = False
        encode_s = 0.0
        for part in parts:
            started = time.perf_counter()
            if isinstance(part, PlanPart):
                plan = part
            elif isinstance(part, FramePart):
                frames = _tensor(part.frames)
                video += images.encode([video_patches(frames, self._kept(frames))])
            elif isinstance(part, MelPart):
                if sound is None:
                    raise InvalidMediaError("this model does not hear; send text, pictures or video")
                sound.add(_tensor(part.mel))
                hears = True
            else:
                report = part
            encode_s += time.perf_counter() - started
        started = time.perf_counter()
        rows = [*video, sound.finish()] if sound is not None and hears else video
        if not rows:
            raise UnsupportedMediaError("nothing of the item could be decoded; send a whole file")
        embeddings = torch.cat(rows) if len(rows) > 1 else rows[0]
        audio_tokens = len(embeddings) - sum(len(part) for part in video)
        encode_s += time.perf_counter() - started
        return EncodedMedia(
            embeddings=embeddings,
            num_tokens=len(embeddings),
            modality="audio" if plan is None else "video",
            content_key=key,
            layout=None if plan is None else _layout(plan, audio_tokens),
            timings={
                "decode_ms": report.decode_ms,
                "encode_ms": 1000 * encode_s,
                "decode_and_encode_ms": 1000 * (time.perf_counter() - begin),
            },
            notes=report.notes,
        )

    def _kept(self, frames: torch.Tensor) -> VideoSettings:
        """Settings that leave frames at the size they were decoded to, which a request may have asked for."""
        area = frames.shape[2] * frames.shape[3]
        return replace(self._video, min_pixels=min(self._video.min_pixels, area), max_pixels=area)


def _tensor(array: npt.NDArray[Any]) -> torch.Tensor:
    """Over the same memory, which may be read-only: `torch.from_numpy` warns about that, DLPack does not."""
    return torch.utils.dlpack.from_dlpack(array)


def _layout(plan: PlanPart, audio_tokens: int) -> VideoLayout:
    return VideoLayout(
        frame_times_s=plan.frame_times_s,
        tokens_per_unit=plan.tokens_per_unit,
        audio_tokens=audio_tokens,
        frames_per_unit=plan.frames_per_unit,
        audio_start_s=plan.audio_start_s,
    )
