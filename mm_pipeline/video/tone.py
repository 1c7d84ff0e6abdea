"""HDR pixels to SDR ones. Knows transfer functions and primaries; knows no files and no scaling.

Absolute light is taken relative to HDR reference white, 203 cd/m2 (ITU-R BT.2408), so that a white page comes out
near white. The result is encoded for a BT.1886 display (gamma 2.4), as ordinary video is.
"""

from __future__ import annotations

from functools import cache

import numpy as np
import numpy.typing as npt

Float32 = npt.NDArray[np.float32]

_WHITE_NITS = 203.0
_PEAK_NITS = 1000.0
_LEVELS = 1 << 16
# Light up to this share of white keeps its brightness, what is above is rolled off.
_KNEE = 0.75
_HLG_SYSTEM_GAMMA = 1.2
_BT2020_LUMA = np.array([0.2627, 0.6780, 0.0593], dtype=np.float32)
# ITU-R BT.2087, linear light.
_BT2020_TO_BT709 = np.array(
    [[1.6605, -0.5876, -0.0728], [-0.1246, 1.1329, -0.0083], [-0.0182, -0.1006, 1.1187]], dtype=np.float32
)


def to_sdr(pixels: npt.NDArray[np.uint16], transfer: str, *, wide_gamut: bool) -> npt.NDArray[np.uint8]:
    """uint16 [3, H, W] of full-range RGB, encoded with "pq", "hlg" or "sdr", to uint8 [3, H, W] in BT.709."""
    light = np.take(_light_table(transfer), pixels)
    if transfer == "hlg":
        # BT.2100 table 5: the display's own gamma acts on luminance.
        luma = np.tensordot(_BT2020_LUMA, light, axes=1)
        light *= np.maximum(luma, 1e-6) ** np.float32(_HLG_SYSTEM_GAMMA - 1)
        light *= np.float32(_PEAK_NITS / _WHITE_NITS)
    if wide_gamut:
        light = np.tensordot(_BT2020_TO_BT709, light, axes=1)
    np.maximum(light, 0, out=light)
    if transfer != "sdr":
        # One factor per pixel keeps the hue.
        brightest = np.maximum(light.max(axis=0), 1e-6)
        light *= _roll_off(brightest) / brightest
    np.minimum(light, 1, out=light)
    encoded = np.take(_display_table(), (light * (_LEVELS - 1)).astype(np.uint16))
    return np.ascontiguousarray(encoded)


def _roll_off(light: Float32) -> Float32:
    """Extended Reinhard curve above the knee: slope 1 at the knee, 1 at the peak."""
    peak = (_PEAK_NITS / _WHITE_NITS - _KNEE) / (1 - _KNEE)
    above = np.maximum(light - np.float32(_KNEE), 0) / np.float32(1 - _KNEE)
    rolled = above * (1 + above / np.float32(peak**2)) / (1 + above)
    return np.where(light <= _KNEE, light, _KNEE + (1 - _KNEE) * np.minimum(rolled, 1)).astype(np.float32)


@cache
def _light_table(transfer: str) -> Float32:
    """Linear light of every 16-bit code: relative to white for "pq" and "sdr", scene light in 0..1 for "hlg"."""
    code = np.linspace(0, 1, _LEVELS)
    if transfer == "pq":
        # SMPTE ST 2084.
        m1, m2, c1, c2, c3 = 2610 / 16384, 2523 / 32, 3424 / 4096, 2413 / 128, 2392 / 128
        power = code ** (1 / m2)
        light = 10_000 * (np.maximum(power - c1, 0) / (c2 - c3 * power)) ** (1 / m1) / _WHITE_NITS
    elif transfer == "hlg":
        # ARIB STD-B67.
        a, b, c = 0.17883277, 0.28466892, 0.55991073
        light = np.where(code <= 0.5, code**2 / 3, (np.exp((code - c) / a) + b) / 12)
    else:
        light = code**2.4
    return light.astype(np.float32)


@cache
def _display_table() -> npt.NDArray[np.uint8]:
    return np.rint(255 * np.linspace(0, 1, _LEVELS) ** (1 / 2.4)).astype(np.uint8)
