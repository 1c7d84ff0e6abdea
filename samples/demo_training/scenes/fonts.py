"""The fonts that the scenes print with, from Python packages of pure data. Draws nothing.

Those of "test" are of other families than those of "train". Only upright weights that people print signs in.
"""

from __future__ import annotations

import importlib.util
import math
from functools import lru_cache
from pathlib import Path

from PIL import ImageFont

from samples.demo_training.scenes.base import Split

_STEP = 1.05

BUILT_IN = "Pillow"
"""Names the font that Pillow brings along."""

_FACES: dict[Split, tuple[str, ...]] = {
    "train": (
        BUILT_IN,
        "font_source_sans_pro/files/SourceSansPro-Regular.ttf",
        "font_source_sans_pro/files/SourceSansPro-Semibold.ttf",
        "font_source_sans_pro/files/SourceSansPro-Bold.ttf",
        "font_hanken_grotesk/files/HankenGrotesk-Regular.otf",
        "font_hanken_grotesk/files/HankenGrotesk-SemiBold.otf",
        "font_hanken_grotesk/files/HankenGrotesk-Bold.otf",
        "font_manrope/files/Manrope-Regular.ttf",
        "font_manrope/files/Manrope-SemiBold.ttf",
        "font_manrope/files/Manrope-Bold.ttf",
        "font_fredoka_one/files/FredokaOne-Regular.ttf",
        "font_source_serif_pro/files/SourceSerifPro-Regular.ttf",
        "font_source_serif_pro/files/SourceSerifPro-Semibold.ttf",
        "font_source_serif_pro/files/SourceSerifPro-Bold.ttf",
        "matplotlib/mpl-data/fonts/ttf/STIXGeneral.ttf",
        "matplotlib/mpl-data/fonts/ttf/STIXGeneralBol.ttf",
        "matplotlib/mpl-data/fonts/ttf/cmss10.ttf",
        "matplotlib/mpl-data/fonts/ttf/cmb10.ttf",
        "matplotlib/mpl-data/fonts/ttf/cmtt10.ttf",
    ),
    "test": (
        "font_roboto/files/Roboto-Regular.ttf",
        "font_roboto/files/Roboto-Medium.ttf",
        "font_roboto/files/Roboto-Bold.ttf",
        "font_caladea/files/Caladea-Regular.ttf",
        "font_caladea/files/Caladea-Bold.ttf",
        "matplotlib/mpl-data/fonts/ttf/DejaVuSans.ttf",
        "matplotlib/mpl-data/fonts/ttf/DejaVuSans-Bold.ttf",
    ),
}


def faces(split: Split) -> tuple[str, ...]:
    """Names for `load`."""
    return _FACES[split]


def load(face: str, size: float) -> ImageFont.FreeTypeFont:
    """The face near this size in pixels, within 2.5%: opening a font for every size would take longer than drawing.

    Raises ModuleNotFoundError with the way to install it if the font's package is missing.
    """
    return _open(face, round(_STEP ** round(math.log(size, _STEP))))


@lru_cache(maxsize=2048)
def _open(face: str, size: int) -> ImageFont.FreeTypeFont:
    if face == BUILT_IN:
        font = ImageFont.load_default(size)
        if not isinstance(font, ImageFont.FreeTypeFont):
            raise ModuleNotFoundError(
                "Pillow was built without FreeType; `pip install pillow` brings a build with it"
            )
        return font
    return ImageFont.truetype(_path(face), size, layout_engine=ImageFont.Layout.BASIC)


@lru_cache(maxsize=65536)
def glyph(face: str, size: int, letter: str) -> tuple[float, tuple[float, float, float, float]]:
    """How far it moves the pen, and the box of its ink about the pen's place on the baseline."""
    font = _open(face, size)
    return font.getlength(letter), font.getbbox(letter, anchor="ls")


@lru_cache(maxsize=64)
def cap_share(face: str) -> float:
    """Height of a capital as a share of the font's size."""
    _, top, _, bottom = load(face, 200).getbbox("H", anchor="ls")
    return (bottom - top) / 200


@lru_cache(maxsize=64)
def _path(face: str) -> Path:
    package, _, inside = face.partition("/")
    found = importlib.util.find_spec(package)
    if found is None or not found.submodule_search_locations:
        raise ModuleNotFoundError(
            f"the font package {package!r} is missing: pip install 'mm-pipeline[training]'"
        )
    return Path(found.submodule_search_locations[0]) / inside
