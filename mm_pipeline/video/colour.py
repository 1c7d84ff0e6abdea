"""What the numbers in a frame mean: matrix, range, transfer. Reads frames' tags; changes no pixels."""

from __future__ import annotations

from dataclasses import dataclass

from av.video.frame import VideoFrame
from av.video.reformatter import ColorPrimaries, ColorRange, Colorspace, ColorTrc

# AVColorSpace, as in ISO 23091-2 table 4, to the names swscale has for its matrices.
_MATRICES = {
    1: Colorspace.ITU709,
    4: Colorspace.FCC,
    5: Colorspace.ITU601,
    6: Colorspace.ITU601,
    7: Colorspace.SMPTE240M,
    9: Colorspace.BT2020,
    10: Colorspace.BT2020,
}
_UNSPECIFIED = 2
_MATRIX_NAMES = {
    Colorspace.ITU709: "bt709",
    Colorspace.FCC: "fcc",
    Colorspace.ITU601: "bt601",
    Colorspace.SMPTE240M: "smpte240m",
    Colorspace.BT2020: "bt2020",
}
_TRANSFERS = {ColorTrc.SMPTE2084: "pq", ColorTrc.ARIB_STD_B67: "hlg"}
_HD_WIDTH, _HD_HEIGHT = 1280, 720


@dataclass(frozen=True, kw_only=True)
class Colour:
    """matrix: "bt601", "bt709", "bt2020", "fcc", "smpte240m" or "rgb". full_range: 0..255 rather than 16..235.
    transfer: "sdr", "pq" or "hlg". wide_gamut: BT.2020 primaries. bits: per channel. is_guessed: the file does not
    name its matrix.
    """

    matrix: str
    full_range: bool
    transfer: str
    wide_gamut: bool
    bits: int
    is_guessed: bool


def frame_colour(frame: VideoFrame) -> Colour:
    """What the frame says, and where it says nothing what players take: BT.601 below 720p, BT.709 from there on."""
    components = frame.format.components
    is_rgb = frame.format.is_rgb or frame.format.has_palette
    matrix = frame_matrix(frame)
    return Colour(
        matrix="rgb" if is_rgb or matrix is None else _MATRIX_NAMES[matrix],
        full_range=is_rgb or frame_range(frame) == ColorRange.JPEG,
        transfer=_TRANSFERS.get(ColorTrc(frame.color_trc), "sdr") if _is_known(frame.color_trc) else "sdr",
        wide_gamut=frame.color_primaries == ColorPrimaries.BT2020,
        bits=max(component.bits for component in components),
        is_guessed=not is_rgb and frame.colorspace == _UNSPECIFIED,
    )


def frame_matrix(frame: VideoFrame) -> Colorspace | None:
    """swscale's name for the frame's matrix; None where the frame is RGB or swscale has no matrix for it."""
    if frame.colorspace == _UNSPECIFIED:
        is_hd = max(frame.width, frame.height) >= _HD_WIDTH or min(frame.width, frame.height) >= _HD_HEIGHT
        return Colorspace.ITU709 if is_hd else Colorspace.ITU601
    return _MATRICES.get(frame.colorspace)


def frame_range(frame: VideoFrame) -> ColorRange:
    """The frame's range; limited where it says nothing, except for the formats that are full by name."""
    if frame.color_range == ColorRange.JPEG or frame.format.name.startswith("yuvj"):
        return ColorRange.JPEG
    return ColorRange.MPEG


def _is_known(transfer: int) -> bool:
    return transfer in ColorTrc._value2member_map_
