"""Encoded still images to upright sRGB pixels. Knows file formats and colour; knows no model.

The container is chosen by the file's own signature, never by a name or content type. The header is read and
checked against the limits before any pixels are allocated. Baseline and progressive JPEGs without a foreign
colour profile go through torchvision's libjpeg-turbo, everything else through Pillow; for such JPEGs the two agree
within 1 of 255 (equal wherever both carry the same libjpeg-turbo). DCT-scaled decoding is not used: it averages
pixels that the resize without antialias picks singly, so fine texture comes out tens of levels different.
"""

from __future__ import annotations

import io
import struct
import zlib
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from PIL import Image, ImageCms
from PIL.AvifImagePlugin import AvifImageFile
from PIL.BmpImagePlugin import BmpImageFile
from PIL.GifImagePlugin import GifImageFile
from PIL.ImageFile import ImageFile
from PIL.JpegImagePlugin import JpegImageFile
from PIL.PngImagePlugin import PngImageFile
from PIL.TiffImagePlugin import TiffImageFile
from PIL.WebPImagePlugin import WebPImageFile

from mm_pipeline.errors import MediaTooLargeError, UnsupportedMediaError
from mm_pipeline.limits import MediaLimits

_READERS: dict[str, type[ImageFile]] = {
    "JPEG": JpegImageFile,
    "PNG": PngImageFile,
    "GIF": GifImageFile,
    "WebP": WebPImageFile,
    "AVIF": AvifImageFile,
    "TIFF": TiffImageFile,
    "BMP": BmpImageFile,
}
_EXIF_ORIENTATION = 0x0112
# Orientations that swap width and height.
_TURNED = (5, 6, 7, 8)
# What Pillow's readers raise on damaged input; anything else is a bug of ours.
_DAMAGE = (
    OSError, SyntaxError, ValueError, EOFError, IndexError, KeyError, TypeError, OverflowError, RuntimeError,
    NotImplementedError, struct.error, zlib.error,
)  # fmt: skip
# Profile colour space by image mode.
_PROFILE_SPACE = {"RGB": "RGB ", "L": "GRAY", "CMYK": "CMYK"}


@dataclass(frozen=True, kw_only=True)
class EncodedImage:
    """An image whose header has been read and is within the limits. height, width: after orientation."""

    data: bytes
    kind: str
    image: ImageFile
    orientation: int

    @property
    def size(self) -> tuple[int, int]:
        """(height, width) of the upright picture."""
        width, height = self.image.size
        return (width, height) if self.orientation in _TURNED else (height, width)

    def decode(self, backend: Literal["auto", "pillow"] = "auto") -> torch.Tensor:
        """Pixels as `decode_image` gives them. Once per instance: Pillow's reader is used up."""
        image, kind = self.image, self.kind
        try:
            profile = _foreign_profile(image)
            if backend == "auto" and kind == "JPEG" and image.mode in ("RGB", "L") and profile is None:
                pixels = _decode_jpeg(self.data, image.size)
            else:
                pixels = torch.from_numpy(np.array(_to_rgb(image, profile)))
        except Image.DecompressionBombError as error:
            # Pillow's own check, on frames that are larger than the picture they belong to.
            raise MediaTooLargeError(
                f"a frame of the {kind} image is larger than any picture taken here"
            ) from error
        except _DAMAGE as error:
            raise UnsupportedMediaError(
                f"the {kind} image ({image.width} x {image.height}, {len(self.data)} bytes) is damaged or cut short"
            ) from error
        return _upright(pixels, self.orientation).permute(2, 0, 1)


def open_image(data: bytes, limits: MediaLimits) -> EncodedImage:
    """Reads the header only. Raises as `decode_image` does, except for damage after the header."""
    if len(data) > limits.max_bytes:
        raise MediaTooLargeError(f"image has {len(data)} bytes; max_bytes is {limits.max_bytes}")
    kind = _sniff(data)
    if kind is None:
        raise UnsupportedMediaError(
            f"the {len(data)} bytes are not an image of a supported format; send one of {', '.join(_READERS)}"
        )
    if kind == "WebP":
        # Opening one creates the decoder's canvas, so its size is read by hand first.
        _check_pixels(_webp_size(data), limits)
    try:
        image = _READERS[kind](io.BytesIO(data))
    except Image.DecompressionBombError as error:
        raise MediaTooLargeError(
            f"the {kind} image has more pixels than max_image_pixels, {limits.max_image_pixels}"
        ) from error
    except _DAMAGE as error:
        raise UnsupportedMediaError(
            f"the {kind} image's header is damaged or of an unsupported kind"
        ) from error
    _check_pixels(image.size, limits)
    return EncodedImage(data=data, kind=kind, image=image, orientation=_orientation(image))


def decode_image(
    data: bytes, limits: MediaLimits, *, backend: Literal["auto", "pillow"] = "auto"
) -> torch.Tensor:
    """uint8 [3, height, width] in sRGB, a view of contiguous [height, width, 3].

    EXIF orientation applied, alpha composited on white, ICC and CMYK converted, 16-bit grey taken by its high byte,
    the first frame of an animation. `backend="pillow"` keeps JPEGs off the fast decoder.
    Raises MediaTooLargeError over a limit, UnsupportedMediaError for anything that is not a whole supported image.
    """
    if backend not in ("auto", "pillow"):
        raise ValueError(f"decode backend {backend!r} is unknown; use 'auto' or 'pillow'")
    return open_image(data, limits).decode(backend)


def _sniff(data: bytes) -> str | None:
    head = data[:16]
    if head.startswith(b"\xff\xd8\xff"):
        return "JPEG"
    if head.startswith(b"\x89PNG\r\n\x1a\n"):
        return "PNG"
    if head.startswith((b"GIF87a", b"GIF89a")):
        return "GIF"
    if head.startswith(b"RIFF") and head[8:12] == b"WEBP":
        return "WebP"
    if head[4:8] == b"ftyp" and head[8:12] in (b"avif", b"avis", b"mif1", b"msf1"):
        return "AVIF"
    if head.startswith((b"II*\0", b"MM\0*")):
        return "TIFF"
    if head.startswith(b"BM"):
        return "BMP"
    return None


def _webp_size(data: bytes) -> tuple[int, int]:
    """(width, height) of the canvas. RIFF container specification, chunks VP8X, VP8L and VP8."""
    chunk, body = data[12:16], data[20:30]
    if len(body) == 10 and chunk == b"VP8X":
        return 1 + int.from_bytes(body[4:7], "little"), 1 + int.from_bytes(body[7:10], "little")
    if len(body) == 10 and chunk == b"VP8L":
        bits = int.from_bytes(body[1:5], "little")
        return 1 + (bits & 0x3FFF), 1 + (bits >> 14 & 0x3FFF)
    if len(body) == 10 and chunk == b"VP8 ":
        width, height = struct.unpack("<HH", body[6:10])
        return width & 0x3FFF, height & 0x3FFF
    raise UnsupportedMediaError("the WebP image's header is damaged or of an unsupported kind")


def _check_pixels(size: tuple[int, int], limits: MediaLimits) -> None:
    width, height = size
    if width * height > limits.max_image_pixels:
        raise MediaTooLargeError(
            f"image is {width} x {height} = {width * height} pixels; max_image_pixels is "
            f"{limits.max_image_pixels}. Scale it down first."
        )


def load_codecs() -> Any:
    """torchvision.io. Importing it takes seconds: who decodes does so before the first picture, others never."""
    import torchvision.io  # type: ignore[import-untyped]

    return torchvision.io


def _decode_jpeg(data: bytes, size: tuple[int, int]) -> torch.Tensor:
    codecs = load_codecs()
    encoded = torch.frombuffer(bytearray(data), dtype=torch.uint8)
    pixels: torch.Tensor = codecs.decode_jpeg(encoded, mode=codecs.ImageReadMode.RGB).permute(1, 2, 0)
    if pixels.shape[1::-1] != size:
        raise ValueError("two readings of one JPEG header differ")
    return pixels


def _foreign_profile(image: Image.Image) -> ImageCms.ImageCmsProfile | None:
    """The embedded ICC profile, unless there is none, it is unreadable (viewers ignore it too) or it is sRGB."""
    data = image.info.get("icc_profile")
    if not data:
        return None
    try:
        profile = ImageCms.ImageCmsProfile(io.BytesIO(data))
        description = ImageCms.getProfileDescription(profile)
    except (OSError, ImageCms.PyCMSError):
        return None
    return None if description.startswith("sRGB") else profile


def _to_rgb(image: Image.Image, profile: ImageCms.ImageCmsProfile | None) -> Image.Image:
    image.load()
    if image.mode == "I" or image.mode.startswith("I;16"):
        image = _high_byte(image)
    elif image.mode == "F":
        raise UnsupportedMediaError("image holds floating-point pixels; send 8 or 16 bits per channel")
    if image.has_transparency_data:
        with_alpha = image.convert("RGBA")
        colour, alpha = _convert_profile(with_alpha.convert("RGB"), profile), with_alpha.getchannel("A")
        white = Image.new("RGB", image.size, (255, 255, 255))
        white.paste(colour, mask=alpha)
        return white
    if image.mode in ("P", "PA", "1"):
        image = image.convert("RGB")
    return _convert_profile(image, profile).convert("RGB")


def _high_byte(image: Image.Image) -> Image.Image:
    """Grey of 16 bits to 8 by dropping the low byte; Pillow's own conversion clips at 255 instead."""
    values = np.asarray(image).astype(np.int64)
    grey = (values.clip(0, 65535) >> 8).astype(np.uint8)
    transparent = image.info.get("transparency")
    if isinstance(transparent, int):
        grey[values == transparent] = 255
    return Image.fromarray(grey)


def _convert_profile(image: Image.Image, profile: ImageCms.ImageCmsProfile | None) -> Image.Image:
    """To sRGB, where the profile is one for this kind of pixels; otherwise unchanged."""
    if profile is None or profile.profile.xcolor_space != _PROFILE_SPACE.get(image.mode):
        return image
    try:
        converted = ImageCms.profileToProfile(
            image, profile, ImageCms.createProfile("sRGB"), outputMode="RGB"
        )
    except ImageCms.PyCMSError:
        return image
    assert converted is not None, "profileToProfile returns an image unless it works in place"
    return converted


def _orientation(image: Image.Image) -> int:
    try:
        value = image.getexif().get(_EXIF_ORIENTATION, 1)
    except _DAMAGE:
        # Metadata that does not parse costs the rotation, not the picture.
        return 1
    return value if isinstance(value, int) else 1


def _upright(pixels: torch.Tensor, orientation: int) -> torch.Tensor:
    """[height, width, 3] turned by the EXIF orientation 1..8 (TIFF 6.0, tag 274); other values change nothing."""
    if orientation in _TURNED:
        pixels = pixels.transpose(0, 1)
    flipped_axes = {2: (1,), 3: (0, 1), 4: (0,), 6: (1,), 7: (0, 1), 8: (0,)}.get(orientation)
    return (pixels if flipped_axes is None else pixels.flip(flipped_axes)).contiguous()
