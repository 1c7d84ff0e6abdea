"""The training pictures show what their marks say; the splits differ; the same seed draws the same sample."""

from __future__ import annotations

import colorsys
import math
from collections.abc import Iterator

import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image

from samples.demo_training.scenes import fonts, lettering, pictures
from samples.demo_training.scenes.base import Mark, Picture, Sample, Split
from samples.demo_training.scenes.shapes import COLOURS, SHAPES, Shape, paint, shade, spread

SPLITS: tuple[Split, ...] = ("train", "test")
# The names of hues in degrees, with borders in the gaps of the world.
HUES = (
    (15, "red"),
    (45, "orange"),
    (75, "yellow"),
    (180, "green"),
    (255, "blue"),
    (320, "purple"),
    (361, "red"),
)


def samples(split: Split, task: str, count: int) -> Iterator[tuple[Sample, Picture]]:
    """With the first picture of each."""
    module = pictures if task in pictures.TASKS else lettering
    for seed in range(count):
        sample = module.sample(np.random.default_rng(seed), split, turns=1, task=task)
        picture = sample.media[0]
        assert isinstance(picture, Picture)
        yield sample, picture


def shapes_of(picture: Picture) -> list[Mark]:
    return [mark for mark in picture.marks if mark.kind == "shape"]


def everyday_name(rgb: NDArray[np.float64]) -> str:
    hue, saturation, value = colorsys.rgb_to_hsv(*(rgb / 255))
    if saturation < 0.4 or value < 0.25:
        return "white" if value > 0.6 else "black"
    return next(name for limit, name in HUES if hue * 360 < limit)


@pytest.mark.parametrize("split", SPLITS)
def test_colour_at_the_centre_of_a_shape_is_the_one_of_its_mark(split: Split) -> None:
    num_checked = 0
    for _, picture in samples(split, "count", 30):
        for mark in shapes_of(picture):
            left, top, right, bottom = mark.box
            x, y = round((left + right) / 2), round((top + bottom) / 2)
            assert everyday_name(picture.pixels[y - 2 : y + 3, x - 2 : x + 3].mean((0, 1))) == mark.colour
            num_checked += 1
    assert num_checked > 100


@pytest.mark.parametrize("kind", SHAPES)
def test_a_shape_fills_its_box_and_nothing_outside(kind: str) -> None:
    for turn in (0.0, 9.0, -33.0):
        for size in (31.0, 140.0):
            shape = Shape(kind=kind, colour="red", shade=(255, 0, 0), x=150.3, y=140.6, size=size, turn=turn)
            canvas = Image.new("RGB", (300, 300))
            paint(canvas, shape)
            rows, columns = np.nonzero(np.asarray(canvas)[..., 0] > 127)
            found = (columns.min(), rows.min(), columns.max() + 1, rows.max() + 1)
            # The tips of stars and triangles are thinner than a pixel.
            np.testing.assert_allclose(found, shape.box, atol=2.5)
            assert 0.2 < len(rows) / size**2 < 1.0


@pytest.mark.parametrize("split", SPLITS)
def test_shapes_neither_touch_nor_leave_the_picture(split: Split) -> None:
    for _, picture in samples(split, "arithmetic", 30):
        height, width, _ = picture.pixels.shape
        marks = shapes_of(picture)
        for index, mark in enumerate(marks):
            left, top, right, bottom = mark.box
            assert min(left, top) >= 0
            assert right <= width
            assert bottom <= height
            for other in marks[:index]:
                beside = other.box[2] <= left or right <= other.box[0]
                assert beside or other.box[3] <= top or bottom <= other.box[1]


@pytest.mark.parametrize("split", SPLITS)
def test_boxes_of_glyphs_hold_the_ink(split: Split) -> None:
    num_checked = 0
    for sample, picture in samples(split, "word", 70):
        if shapes_of(picture):
            continue
        luma = picture.pixels.astype(np.float64) @ (0.299, 0.587, 0.114)
        ink = np.abs(luma - np.median(luma)) > 42
        inside = np.zeros_like(ink)
        for mark in picture.marks:
            left, top, right, bottom = (round(edge) for edge in mark.box)
            assert ink[top:bottom, left:right].mean() > 0.03, sample.turns[0].answer
            inside[max(0, top - 2) : bottom + 2, max(0, left - 2) : right + 2] = True
        assert ink[inside].sum() >= 0.98 * ink.sum()
        spelt = "".join(mark.name for mark in picture.marks)
        assert sample.turns[0].answer in (f"It says {spelt}.", "There is no word.")
        num_checked += 1
    assert num_checked > 30


@pytest.mark.parametrize("split", SPLITS)
def test_digits_are_tall_enough_to_be_read_once_scaled_down(split: Split) -> None:
    for _, picture in samples(split, "number", 30):
        digits = [mark for mark in picture.marks if mark.name.isdigit()]
        scale = 256 / math.sqrt(picture.pixels.shape[0] * picture.pixels.shape[1])
        assert all((mark.box[3] - mark.box[1]) * scale > 19 for mark in digits)


@pytest.mark.parametrize("task", [*pictures.TASKS, *lettering.TASKS])
def test_the_same_seed_gives_the_same_sample(task: str) -> None:
    for split in SPLITS:
        for (sample, _), (again, _) in zip(samples(split, task, 4), samples(split, task, 4), strict=True):
            assert sample.turns == again.turns
            for medium, same in zip(sample.media, again.media, strict=True):
                assert isinstance(medium, Picture)
                assert isinstance(same, Picture)
                assert medium.marks == same.marks
                np.testing.assert_array_equal(medium.pixels, same.pixels)


def test_pictures_have_many_sizes_within_the_limits() -> None:
    sizes = [picture.pixels.shape[:2] for _, picture in samples("train", "colour", 60)]
    assert len(set(sizes)) > 40
    assert min(min(size) for size in sizes) >= 120
    assert max(max(size) for size in sizes) <= 1000
    assert max(max(size) / min(size) for size in sizes) < 2.05


def test_test_split_has_shades_fonts_and_sizes_of_its_own() -> None:
    rng = np.random.default_rng(0)
    for colour in COLOURS:
        train, test = ({shade(rng, colour, split) for _ in range(300)} for split in SPLITS)
        assert not train & test
        # The new shades lie among the known ones, not beyond them.
        for channel in range(3):
            low, high = (edge(rgb[channel] for rgb in train) for edge in (min, max))
            assert low - 25 <= min(rgb[channel] for rgb in test)
            assert max(rgb[channel] for rgb in test) <= high + 25
    assert not set(fonts.faces("train")) & set(fonts.faces("test"))
    train_sizes, test_sizes = (np.array([spread(rng, 0, 1, split) for _ in range(500)]) for split in SPLITS)
    assert np.abs(train_sizes[:, None] - test_sizes).min() > 0.003
    assert train_sizes.min() < test_sizes.min() < test_sizes.max() < train_sizes.max()


def test_a_missing_font_package_says_how_to_install_it() -> None:
    with pytest.raises(ModuleNotFoundError, match=r"font_nowhere.*mm-pipeline\[training\]"):
        fonts.load("font_nowhere/files/Nowhere.ttf", 20)
