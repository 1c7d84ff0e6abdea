"""Ways to break the preprocessing of this process on purpose: an evaluation that does not notice tests nothing.

Each fault is one mistake that such pipelines really make. Knows where pixels and samples pass, and no model.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Any, Literal
from unittest.mock import patch

import numpy as np
from torch import Tensor

from mm_pipeline.audio import decode as sound_decoding
from mm_pipeline.audio.resample import Resampler
from mm_pipeline.image import decode as image_decoding
from mm_pipeline.image.decode import EncodedImage
from mm_pipeline.video.scale import FrameScaler


@dataclass(frozen=True, kw_only=True)
class Fault:
    """applied: the preprocessing is broken within it. families: those whose score it must lower."""

    families: tuple[str, ...]
    applied: Callable[[], AbstractContextManager[None]]


@contextmanager
def swapped_channels() -> Iterator[None]:
    """Red and blue change places in pictures and in frames of video."""
    decode, scale = EncodedImage.decode, FrameScaler.scale

    def decode_swapped(image: EncodedImage, backend: Literal["auto", "pillow"] = "auto") -> Tensor:
        return decode(image, backend).flip(0)

    def scale_swapped(scaler: FrameScaler, frame: Any) -> np.ndarray[Any, np.dtype[Any]]:
        return scale(scaler, frame)[::-1]

    with (
        patch.object(EncodedImage, "decode", decode_swapped),
        patch.object(FrameScaler, "scale", scale_swapped),
    ):
        yield


@contextmanager
def ignored_exif() -> Iterator[None]:
    """Pictures stay as the camera lay."""
    with patch.object(image_decoding, "_orientation", lambda image: 1):
        yield


@contextmanager
def halved_rate() -> Iterator[None]:
    """Sound is resampled to half the rate that the model takes it to have."""

    class HalfRate(Resampler):
        def __init__(self, from_rate: int, to_rate: int) -> None:
            super().__init__(from_rate, to_rate // 2)

    with patch.object(sound_decoding, "Resampler", HalfRate):
        yield


FAULTS = {
    "rgb": Fault(families=("pictures", "video"), applied=swapped_channels),
    "exif": Fault(families=("pictures", "reading"), applied=ignored_exif),
    "rate": Fault(families=("sound", "video"), applied=halved_rate),
}
