"""What the decoder is taught to know and where to look, against scenes laid out by hand and by the generator."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import numpy as np
import pytest
import torch

from mm_pipeline.prompt import MediaSpan
from samples.demo_training.facts import FACTS, facts_known
from samples.demo_training.labels import COLOURS, IGNORED, SHAPES
from samples.demo_training.looks import Looks, centres_of, units_of
from samples.demo_training.named import Text
from samples.demo_training.scenes import clips, lettering, pictures
from samples.demo_training.scenes.base import Clip, Mark, Picture

GRID = (1, 8, 8)
"""4 x 4 tokens, so that a token is 20 pixels of the pictures here."""
PICTURE_TOKENS = 16


def shape(name: str, colour: str, x: float, y: float) -> Mark:
    return Mark(kind="shape", name=name, colour=colour, box=(x - 5, y - 5, x + 5, y + 5), index=0)


def glyph(name: str, index: int, x: float) -> Mark:
    return Mark(kind="glyph", name=name, colour="red", box=(x - 4, 30, x + 4, 40), index=index)


def picture(*marks: Mark) -> Picture:
    return Picture(pixels=np.zeros((80, 80, 3), np.uint8), marks=marks)


SHAPES_SHOWN = picture(
    shape("circle", "red", 10, 10), shape("circle", "blue", 70, 10), shape("star", "red", 50, 70)
)


def spans(count: int = 1) -> list[MediaSpan]:
    return [
        MediaSpan(
            modality="image", start=index * PICTURE_TOKENS, length=PICTURE_TOKENS, media_index=index, offset=0
        )
        for index in range(count)
    ]


def pieces(count: int, *words: str) -> list[str]:
    return ["<|image_pad|>"] * (count * PICTURE_TOKENS) + list(words)


def known_at(row: torch.Tensor) -> dict[str, str]:
    values = zip(FACTS.items(), row.tolist(), strict=True)
    return {name: options[value] for (name, options), value in values if value != IGNORED}


def looks(
    text: Sequence[str], media: Sequence[Picture], turns: Sequence[tuple[int, int]] = ()
) -> set[tuple[str, int, tuple[int, ...]]]:
    found = Looks(
        Text(text),
        media,
        spans(len(media)),
        turns=turns,
        grids=[GRID] * len(media),
        units=[],
        signs=torch.full((len(text), 2), IGNORED),
    ).all()
    return {(look.kind, look.position, look.at) for look in found}


def test_at_a_word_is_known_what_it_names() -> None:
    text = pieces(1, "How many", " red", " circles", " and", " crosses", "?")
    known = facts_known(Text(text), [SHAPES_SHOWN], [])
    assert known.shape == (len(text), len(FACTS))
    at_red, at_circles, at_crosses = (known_at(known[PICTURE_TOKENS + index]) for index in (1, 2, 4))
    assert at_red["number in the first"] == "2"
    assert {name for name in (*COLOURS, *SHAPES) if at_red[name] == "yes"} == {"red", "circle", "star"}
    assert at_circles["number in the first"] == "1"
    assert at_circles["field"] == "top left"
    assert "field" not in at_red
    assert (at_circles["top left"], at_circles["top right"], at_circles["bottom middle"]) == (
        "yes",
        "no",
        "no",
    )
    assert at_crosses["number in the first"] == "0"
    assert set(at_crosses.values()) == {"0", "no"}
    # Nothing is asked of the picture's own tokens, nor at words that name nothing.
    asked = (known != IGNORED).any(dim=1).nonzero().flatten().tolist()
    assert asked == [PICTURE_TOKENS + index for index in (1, 2, 4)]


def test_shapes_are_numbered_row_by_row() -> None:
    shown = picture(
        shape("star", "red", 50, 70),
        shape("circle", "red", 10, 10),
        shape("circle", "blue", 70, 10),
        # Two in one token are not told apart.
        shape("cross", "red", 8, 50),
        shape("cross", "black", 12, 50),
    )
    centres = centres_of([shown], spans(), [GRID])
    assert {token: (mark.colour, mark.name) for token, mark in centres[0].items()} == {
        0: ("red", "circle"),
        3: ("blue", "circle"),
        14: ("red", "star"),
    }
    known = facts_known(Text(pieces(1, "What?")), [shown], [], centres=centres)
    names = ("nth of all", "nth of its colour", "nth of its kind")
    assert known_at(known[0]) == dict(zip(names, "111", strict=True))
    assert known_at(known[3]) == dict(zip(names, "212", strict=True))
    assert known_at(known[14]) == dict(zip(names, "321", strict=True))


def test_of_two_pictures_only_the_numbers_are_known() -> None:
    text = pieces(2, "Which has more", " circles", "?")
    known = facts_known(Text(text), [SHAPES_SHOWN, picture()], [])
    assert known_at(known[2 * PICTURE_TOKENS + 1]) == {
        "number in the first": "2",
        "number in the second": "0",
    }


def test_where_an_answer_begins_is_known_what_is_printed() -> None:
    text = pieces(1, "Read it.", "\n", "It says", " ", "K", "7", ".")
    shown = picture(glyph("K", 0, 20), glyph("7", 1, 60))
    known = facts_known(Text(text), [shown], [PICTURE_TOKENS + 2])
    found = known_at(known[PICTURE_TOKENS + 1])
    assert found == {"glyph 0": "K", "glyph 1": "7"} | {f"glyph {place}": "none" for place in range(2, 6)}


def test_words_look_at_what_they_name() -> None:
    text = pieces(1, "Is the", " red", " circle", " there", "?")
    found = looks(text, [SHAPES_SHOWN])
    red, circle = PICTURE_TOKENS + 1, PICTURE_TOKENS + 2
    top_left, top_right, bottom = 0, 3, 3 * 4 + 2
    assert found == {
        ("word", red, (top_left, bottom)),
        ("phrase", red, (top_left, bottom)),
        ("word", circle, (top_left, top_right)),
        ("phrase", circle, (top_left,)),
    }


def test_a_word_looks_at_both_pictures() -> None:
    found = looks(pieces(2, "More", " stars", "?"), [SHAPES_SHOWN, picture(shape("star", "black", 70, 70))])
    position, at = 2 * PICTURE_TOKENS + 1, (3 * 4 + 2, PICTURE_TOKENS + 15)
    assert found == {("word", position, at), ("phrase", position, at)}


def test_before_a_shape_of_an_answer_it_is_looked_at_and_before_one_of_a_question_not() -> None:
    text = pieces(1, "A", " red", " star", "?", "\n", "A", " blue", " circle", ".")
    first, end = PICTURE_TOKENS + 5, PICTURE_TOKENS + 9
    found = looks(text, [SHAPES_SHOWN], [(first, end)])
    assert {look for look in found if look[0] == "next"} == {("next", first, (3,))}


def test_letters_of_a_claim_look_at_those_that_are_printed() -> None:
    shown = picture(glyph("K", 0, 10), glyph("7", 1, 70))
    found = looks(pieces(1, "Is", " ", "K", "1", " or", " ", "K", "I", "T", "?"), [shown])
    first, second = PICTURE_TOKENS + 6, PICTURE_TOKENS + 7
    # "K1" is neither a word nor a number, and there is no third letter.
    assert found == {("phrase", first, (4,)), ("phrase", second, (7,))}


def test_letters_are_looked_at_in_turn() -> None:
    text = pieces(1, "The", " last", " letter", "?", "It says", " ", "K", "7", ".")
    found = looks(text, [picture(glyph("K", 0, 10), glyph("7", 1, 70))])
    first = PICTURE_TOKENS + 5
    assert found == {
        ("phrase", PICTURE_TOKENS + 2, (4 + 3,)),
        ("next", first, (4,)),
        ("next", first + 1, (4 + 3,)),
    }


def test_keys_are_looked_at_where_they_are_the_last_that_was_heard() -> None:
    heard = [0, 1, 1, 2, 2, 3]
    text = ["<|audio_pad|>"] * len(heard) + ["Which?", "\n", "5", "*", "5", "<|im_end|>", "6", "<|im_end|>"]
    signs = torch.full((len(text), 2), IGNORED)
    signs[: len(heard), 0] = torch.tensor(heard)
    found = Looks(Text(text), [], [], turns=[(8, 12), (12, 14)], grids=[], units=[], signs=signs).all()
    # The second answer names one of three, and does not say which.
    assert [(look.kind, look.position, look.at) for look in found] == [
        ("next", 7, (1, 2)),
        ("next", 8, (3, 4)),
        ("next", 9, (5,)),
    ]


def clip_spans(units: int) -> list[MediaSpan]:
    return [
        MediaSpan(modality="video", start=2 * index, length=2, media_index=0, offset=2 * index)
        for index in range(units)
    ]


@pytest.mark.parametrize("kind", ["colours", "appears", "blinks", "direction"])
def test_what_was_seen_of_a_video_only_grows_until_all_is_known(kind: str) -> None:
    for seed in range(20):
        (clip,) = clips.sample(np.random.default_rng(seed), "train", turns=1, task=kind).media
        assert isinstance(clip, Clip)
        num_units = int(clip.duration_s)
        units = units_of(clip_spans(num_units), [second + 0.5 for second in range(num_units)])
        text = ["<|video_pad|>"] * (2 * num_units) + ["\n", "Yes."]
        known = facts_known(Text(text), [clip], [len(text) - 1], units=units)
        rows = [known_at(known[position]) for position, _ in units]
        for before, after in pairwise(rows):
            for name in before.keys() - {"blinks"}:
                assert before[name] in ("none", after[name]) or name.endswith(" now")
            assert int(before["blinks"]) <= int(after["blinks"])
        at_the_end = known_at(known[len(text) - 2])
        assert at_the_end == {name: value for name, value in rows[-1].items() if not name.endswith(" now")}
        for row in rows:
            named = [row[f"colour {number}"] for number in range(4) if row[f"colour {number}"] != "none"]
            assert row.get("colour now", "none") in {"none", *named[-1:]}


def test_colours_of_a_video_are_looked_at_while_they_are_shown() -> None:
    checked = 0
    for seed in range(20):
        (clip,) = clips.sample(np.random.default_rng(seed), "train", turns=1, task="colours").media
        assert isinstance(clip, Clip)
        num_units = int(clip.duration_s)
        times = [second + 0.5 for second in range(num_units)]
        units = units_of(clip_spans(num_units), times)
        facts = clip.facts(float("inf"))
        entries = [number for number in range(4) if facts[f"second {number}"] != "none"]
        for number in entries:
            begin = int(facts[f"second {number}"])
            end = int(facts[f"second {number + 1}"]) if number + 1 in entries else num_units
            text = ["<|video_pad|>"] * (2 * num_units) + ["Is it", f" {facts[f'colour {number}']}", "?"]
            signs = torch.full((len(text), 2), IGNORED)
            found = Looks(
                Text(text),
                [clip],
                clip_spans(num_units),
                turns=[],
                grids=[(num_units, 2, 4)],
                units=units,
                signs=signs,
            ).all()
            assert [(look.kind, look.at) for look in found if look.kind != "word"] == [
                ("phrase", tuple(2 * second + 1 for second in range(begin, end)))
            ]
            checked += 1
    assert checked > 40


def test_a_shape_that_moves_is_followed() -> None:
    """From part to part of a video it is looked at further along its way, and known to be there."""
    followed = 0
    for seed in range(30):
        (clip,) = clips.sample(np.random.default_rng(seed), "train", turns=1, task="direction").media
        assert isinstance(clip, Clip)
        way = clip.facts(float("inf"))["way"]
        if way == "none":
            continue
        num_units, rows, columns = int(clip.duration_s), 8, 8
        size = rows * columns // 4
        spans = [
            MediaSpan(modality="video", start=size * index, length=size, media_index=0, offset=size * index)
            for index in range(num_units)
        ]
        units = units_of(spans, [second + 0.5 for second in range(num_units)])
        text = ["<|video_pad|>"] * (size * num_units)
        signs = torch.full((len(text), 2), IGNORED)
        grids = [(num_units, rows, columns)]
        found = Looks(Text(text), [clip], spans, turns=[], grids=grids, units=units, signs=signs).all()
        assert [(look.kind, look.position) for look in found] == [("word", end) for end, _ in units]
        # The shape that moves comes first; another one stands.
        places = [divmod(look.at[0] - size * index, columns // 2) for index, look in enumerate(found)]
        known = facts_known(Text(text), [clip], [], units=units)
        told = [known_at(known[end]) for end, _ in units]
        sideways, back = way in ("left", "right"), way in ("left", "up")
        for line in (
            [place[sideways] for place in places],
            [int(row["across now" if sideways else "down now"]) for row in told],
        ):
            assert line == sorted(line, reverse=back)
            assert line[0] != line[-1]
        followed += 1
    assert followed > 15


@pytest.mark.parametrize("scenes", [pictures, lettering])
def test_counts_at_words_are_those_of_the_answers(scenes) -> None:
    """ "How many red circles are there?" is answered with what is known at "circles"."""
    checked = 0
    for seed in range(150):
        sample = scenes.sample(np.random.default_rng(seed), "train", turns=8)
        for turn in sample.turns:
            if turn.task != "count" or not turn.answer[0].isdigit() or len(sample.media) != 1:
                continue
            words = [word for word in turn.question.replace("?", " ?").replace(".", " .").split(" ") if word]
            text = pieces(1, *(f" {word}" for word in words))
            known = facts_known(Text(text), sample.media, [])
            asked = [row for row in known if (row != IGNORED).any()]
            assert known_at(asked[-1])["number in the first"] == turn.answer.rstrip("."), turn
            checked += 1
    assert checked or scenes is lettering
