"""Facts about one file: streams, sampled frames, sound, damage. Knows neither terminals nor drawing."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from mm_pipeline.audio import (
    AudioSettings,
    NoSoundError,
    audio_tokens,
    decode_audio,
    num_mel_frames,
    probe_audio,
)
from mm_pipeline.errors import UnsupportedMediaError
from mm_pipeline.limits import MediaLimits
from mm_pipeline.options import MediaOptions
from mm_pipeline.prompt.layout import timestamp
from mm_pipeline.video import FramePlan, VideoInfo, VideoSettings, decode_video, plan_frames, probe_video

# bfloat16, what embeddings travel in.
_EMBEDDING_BYTES = 2
_REFERENCE_HIDDEN_SIZE = 4096

OnFrames = Callable[[npt.NDArray[np.uint8], tuple[float, ...]], None]


@dataclass(frozen=True, kw_only=True)
class UnitRow:
    """One unit of a video, the frames that become one group of tokens.

    stamp: the MM:SS the prompt shows. times_s: of its frames, seconds from the video's first. tokens: embeddings.
    frame_bytes: its pixels at the final size. embedding_bytes: its embeddings in bfloat16.
    """

    stamp: str
    times_s: tuple[float, ...]
    tokens: int
    frame_bytes: int
    embedding_bytes: int


@dataclass(frozen=True, kw_only=True)
class VideoReport:
    """codec, matrix, transfer: names. width, height: as displayed. coded_width, coded_height: as stored. rotation:
    degrees clockwise. keyframes: points where decoding can start. sampled_width, sampled_height: after resizing.
    """

    codec: str
    width: int
    height: int
    coded_width: int
    coded_height: int
    rotation: int
    pixel_aspect: str
    interlaced: bool
    matrix: str
    full_range: bool
    transfer: str
    bits: int
    duration_s: float
    start_s: float
    average_fps: float
    frames: int
    keyframes: int
    sampled_width: int
    sampled_height: int
    units: tuple[UnitRow, ...]
    lost_frames: int
    damaged_packets: int

    @property
    def tokens(self) -> int:
        return sum(unit.tokens for unit in self.units)


@dataclass(frozen=True, kw_only=True)
class SoundReport:
    """seconds: of decoded sound in the wanted part. tokens, embedding_bytes: what the model would get of it."""

    codec: str
    sample_rate: int
    channels: int
    start_s: float
    seconds: float
    tokens: int
    embedding_bytes: int
    damaged_packets: int


@dataclass(frozen=True, kw_only=True)
class FileReport:
    """container: FFmpeg's name. video, sound: None where the file has none. damage: what is wrong, in words."""

    path: str
    num_bytes: int
    container: str
    video: VideoReport | None
    sound: SoundReport | None
    damage: tuple[str, ...]


def inspect_file(
    path: Path,
    *,
    config: Mapping[str, Any],
    options: MediaOptions,
    limits: MediaLimits | None = None,
    on_frames: OnFrames | None = None,
) -> FileReport:
    """Probes the file and decodes what would be sampled of it.

    config: a checkpoint's `config.json` as a dict; empty for the reference settings. on_frames: is given the
    sampled frames, uint8 [n, 3, H, W] in RGB, and their times, chunk by chunk.
    Raises MediaError subclasses for files that are neither video nor sound or over a limit.
    """
    limits = limits or MediaLimits()
    hidden_size = int(config.get("hidden_size", _REFERENCE_HIDDEN_SIZE))
    damage: list[str] = []
    info = _video_info(path, limits)
    video = None
    if info is not None:
        plan = plan_frames(info, VideoSettings.from_config(config).lowered(options, limits))
        video = _video(path, info, plan, hidden_size, limits, on_frames, damage)
    sound = None
    if info is None or (info.has_audio and options.use_audio_in_video):
        sound = _sound(path, AudioSettings.from_config(config), options, hidden_size, limits, info, damage)
    return FileReport(
        path=str(path),
        num_bytes=path.stat().st_size,
        container=info.container if info is not None else probe_audio(path).container,
        video=video,
        sound=sound,
        damage=tuple(damage),
    )


def _video_info(path: Path, limits: MediaLimits) -> VideoInfo | None:
    """None for a file with sound and no video. Raises as probe_video does where there is no sound either."""
    try:
        return probe_video(path, limits)
    except UnsupportedMediaError as error:
        try:
            probe_audio(path)
        except UnsupportedMediaError:
            raise error from None
        return None


def _video(
    path: Path,
    info: VideoInfo,
    plan: FramePlan,
    hidden_size: int,
    limits: MediaLimits,
    on_frames: OnFrames | None,
    damage: list[str],
) -> VideoReport:
    decoder = decode_video(path, plan, limits=limits)
    for chunk in decoder.chunks():
        if on_frames is not None:
            on_frames(chunk.frames, chunk.times_s)
    report = decoder.report
    damage += report.notes
    if report.damaged_packets:
        damage.append(f"{report.damaged_packets} video packets did not decode")
    height, width = plan.size
    per_unit = plan.temporal_patch_size
    units = [plan.frame_times_s[i : i + per_unit] for i in range(0, plan.num_frames, per_unit)]
    return VideoReport(
        codec=info.codec,
        width=info.width,
        height=info.height,
        coded_width=info.coded_width,
        coded_height=info.coded_height,
        rotation=info.rotation,
        pixel_aspect=f"{info.sar.numerator}:{info.sar.denominator}",
        interlaced=info.interlaced,
        matrix=info.colour.matrix,
        full_range=info.colour.full_range,
        transfer=info.colour.transfer,
        bits=info.colour.bits,
        duration_s=info.duration_s,
        start_s=info.start_s,
        average_fps=info.average_fps,
        frames=info.num_frames,
        keyframes=len(info.keyframes),
        sampled_width=width,
        sampled_height=height,
        units=tuple(
            UnitRow(
                stamp=timestamp(times[0]),
                times_s=times,
                tokens=plan.tokens_per_unit,
                frame_bytes=3 * height * width * len(times),
                embedding_bytes=plan.tokens_per_unit * hidden_size * _EMBEDDING_BYTES,
            )
            for times in units
        ),
        lost_frames=report.lost_frames,
        damaged_packets=report.damaged_packets,
    )


def _sound(
    path: Path,
    settings: AudioSettings,
    options: MediaOptions,
    hidden_size: int,
    limits: MediaLimits,
    video: VideoInfo | None,
    damage: list[str],
) -> SoundReport | None:
    """None where a video's sound cannot be used; a file of sound alone raises instead."""
    try:
        info = probe_audio(path)
        with decode_audio(
            path,
            sample_rate=settings.sample_rate,
            start_s=options.start_s,
            end_s=options.end_s,
            max_duration_s=limits.max_media_duration_s,
        ) as blocks:
            num_samples = sum(block.shape[0] for block in blocks)
            report = blocks.report
    except UnsupportedMediaError as error:
        if video is None:
            raise
        empty = isinstance(error, NoSoundError)
        damage.append("the audio track is empty" if empty else f"the sound cannot be used: {error.message}")
        return None
    damage += report.notes
    tokens = audio_tokens(num_mel_frames(num_samples, settings), settings)
    return SoundReport(
        codec=info.codec,
        sample_rate=info.sample_rate,
        channels=info.channels,
        start_s=info.start_s,
        seconds=num_samples / settings.sample_rate,
        tokens=tokens,
        embedding_bytes=tokens * hidden_size * _EMBEDDING_BYTES,
        damaged_packets=report.damaged_packets,
    )
