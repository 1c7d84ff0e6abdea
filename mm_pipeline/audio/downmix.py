"""Decoded audio frames to one channel of float32. Knows sample formats and channel layouts, no files.

The mix is FFmpeg's default matrix to mono, normalised so that the weights add up to 1 and nothing can clip: front
left and right count 0.707, front centre 1 beside them, side and back channels 0.5, low-frequency channels not at
all.
"""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np

_SIDE = math.sqrt(0.5)
_WEIGHTS = {
    "FL": _SIDE,
    "FR": _SIDE,
    "FC": 1.0,
    "FLC": _SIDE,
    "FRC": _SIDE,
    "BC": 0.5,
    "BL": 0.5,
    "BR": 0.5,
    "SL": 0.5,
    "SR": 0.5,
    "LFE": 0.0,
    "LFE2": 0.0,
}

# Louder than anything real (full scale is 1); decoders of damaged data make such values, and NaN.
_LOUDEST = 64.0

# By FFmpeg's name of the format without its planar "p": offset and scale to -1..1.
_SCALES = {
    "u8": (128.0, 1 / 128),
    "s16": (0.0, 1 / 32_768),
    "s32": (0.0, 1 / 2_147_483_648),
    "flt": (0.0, 1.0),
    "dbl": (0.0, 1.0),
}


@lru_cache(maxsize=64)
def mix_weights(channels: tuple[str, ...]) -> tuple[float, ...]:
    """Weight of each channel, by FFmpeg's short names. Channels without a known place count alike."""
    weights = [_WEIGHTS.get(name, -1.0) for name in channels]
    if min(weights) < 0 or not sum(weights):
        return (1 / len(channels),) * len(channels)
    return tuple(weight / sum(weights) for weight in weights)


def needs_conversion(format_name: str, num_channels: int) -> bool:
    """Whether frames have to become "flt" before `to_mono` takes them: for formats it does not know, and for eight
    planes and more, of which PyAV 18 reads past the last one.
    """
    planar = format_name.endswith("p")
    return format_name.removesuffix("p") not in _SCALES or (planar and num_channels >= 8)


def to_mono(values: np.ndarray, format_name: str, channels: tuple[str, ...]) -> np.ndarray:
    """Samples as PyAV gives them ([channels, n] when planar, else [1, n * channels]) to float32 [n] in -1..1.

    Values that are no numbers become silence, absurd ones are cut off.
    """
    planes = values if format_name.endswith("p") else values.reshape(-1, len(channels)).T
    offset, scale = _SCALES[format_name.removesuffix("p")]
    mono: np.ndarray | None = None
    with np.errstate(over="ignore", invalid="ignore"):
        for plane, weight in zip(planes, mix_weights(channels), strict=True):
            if not weight:
                continue
            part = plane.astype(np.float32)
            if offset:
                part -= offset
            part *= weight * scale
            mono = part if mono is None else np.add(mono, part, out=mono)
    assert mono is not None, channels
    if mono.shape[0] and not (mono.max() <= _LOUDEST and mono.min() >= -_LOUDEST):
        mono = np.nan_to_num(mono, nan=0.0, posinf=0.0, neginf=0.0).clip(-_LOUDEST, _LOUDEST)
    return mono
