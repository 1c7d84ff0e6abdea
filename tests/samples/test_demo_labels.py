"""Dense labels of scenes made by hand, and of pictures as the server cuts them."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from samples.demo_training.labels import (
    COLOURS,
    GLYPHS,
    IGNORED,
    MOST_SIGNS,
    SHAPES,
    SIGNS,
    picture_labels,
    signs_heard,
    sound_labels,
)
from samples.demo_training.scenes import pictures, sounds
from samples.demo_training.scenes.base import Mark, Picture, Sound, Tone
from samples.demo_training.scenes.tones import KEYS
from samples.demo_training.stages.sound import mel_of, num_rows
from samples.demo_training.stages.vision import patches_of


def mark(kind, name: str, box: tuple[float, float, float, float], index: int = 0) -> Mark:
    return Mark(kind=kind, name=name, colour="red", box=box, index=index)


def tone(kind, name: str, start_s: float, end_s: float, hz: tuple[float, float], level: float = 0.1) -> Tone:
    return Tone(kind=kind, name=name, start_s=start_s, end_s=end_s, start_hz=hz[0], end_hz=hz[1], level=level)


def test_a_shape_and_a_letter() -> None:
    """Two rows of four tokens, 32 x 32 pixels each."""
    picture = Picture(
        pixels=np.zeros((64, 128, 3), np.uint8),
        marks=(
            mark("shape", "star", (34, 2, 62, 30)),
            mark("glyph", "B", (100, 40, 110, 60), index=1),
            mark("glyph", "7", (112, 40, 124, 60), index=2),
        ),
    )
    labels = picture_labels(picture, (1, 4, 8))
    star, seven, letter = 1 + SHAPES.index("star"), 1 + GLYPHS.index("7"), 1 + GLYPHS.index("B")
    assert labels.shape.tolist() == [0, star, 0, 0, 0, 0, 0, 0]
    red = COLOURS.index("red")
    assert labels.colour.tolist() == [IGNORED, red, *[IGNORED] * 5, red]
    # Both letters are in the last token, each at its place in the word.
    assert labels.glyph[7].tolist() == [0, letter, seven, 0, 0, 0]
    assert not labels.glyph[:7].any()
    assert labels.size[1].item() == pytest.approx(28 / 64)
    assert labels.size.isnan().sum() == 7
    assert labels.place[:, 0].tolist() == [-1] * 4 + [1] * 4
    torch.testing.assert_close(labels.place[:4, 1], torch.tensor([-1, -1 / 3, 1 / 3, 1]))
    # A token's four patches side by side: above left, above right, below left, below right.
    assert labels.patch_shape.tolist() == [0] * 4 + [star] * 4 + [0] * 24
    assert labels.patch_glyph.tolist() == [0] * 28 + [letter, seven, letter, seven]


def test_marks_outside_and_long_words_break_nothing() -> None:
    marks = (mark("shape", "circle", (-8, -8, 4, 4)), mark("glyph", "A", (130, 40, 170, 90), index=6))
    labels = picture_labels(Picture(pixels=np.zeros((64, 128, 3), np.uint8), marks=marks), (1, 4, 8))
    assert labels.shape[0] == 1 + SHAPES.index("circle")
    # The seventh letter has no place of its own.
    assert not labels.glyph.any()
    assert labels.colour[7] == COLOURS.index("red")


@pytest.mark.parametrize("size", [(256, 256), (192, 320), (500, 400)])
def test_patches_are_in_the_order_of_the_pixels(size: tuple[int, int]) -> None:
    """White squares on black: patches that the labels call covered are white, the others are not."""
    height, width = size
    pixels, marks = np.zeros((height, width, 3), np.uint8), []
    for x, y in ((0.15, 0.2), (0.6, 0.1), (0.4, 0.7)):
        left, top, side = round(x * width), round(y * height), round(0.25 * min(size))
        pixels[top : top + side, left : left + side] = 255
        marks.append(mark("shape", "square", (left, top, left + side, top + side)))
    picture = Picture(pixels=pixels, marks=tuple(marks))
    image = patches_of(picture)
    covered = picture_labels(picture, image.grid_thw).patch_shape > 0
    light = image.patches.mean(dim=1)
    middle = (image.patches.max() + image.patches.min()) / 2
    assert covered.sum() > 8
    assert ((light > middle) == covered).float().mean() > 0.9


def test_drawn_shapes_are_labelled_where_they_are() -> None:
    for seed in range(5):
        (picture,) = pictures.sample(np.random.default_rng(seed), "train", 1, "describe").media
        assert isinstance(picture, Picture)
        labels = picture_labels(picture, patches_of(picture).grid_thw)
        shapes = [shape.name for shape in picture.marks]
        assert sorted(SHAPES[kind - 1] for kind in labels.shape[labels.shape > 0]) == sorted(shapes)
        assert (labels.size[labels.shape > 0] > 0.08).all()


def test_keys_a_sweep_and_a_beep() -> None:
    five, nine = 1 + KEYS.index("5"), 1 + KEYS.index("9")
    sound = Sound(
        samples=np.zeros(24_000, np.float32),
        tones=(
            # Rows are 40 ms: half of row 2, rows 3 to 6, half of row 7; most of rows 8 and 9.
            tone("dtmf", "5", 0.10, 0.30, (770, 770)),
            tone("dtmf", "9", 0.33, 0.395, (852, 852), level=0.01),
            tone("sweep", "up", 0.48, 0.64, (300, 1200)),
            tone("beep", "", 0.72, 0.80, (1200, 1200)),
        ),
    )
    labels = sound_labels(sound, 25)
    asked = [0, 0, IGNORED, five, five, five, five, IGNORED, nine, nine]
    assert labels.key.tolist() == asked + [0] * 15
    torch.testing.assert_close(
        labels.heard[:12], torch.tensor([0, 0, 0.5, 1, 1, 1, 1, 0.5, 0.75, 0.875, 0, 0])
    )
    assert labels.starts.nonzero().flatten().tolist() == [2, 8, 12, 18]
    assert labels.ends.nonzero().flatten().tolist() == [7, 9, 16, 20]
    assert labels.rise.tolist() == [IGNORED] * 12 + [3] * 4 + [IGNORED] * 2 + [2] * 2 + [IGNORED] * 5
    # Two octaves in four rows, read in the middle of each; 600 Hz is 0, and keys have no pitch.
    torch.testing.assert_close(labels.pitch[12:16], torch.tensor([-0.75, -0.25, 0.25, 0.75]))
    torch.testing.assert_close(labels.pitch[18:20], torch.ones(2))
    assert labels.pitch[:12].isnan().all()
    # 20 dB a unit.
    torch.testing.assert_close(labels.level[[3, 8, 12]], torch.tensor([-1.0, -2.0, -1.0]))
    assert labels.level[[0, 2, 11]].isnan().all()


def test_falling_and_running_out() -> None:
    sound = Sound(
        samples=np.zeros(2400, np.float32), tones=(tone("sweep", "down", 0.04, 0.4, (900.0, 300.0)),)
    )
    labels = sound_labels(sound, 3)
    assert labels.rise.tolist() == [IGNORED, 1, 1]
    assert labels.starts.tolist() == [0, 1, 0]
    assert not labels.ends.any()
    assert math.isclose(labels.heard.sum(), 2, rel_tol=1e-5)


@pytest.mark.parametrize("num_samples", [24_000, 24_239, 24_240, 30_000])
def test_rows_are_as_many_as_the_codes(exported, num_samples: int) -> None:
    mel = mel_of(Sound(samples=np.zeros(num_samples, np.float32)))
    with torch.no_grad():
        assert num_rows(len(mel)) == len(exported.tokenizer(mel))


def sound_of(*tones: Tone) -> Sound:
    return Sound(samples=np.zeros(0, np.float32), tones=tones)


def heard_by_part(sound: Sound, num_parts: int, part_s: float) -> list[tuple[int, str]]:
    """Numbers of signs, and the last one's name or ""."""
    found = signs_heard(sound, num_parts, part_s).tolist()
    return [(number, SIGNS[sign] if sign != IGNORED else "") for number, sign in found]


def test_keys_are_heard_when_they_end() -> None:
    hz = (697.0, 697.0)
    keys = sound_of(
        tone("dtmf", "4", 0.05, 0.25, hz), tone("dtmf", "#", 0.3, 0.5, hz), tone("dtmf", "4", 0.52, 0.58, hz)
    )
    assert heard_by_part(keys, 4, 0.2) == [(0, ""), (1, "4"), (3, "4"), (3, "4")]
    assert heard_by_part(keys, 3, 0.25) == [(1, "4"), (2, "#"), (3, "4")]
    assert heard_by_part(sound_of(), 2, 0.2) == [(0, ""), (0, "")]


def test_a_letter_counts_when_it_cannot_go_on() -> None:
    """A dash and a dot, dots of 0.1 s: N from 0.05 to 0.55 s; then T from 0.85 to 1.15 s."""
    hz = (600.0, 600.0)
    letters = sound_of(
        tone("morse", "-", 0.05, 0.35, hz),
        tone("morse", ".", 0.45, 0.55, hz),
        tone("morse", "-", 0.85, 1.15, hz),
    )
    assert heard_by_part(letters, 14, 0.1) == (
        [(0, "")] * 3
        + [(0, "code -")] * 2
        + [(0, "code -.")] * 2
        + [(1, "N")] * 4
        + [(1, "code -")] * 2
        + [(2, "T")]
    )


def test_beeps_are_counted_without_names() -> None:
    hz = (600.0, 600.0)
    beeps = sound_of(*(tone("beep", "", 0.1 * number, 0.1 * number + 0.05, hz) for number in range(20)))
    heard = heard_by_part(beeps, 20, 0.1)
    assert heard == [(min(number, MOST_SIGNS), "") for number in range(1, 21)]


@pytest.mark.parametrize(
    ("task", "words"), [("loudness", {"loud": "+", "soft": "-"}), ("pitch", {"high": "^", "low": "v"})]
)
def test_beeps_that_differ_have_names_from_then_on(task: str, words: dict[str, str]) -> None:
    num_named = 0
    for seed in range(30):
        sample = sounds.sample(np.random.default_rng(seed), "train", turns=1, task=task)
        (sound,) = sample.media
        wanted = [
            words[word] for word in sample.turns[0].answer.lower().rstrip(".").split(", ") if word in words
        ]
        names: list[str] = []
        for number, sign in signs_heard(sound, int(len(sound.samples) / 240) + 100, 0.01).tolist():
            if number > len(names):
                names.append(SIGNS[sign] if sign != IGNORED else "")
        differ = next((index for index, name in enumerate(names) if name), len(names))
        assert all(names[differ:])
        if len(wanted) == len(names):
            assert names[differ:] == wanted[differ:]
            assert len(set(wanted[:differ])) <= 1
            num_named += 1
    assert num_named > 5


@pytest.mark.parametrize("task", ["dtmf", "morse"])
def test_what_is_heard_in_the_end_is_the_answer(task: str) -> None:
    for seed in range(20):
        sample = sounds.sample(np.random.default_rng(seed), "train", turns=1, task=task)
        (sound,) = sample.media
        seconds = len(sound.samples) / 24_000 + 1
        said = ""
        for number, sign in signs_heard(sound, int(seconds / 0.01), 0.01).tolist():
            if number > len(said):
                assert number == len(said) + 1
                said += SIGNS[sign]
        assert said == sample.turns[0].answer
