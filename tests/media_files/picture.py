"""Test frames that tell their own number and orientation, in RGB and as Y'CbCr planes.

A frame has eight black or white blocks over its top (the number, most significant bit left) and four flat patches
under them. Numbers and colours survive scaling and coarse coding; the matrices are written out here, so that the
expected colours owe nothing to a decoder or scaler.
"""

from __future__ import annotations

import av
import numpy as np

NUM_BITS = 8
# RGB of the patches from left to right. Inside every gamut and range used here.
PATCHES = ((200, 40, 48), (40, 180, 60), (56, 60, 200), (190, 190, 190))
_NUMBER_SHARE = 0.45
# Kr, Kb: ITU-R BT.601, BT.709, BT.2020 (non-constant luminance).
MATRICES = {"bt601": (0.299, 0.114), "bt709": (0.2126, 0.0722), "bt2020": (0.2627, 0.0593)}


def picture(number: int, width: int = 192, height: int = 128) -> np.ndarray:
    """uint8 [height, width, 3] of the number modulo 256."""
    rgb = np.empty((height, width, 3), np.uint8)
    split = round(height * _NUMBER_SHARE)
    bits = np.array([number >> bit & 1 for bit in reversed(range(NUM_BITS))], np.uint8)
    rgb[:split] = 255 * bits[np.arange(width) * NUM_BITS // width][None, :, None]
    patches = np.array(PATCHES, np.uint8)
    rgb[split:] = patches[np.arange(width) * len(PATCHES) // width][None]
    return rgb


def read_number(rgb: np.ndarray) -> int:
    """The number in uint8 [height, width, 3] of any size. Raises ValueError for no picture of ours, upright."""
    height, width = rgb.shape[:2]
    rows = slice(round(height * _NUMBER_SHARE * 0.25), round(height * _NUMBER_SHARE * 0.75))
    number = 0
    for block in range(NUM_BITS):
        centre = (block + 0.5) * width / NUM_BITS
        columns = slice(int(centre - width / 50), int(centre + width / 50) + 1)
        level = float(rgb[rows, columns].mean())
        if 80 < level < 175:
            raise ValueError(f"block {block} is neither black nor white: {level:.0f}")
        number = number << 1 | (level >= 175)
    return number


def read_patches(rgb: np.ndarray) -> np.ndarray:
    """float64 [4, 3]: mean colour of each patch's middle in [height, width, 3]."""
    height, width = rgb.shape[:2]
    rows = slice(round(height * (_NUMBER_SHARE + 0.2)), round(height * 0.9))
    step = width / len(PATCHES)
    middles = [slice(round((i + 0.35) * step), round((i + 0.65) * step)) for i in range(len(PATCHES))]
    return np.stack([rgb[rows, columns].reshape(-1, 3).astype(np.float64).mean(0) for columns in middles])


def is_upright(rgb: np.ndarray) -> bool:
    """Whether the patches' strongest channels are red, green, blue from left to right."""
    return [int(patch.argmax()) for patch in read_patches(rgb)[:3]] == [0, 1, 2]


def to_yuv(rgb: np.ndarray, matrix: str = "bt601", full_range: bool = False, bits: int = 8) -> np.ndarray:
    """Y'CbCr codes, float64 [..., 3], unrounded, of R'G'B' 0..255 (BT.601, BT.709, BT.2020 equations)."""
    kr, kb = MATRICES[matrix]
    red, green, blue = np.moveaxis(rgb.astype(np.float64) / 255, -1, 0)
    luma = kr * red + (1 - kr - kb) * green + kb * blue
    chroma = (blue - luma) / (2 - 2 * kb), (red - luma) / (2 - 2 * kr)
    offset, luma_span, chroma_span = _spans(full_range, bits)
    middle = 1 << bits - 1
    planes = (offset + luma_span * luma, *(middle + chroma_span * part for part in chroma))
    return np.stack(planes, axis=-1)


def to_rgb(yuv: np.ndarray, matrix: str = "bt601", full_range: bool = False, bits: int = 8) -> np.ndarray:
    """The inverse of `to_yuv`, clipped to 0..255: float64 [..., 3]."""
    kr, kb = MATRICES[matrix]
    offset, luma_span, chroma_span = _spans(full_range, bits)
    y, cb, cr = np.moveaxis(np.asarray(yuv, np.float64), -1, 0)
    luma = (y - offset) / luma_span
    blue = luma + (2 - 2 * kb) * (cb - (1 << bits - 1)) / chroma_span
    red = luma + (2 - 2 * kr) * (cr - (1 << bits - 1)) / chroma_span
    green = (luma - kr * red - kb * blue) / (1 - kr - kb)
    return np.clip(255 * np.stack([red, green, blue], axis=-1), 0, 255)


def _spans(full_range: bool, bits: int) -> tuple[int, int, int]:
    scale = 1 << bits - 8
    return (0, (1 << bits) - 1, (1 << bits) - 1) if full_range else (16 * scale, 219 * scale, 224 * scale)


def video_frame(
    rgb: np.ndarray, matrix: str = "bt601", full_range: bool = False, bits: int = 8
) -> av.VideoFrame:
    """A 4:2:0 frame of 8 or 10 bits; chroma is the mean of each 2 x 2 block, edges repeated."""
    height, width = rgb.shape[:2]
    codes = to_yuv(rgb, matrix, full_range, bits)
    padded = np.pad(codes, ((0, height % 2), (0, width % 2), (0, 0)), mode="edge")
    blocks = padded.reshape(padded.shape[0] // 2, 2, padded.shape[1] // 2, 2, 3).mean((1, 3))
    frame = av.VideoFrame(width, height, "yuv420p" if bits == 8 else f"yuv420p{bits}le")
    for plane, values in zip(frame.planes, (codes[..., 0], blocks[..., 1], blocks[..., 2]), strict=True):
        fill_plane(plane, values.round(), bits)
    return frame


def fill_plane(plane: av.video.plane.VideoPlane, values: np.ndarray, bits: int = 8) -> None:
    """Writes [height, width] into a plane, whose lines may be longer."""
    kind = np.dtype("u1" if bits == 8 else "<u2")
    lines = np.frombuffer(plane, kind).reshape(-1, plane.line_size // kind.itemsize)
    lines[: values.shape[0], : values.shape[1]] = values
