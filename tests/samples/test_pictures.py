"""The committed pictures are what the committed script draws."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from samples.make_pictures import draw_all

PICTURES = Path(__file__).parents[2] / "samples" / "pictures"
NAMES = sorted(path.name for path in PICTURES.iterdir())

# JPEG and WebP decoders of other builds round differently; a changed drawing is far outside this.
MAX_MEAN_DIFFERENCE = 1.0


@pytest.fixture(scope="module")
def redrawn(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("pictures")
    draw_all(folder)
    return folder


def test_no_picture_is_missing_or_left_over(redrawn: Path) -> None:
    assert sorted(path.name for path in redrawn.iterdir()) == NAMES
    assert sum(path.stat().st_size for path in PICTURES.iterdir()) < 300_000


@pytest.mark.parametrize("name", NAMES)
def test_script_draws_the_committed_pixels(redrawn: Path, name: str) -> None:
    with Image.open(PICTURES / name) as committed, Image.open(redrawn / name) as drawn:
        assert drawn.mode == committed.mode
        assert drawn.getexif().get(0x0112) == committed.getexif().get(0x0112)
        ours, theirs = np.asarray(drawn, dtype=np.int16), np.asarray(committed, dtype=np.int16)
    assert ours.shape == theirs.shape
    assert np.abs(ours - theirs).mean() <= MAX_MEAN_DIFFERENCE


def test_the_pictures_cover_orientation_and_transparency() -> None:
    with Image.open(PICTURES / "evening.jpg") as evening:
        assert evening.getexif()[0x0112] == 6
    with Image.open(PICTURES / "leaf_sticker.png") as sticker:
        assert sticker.mode == "RGBA"
        assert sticker.getpixel((0, 0)) == (255, 0, 255, 0)
