import io
import struct
import zlib

import numpy as np
import pytest
import torch
from PIL import Image, ImageCms, ImageOps

from mm_pipeline.errors import MediaError, MediaTooLargeError, UnsupportedMediaError
from mm_pipeline.image import decode_image
from mm_pipeline.limits import MediaLimits
from tests.mm_pipeline.pictures import encode, gradient, noisy

LIMITS = MediaLimits()


def pixels_of(data: bytes, **options) -> np.ndarray:
    decoded = decode_image(data, LIMITS, **options)
    assert decoded.dtype == torch.uint8
    assert decoded.permute(1, 2, 0).is_contiguous()
    return decoded.permute(1, 2, 0).numpy()


@pytest.mark.parametrize("kind", ["PNG", "BMP", "TIFF"])
def test_lossless_formats_keep_every_pixel(kind):
    assert np.array_equal(pixels_of(encode(gradient(), kind)), gradient())


@pytest.mark.parametrize("kind", ["WebP", "AVIF", "GIF"])
def test_other_formats_decode(kind):
    assert pixels_of(encode(gradient(), kind)).shape == (48, 64, 3)


@pytest.mark.parametrize("options", [{}, {"progressive": True}, {"subsampling": 0}, {"quality": 100}])
@pytest.mark.parametrize("grey", [False, True])
def test_jpeg_decoders_agree_within_two_levels(options, grey):
    picture = noisy(333, 217)
    data = encode(picture[..., 0] if grey else picture, "JPEG", **options)
    fast, plain = pixels_of(data), pixels_of(data, backend="pillow")
    assert np.abs(fast.astype(int) - plain.astype(int)).max() <= 2


@pytest.mark.parametrize("orientation", range(1, 9))
@pytest.mark.parametrize("kind", ["JPEG", "PNG", "WebP"])
def test_exif_orientation_is_applied(orientation, kind):
    exif = Image.Exif()
    exif[0x0112] = orientation
    options = {"lossless": True} if kind == "WebP" else {}
    data = encode(gradient(), kind, exif=exif, **options)
    expected = np.asarray(ImageOps.exif_transpose(Image.open(io.BytesIO(data))))
    assert np.array_equal(pixels_of(data), expected)


@pytest.mark.filterwarnings("ignore:Corrupt EXIF data")
def test_unreadable_exif_costs_only_the_rotation():
    data = encode(gradient(), "JPEG", exif=b"Exif\0\0MM\0*\xff\xff\xff\xff")
    assert pixels_of(data).shape == (48, 64, 3)


def test_alpha_is_composited_on_white():
    rgba = np.dstack([gradient(), np.full((48, 64), 0, dtype=np.uint8)])
    rgba[:, 32:, 3] = 128
    seen = pixels_of(encode(rgba))
    assert (seen[:, :32] == 255).all()
    expected = np.round(gradient()[:, 32:] * (128 / 255) + 255 * (127 / 255))
    assert np.abs(seen[:, 32:] - expected).max() <= 1


def test_transparent_grey_palette_and_colour_key_turn_white():
    grey_alpha = Image.new("LA", (8, 8), (10, 0))
    palette = Image.new("P", (8, 8), 0)
    palette.putpalette([200, 0, 0] + [0] * 765)
    colour = Image.new("RGB", (8, 8), (1, 2, 3))
    grey = Image.new("L", (8, 8), 7)
    for data in (
        encode(grey_alpha),
        encode(palette, transparency=0),
        encode(palette, transparency=b"\0"),
        encode(colour, transparency=(1, 2, 3)),
        encode(grey, transparency=7),
        encode(palette, "GIF", transparency=0),
    ):
        assert (pixels_of(data) == 255).all()


def test_sixteen_bit_grey_keeps_its_high_byte():
    values = np.linspace(0, 65535, 64 * 48).astype(np.uint16).reshape(48, 64)
    seen = pixels_of(encode(Image.fromarray(values)))
    assert np.array_equal(seen, np.repeat((values >> 8).astype(np.uint8)[..., None], 3, axis=2))


def test_one_bit_and_grey_pictures_become_rgb():
    grey = gradient()[..., 0]
    assert np.array_equal(pixels_of(encode(grey))[..., 2], grey)
    assert set(np.unique(pixels_of(encode(Image.fromarray(grey).convert("1"))))) == {0, 255}


def test_cmyk_jpeg_is_not_inverted():
    red = Image.new("RGB", (16, 16), (250, 5, 5)).convert("CMYK")
    seen = pixels_of(encode(red, "JPEG", quality=95))
    assert (seen[..., 0] > 200).all()
    assert (seen[..., 1:] < 60).all()


def test_icc_profile_is_converted_and_srgb_left_alone():
    # Swapping the red and green primaries of sRGB swaps the channels that come out.
    srgb = ImageCms.ImageCmsProfile(ImageCms.createProfile("sRGB")).tobytes()
    swapped = bytearray(srgb)
    tags = {
        srgb[at : at + 4]: struct.unpack(">II", srgb[at + 4 : at + 12])
        for at in range(132, 132 + 12 * struct.unpack(">I", srgb[128:132])[0], 12)
    }
    (red, size), (green, _) = tags[b"rXYZ"], tags[b"gXYZ"]
    swapped[red : red + size], swapped[green : green + size] = (
        srgb[green : green + size],
        srgb[red : red + size],
    )
    text, text_size = tags[b"desc"]
    swapped[text : text + text_size] = srgb[text : text + text_size].replace(b"\0s\0R\0G\0B", b"\0o\0d\0d\0!")
    picture = np.full((8, 8, 3), (200, 30, 60), dtype=np.uint8)
    for kind in ("PNG", "JPEG"):
        options = {"quality": 100, "subsampling": 0} if kind == "JPEG" else {}
        plain = pixels_of(encode(picture, kind, **options)).astype(int)
        assert np.array_equal(pixels_of(encode(picture, kind, icc_profile=srgb, **options)), plain)
        seen = pixels_of(encode(picture, kind, icc_profile=bytes(swapped), **options)).astype(int)
        assert np.abs(seen - plain[..., [1, 0, 2]]).max() <= 2


def test_broken_icc_profile_is_ignored():
    assert np.array_equal(pixels_of(encode(gradient(), icc_profile=b"nonsense")), gradient())


@pytest.mark.parametrize("kind", ["GIF", "PNG", "WebP"])
def test_first_frame_of_an_animation(kind):
    first, second = Image.new("RGB", (16, 16), (255, 0, 0)), Image.new("RGB", (16, 16), (0, 0, 255))
    options = {"lossless": True} if kind == "WebP" else {}
    data = encode(first, kind, save_all=True, append_images=[second], **options)
    assert (pixels_of(data) == (255, 0, 0)).all()


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "GIF", "WebP", "TIFF", "BMP", "AVIF"])
@pytest.mark.parametrize("backend", ["auto", "pillow"])
def test_truncated_files_are_errors(kind, backend):
    data = encode(noisy(200, 200), kind)
    for keep in (0.05, 0.5, 0.9):
        with pytest.raises(MediaError) as caught:
            decode_image(data[: int(len(data) * keep)], LIMITS, backend=backend)
        assert caught.value.status == 415
        assert kind in str(caught.value) or "not an image" in str(caught.value)


@pytest.mark.parametrize(
    "data", [b"", b"hello, this is a text file", b"%!PS-Adobe-3.0 EPSF-3.0", b"<html></html>"]
)
def test_other_bytes_are_unsupported(data):
    with pytest.raises(UnsupportedMediaError, match="JPEG, PNG"):
        decode_image(data, LIMITS)


def png_header(width: int, height: int) -> bytes:
    """A PNG that claims a size and holds almost no data."""

    def chunk(name: bytes, body: bytes) -> bytes:
        return struct.pack(">I", len(body)) + name + body + struct.pack(">I", zlib.crc32(name + body))

    head = chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0))
    return b"\x89PNG\r\n\x1a\n" + head + chunk(b"IDAT", zlib.compress(b"\0" * 100)) + chunk(b"IEND", b"")


def test_pixel_bomb_is_refused_by_its_header():
    with pytest.raises(
        MediaTooLargeError, match=r"30000 x 30000 = 900000000 pixels; max_image_pixels is 100000000"
    ):
        decode_image(png_header(30_000, 30_000), LIMITS)
    # Between Pillow's own warning threshold and the limit there is no warning either.
    with pytest.raises(UnsupportedMediaError):
        decode_image(png_header(9_900, 10_000), LIMITS)


@pytest.mark.parametrize("options", [{"lossless": True}, {"quality": 50}, {"exif": Image.Exif().tobytes()}])
def test_webp_size_is_read_before_its_canvas_exists(options):
    data = encode(gradient(300, 200), "WebP", **options)
    assert pixels_of(data).shape == (200, 300, 3)
    with pytest.raises(MediaTooLargeError, match="300 x 200"):
        decode_image(data, MediaLimits(max_image_pixels=59_999))


def test_byte_limit():
    data = encode(gradient())
    with pytest.raises(MediaTooLargeError, match=f"{len(data)} bytes; max_bytes is 100"):
        decode_image(data, MediaLimits(max_bytes=100))


def test_float_tiff_is_refused():
    with pytest.raises(UnsupportedMediaError, match="floating-point"):
        decode_image(encode(Image.new("F", (4, 4), 0.5), "TIFF"), LIMITS)


def test_unknown_backend():
    with pytest.raises(ValueError, match="'auto' or 'pillow'"):
        decode_image(b"", LIMITS, backend="gpu")
