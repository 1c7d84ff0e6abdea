"""How sound becomes log-mel frames. Holds numbers only; reads them from a checkpoint's config."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from mm_pipeline.content_key import SettingValue

# Part of every audio key: raise it when decoding, mixing or resampling starts to give other samples.
SAMPLES_VERSION = 1


@dataclass(frozen=True, kw_only=True)
class AudioSettings:
    """sample_rate: Hz of the waveform. n_fft, window_size: samples of the transform and of its Hann window.
    hop_length: samples between frames. n_mels: filters. f_min, f_max: Hz; None is half the sample rate.
    segment_frames: mel frames the encoder takes at once. conv_stride, pool_size, group_size: how the encoder
    thins frames out, in this order, to language-model tokens.
    """

    sample_rate: int = 24_000
    n_fft: int = 960
    window_size: int = 960
    hop_length: int = 240
    n_mels: int = 128
    f_min: float = 0.0
    f_max: float | None = None
    segment_frames: int = 6000
    conv_stride: int = 2
    pool_size: int = 2
    group_size: int = 4

    def __post_init__(self) -> None:
        for name in (
            "sample_rate",
            "n_fft",
            "window_size",
            "hop_length",
            "n_mels",
            "segment_frames",
            "conv_stride",
            "pool_size",
            "group_size",
        ):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} is {getattr(self, name)}; it must be at least 1")
        if self.window_size > self.n_fft:
            raise ValueError(f"window_size {self.window_size} is over n_fft {self.n_fft}; make it smaller")
        if not 0 <= self.f_min < self.top_frequency <= self.sample_rate / 2:
            raise ValueError(
                f"f_min {self.f_min}, f_max {self.f_max}: need 0 <= f_min < f_max <= {self.sample_rate / 2} Hz, "
                "half the sample rate"
            )

    @property
    def top_frequency(self) -> float:
        """Upper edge of the last filter, Hz."""
        return self.sample_rate / 2 if self.f_max is None else self.f_max

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> AudioSettings:
        """From `config.json` as a dict: its `processor_config`, with `audio_config` for missing sizes."""
        processor: Mapping[str, Any] = config.get("processor_config", {})
        audio: Mapping[str, Any] = config.get("audio_config", {})
        defaults = cls()
        f_max = processor.get("audio_fmax")
        return cls(
            sample_rate=processor.get("audio_sampling_rate", defaults.sample_rate),
            n_fft=processor.get("audio_nfft", defaults.n_fft),
            window_size=processor.get("audio_window_size", defaults.window_size),
            hop_length=processor.get("audio_hop_length", defaults.hop_length),
            n_mels=processor.get("audio_n_mels", defaults.n_mels),
            f_min=float(processor.get("audio_fmin") or 0.0),
            f_max=None if f_max is None else float(f_max),
            segment_frames=processor.get(
                "audio_segment_size", audio.get("audio_segment_size", defaults.segment_frames)
            ),
            conv_stride=processor.get("audio_stride_size", defaults.conv_stride),
            pool_size=processor.get("audio_avg_pooler", defaults.pool_size),
            group_size=processor.get("audio_group_size", audio.get("group_size", defaults.group_size)),
        )

    def key_settings(self) -> dict[str, SettingValue]:
        """Everything here that changes the mel frames or how they are cut, for `content_key`."""
        return {
            "samples_version": SAMPLES_VERSION,
            "sample_rate": self.sample_rate,
            "n_fft": self.n_fft,
            "window_size": self.window_size,
            "hop_length": self.hop_length,
            "n_mels": self.n_mels,
            "f_min": self.f_min,
            "f_max": self.top_frequency,
            "segment_frames": self.segment_frames,
        }
