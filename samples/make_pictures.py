"""Draws the sample pictures: `python samples/make_pictures.py [folder]` (default: samples/pictures).

Each shows something a user's files do: text in a photo-like JPEG, a chart in PNG, WebP, EXIF orientation,
transparency. No random numbers and no fonts of the system, so they come out the same everywhere.
"""

from __future__ import annotations

import math
import sys
from pathlib import Path

from PIL import Image, ImageChops, ImageDraw, ImageFilter, ImageFont


def _font(size: int) -> ImageFont.ImageFont | ImageFont.FreeTypeFont:
    return ImageFont.load_default(size)


def _gradient(width: int, height: int, top: tuple[int, ...], bottom: tuple[int, ...]) -> Image.Image:
    column = Image.new("RGB", (1, height))
    for y in range(height):
        t = y / (height - 1)
        column.putpixel((0, y), tuple(round(a + (b - a) * t) for a, b in zip(top, bottom, strict=True)))
    return column.resize((width, height))


def street_sign() -> Image.Image:
    """A green sign reading MAPLE STREET over a STOP sign, on a grey post before a sky."""
    image = _gradient(640, 480, (94, 150, 214), (214, 230, 244))
    draw = ImageDraw.Draw(image)
    draw.rectangle((0, 400, 640, 480), fill=(104, 132, 82))
    draw.rectangle((312, 60, 328, 480), fill=(128, 132, 138))
    draw.rounded_rectangle((130, 60, 510, 150), radius=14, fill=(0, 104, 71), outline="white", width=5)
    draw.text((320, 105), "MAPLE STREET", font=_font(44), fill="white", anchor="mm")
    draw.regular_polygon((320, 260, 92), 8, fill=(190, 22, 34), outline="white")
    draw.text((320, 260), "STOP", font=_font(58), fill="white", anchor="mm")
    return image


def bar_chart() -> Image.Image:
    """Five labelled bars, one for each working day; Friday's is the highest."""
    image = Image.new("RGB", (560, 420), "white")
    draw = ImageDraw.Draw(image)
    draw.text((280, 28), "Visitors per day", font=_font(26), fill="black", anchor="mm")
    bars = (("Mon", 40), ("Tue", 85), ("Wed", 62), ("Thu", 120), ("Fri", 180))
    colours = ("#4c72b0", "#dd8452", "#55a868", "#c44e52", "#8172b3")
    for index, ((day, value), colour) in enumerate(zip(bars, colours, strict=True)):
        left, top = 70 + index * 95, 360 - round(value * 1.5)
        draw.rectangle((left, top, left + 60, 360), fill=colour)
        draw.text((left + 30, top - 14), str(value), font=_font(18), fill="black", anchor="mm")
        draw.text((left + 30, 382), day, font=_font(20), fill="black", anchor="mm")
    draw.line((50, 360, 540, 360), fill="black", width=2)
    return image


def shapes() -> Image.Image:
    """Three red circles, two blue squares and one yellow triangle."""
    image = Image.new("RGB", (400, 300), (242, 240, 232))
    draw = ImageDraw.Draw(image)
    for x, y, radius in ((70, 70, 38), (200, 90, 48), (330, 60, 30)):
        draw.ellipse((x - radius, y - radius, x + radius, y + radius), fill=(214, 40, 40))
    for left, top, side in ((40, 170, 90), (270, 190, 70)):
        draw.rectangle((left, top, left + side, top + side), fill=(29, 78, 216))
    draw.polygon(((200, 165), (155, 265), (245, 265)), fill=(250, 204, 21))
    return image


def evening() -> Image.Image:
    """A low sun over hills and water, as a camera held upright would have taken it."""
    width, height = 360, 480
    image = _gradient(width, height, (64, 52, 110), (250, 150, 70))
    glow = Image.new("RGB", (width, height))
    ImageDraw.Draw(glow).ellipse((150, 200, 270, 320), fill=(255, 214, 120))
    image = ImageChops.screen(image, glow.filter(ImageFilter.GaussianBlur(18)))
    draw = ImageDraw.Draw(image)
    draw.ellipse((180, 230, 240, 290), fill=(255, 240, 200))
    for base, wave, colour in ((300, 26, (84, 58, 96)), (330, 16, (48, 38, 66))):
        ridge = [
            (x, round(base - wave * math.sin(x / 47 + base) - 8 * math.sin(x / 13))) for x in range(width)
        ]
        draw.polygon([(0, 360), *ridge, (width - 1, 360)], fill=colour)
    water = image.crop((0, 240, width, 360)).transpose(Image.Transpose.FLIP_TOP_BOTTOM)
    image.paste(water.filter(ImageFilter.GaussianBlur(3)), (0, 360))
    return image


def leaf_sticker() -> Image.Image:
    """A green leaf with soft edges on nothing at all; the hidden colour under the transparency is magenta."""
    mask = Image.new("L", (900, 900))
    draw = ImageDraw.Draw(mask)
    outline = [
        (450 + side * 230 * math.sin(math.pi * step / 60), 100 + 700 * step / 60)
        for side, steps in ((1, range(61)), (-1, range(60, -1, -1)))
        for step in steps
    ]
    draw.polygon(outline, fill=255)
    mask = mask.resize((300, 300), Image.Resampling.LANCZOS)
    colour = Image.new("RGB", mask.size, (255, 0, 255))
    colour.paste((40, 140, 60), (0, 0), mask.point(lambda value: 255 if value else 0))
    ImageDraw.Draw(colour).line((150, 40, 150, 270), fill=(20, 90, 40), width=5)
    colour.putalpha(mask)
    return colour


def draw_all(folder: Path) -> None:
    """Writes the five files, under 300 KB together."""
    folder.mkdir(parents=True, exist_ok=True)
    street_sign().save(folder / "street_sign.jpg", quality=88)
    bar_chart().save(folder / "bar_chart.png", optimize=True)
    shapes().save(folder / "shapes.webp", quality=90)
    leaf_sticker().save(folder / "leaf_sticker.png", optimize=True)
    # Stored lying on its side, with orientation 6 (turn clockwise to view), as phones store upright photos.
    exif = Image.Exif()
    exif[0x0112] = 6
    evening().transpose(Image.Transpose.ROTATE_90).save(folder / "evening.jpg", quality=88, exif=exif)


if __name__ == "__main__":
    draw_all(Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).with_name("pictures"))
