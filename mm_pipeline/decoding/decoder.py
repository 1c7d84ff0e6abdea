"""A video's or a sound's bytes to decoded parts. Knows decoding and its settings; no encoder."""

from __future__ import annotations

import threading
import time
from collections.abc import Generator, Iterator, Mapping
from contextlib import closing
from dataclasses import replace
from typing import Any, TypeAlias

from mm_pipeline.audio import AudioSettings, NoSoundError, mel_segments
from mm_pipeline.decoding.parts import DecodedPart, FramePart, MelPart, PlanPart, ReportPart
from mm_pipeline.errors import UnsupportedMediaError
from mm_pipeline.limits import MediaLimits
from mm_pipeline.options import MediaOptions
from mm_pipeline.video import VideoSettings, check_limits, decode_video, plan_frames, probe_video

_Parts: TypeAlias = Generator[DecodedPart, None, None]


class MediaDecoder:
    """Thread-safe. Decodes on as many threads as the process has cores."""

    def __init__(self, config: Mapping[str, Any], limits: MediaLimits) -> None:
        """config: `config.json` of a checkpoint as a dict; its processor_config says how to sample and scale."""
        self._video = VideoSettings.from_config(config)
        self._audio = AudioSettings.from_config(config) if "audio_config" in config else None
        self._limits = limits

    def decode(
        self, data: bytes, modality: str, options: MediaOptions, cancel: threading.Event
    ) -> Iterator[DecodedPart]:
        """The parts of one "video" or "audio", as they are ready.

        A video gives a PlanPart, its FrameParts, and MelParts where it has sound and the model hears; a sound gives
        MelParts. A ReportPart ends both. Closing the iterator ends the decoding and frees everything. Once `cancel`
        is set, CancelledError is raised. Raises MediaError subclasses, ValueError for another modality.
        """
        if modality == "video":
            return _timed(self._decode_video(data, options, cancel))
        if modality == "audio":
            return _timed(self._decode_audio(data, options, cancel))
        raise ValueError(f"modality is {modality!r}; video and audio are decoded here")

    def _decode_video(self, data: bytes, options: MediaOptions, cancel: threading.Event) -> _Parts:
        settings = self._video.lowered(options, self._limits)
        info = probe_video(data)
        check_limits(info, self._limits)
        plan = plan_frames(info, settings)
        yield PlanPart(
            frame_times_s=plan.frame_times_s,
            frames_per_unit=plan.temporal_patch_size,
            tokens_per_unit=plan.tokens_per_unit,
            audio_start_s=options.start_s or 0.0,
        )
        decoder = decode_video(data, plan, cancel=cancel, limits=self._limits)
        with closing(decoder.chunks()) as chunks:
            for chunk in chunks:
                yield FramePart(frames=chunk.frames)
        notes = decoder.report.notes
        if info.has_audio and options.use_audio_in_video and self._audio is not None:
            try:
                notes += yield from self._mels(data, self._audio, options, cancel)
            except NoSoundError:
                notes += ("the video's audio track is empty",)
            except UnsupportedMediaError as error:
                notes += (f"the video's sound was left out: {error.message}",)
        yield ReportPart(notes=notes)

    def _decode_audio(self, data: bytes, options: MediaOptions, cancel: threading.Event) -> _Parts:
        if self._audio is None:
            raise UnsupportedMediaError("this model does not hear; send text, pictures or video")
        notes = yield from self._mels(data, self._audio, options, cancel)
        yield ReportPart(notes=notes)

    def _mels(
        self, data: bytes, settings: AudioSettings, options: MediaOptions, cancel: threading.Event
    ) -> Generator[DecodedPart, None, tuple[str, ...]]:
        """MelParts; returns the notes about them."""
        with mel_segments(
            data, settings, self._limits, start_s=options.start_s, end_s=options.end_s, cancel=cancel
        ) as segments:
            for mel in segments:
                yield MelPart(mel=mel)
            return segments.report.notes


def _timed(parts: _Parts) -> _Parts:
    """The same parts; the report tells the time that decoding took, without what the reader did in between."""
    spent_s = 0.0
    with closing(parts):
        while True:
            begin = time.perf_counter()
            part = next(parts, None)
            spent_s += time.perf_counter() - begin
            if part is None:
                return
            yield replace(part, decode_ms=1000 * spent_s) if isinstance(part, ReportPart) else part
