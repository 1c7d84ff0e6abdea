"""Every answer about a training picture follows from its marks alone, and is worded as the model can say it."""

from __future__ import annotations

import re
from collections.abc import Iterator

import numpy as np
import pytest

from samples.demo_training.scenes import lettering, pictures
from samples.demo_training.scenes.base import Mark, Picture, Sample, Split
from samples.demo_training.scenes.shapes import COLOURS, SHAPES
from samples.demo_training.scenes.words import WORDS

NUMBERS = ("no", "one", "two", "three", "four", "five", "six", "seven")
COLOUR = f"(?:{'|'.join(COLOURS)})"
KIND = f"(?:{'|'.join(SHAPES)})"
GROUP = f"(?:{COLOUR} )?(?:shapes?|{KIND}(?:e?s)?)"
THING = f"(?:{COLOUR} )?{KIND}"
WHOLE = f"an? {COLOUR} {KIND}"

# Every answer of the two families. What is not here must not be said.
ANSWERS = re.compile(
    "|".join(
        (
            f"(?:{WHOLE}, )?(?:{WHOLE} and )?{WHOLE}",
            f"{COLOUR}|an? {KIND}|the {COLOUR} {KIND}",
            r"\d|yes|no|nothing",
            "at the (?:top|bottom)(?: left| right)?|on the (?:left|right)|in the middle",
            f"there is no (?:{THING}|{COLOUR} shape|text|number|word)",
            f"more {GROUP}|the same number",
            r"\d+ [+-] \d+ = \d+",
            "the first|the second|both|neither|both have the same number|nothing differs",
            f"the {KIND} is {COLOUR} in the first picture and {COLOUR} in the second",
            f"the {COLOUR} shape is an? {KIND} in the first picture and an? {KIND} in the second",
            f"the {COLOUR} {KIND} is only in the (?:first|second) picture",
            "it says (?:[a-z]{3,6}|[0-9]{1,5})|[a-z]|a word|a number",
        )
    )
)


def samples(split: Split, task: str, count: int, turns: int = 4) -> Iterator[Sample]:
    module = pictures if task in pictures.TASKS else lettering
    for seed in range(count):
        yield module.sample(np.random.default_rng(seed), split, turns=turns, task=task)


def picture_of(sample: Sample, at: int = 0) -> Picture:
    picture = sample.media[at]
    assert isinstance(picture, Picture)
    return picture


def matching(picture: Picture, words: str) -> list[Mark]:
    """The shapes that fit "shapes", "red shapes", "crosses", "red circle"."""
    names = [re.sub(r"(?<=ss)es$|(?<!s)s$", "", word) for word in words.split()]
    shapes = [mark for mark in picture.marks if mark.kind == "shape"]
    return [mark for mark in shapes if all(name in (mark.name, mark.colour, "shape") for name in names)]


def place(picture: Picture, mark: Mark) -> tuple[float, float]:
    """Of its centre, as shares of the picture."""
    height, width, _ = picture.pixels.shape
    left, top, right, bottom = mark.box
    return (left + right) / 2 / width, (top + bottom) / 2 / height


def whole_name(mark: Mark) -> str:
    return f"{'an' if mark.colour == 'orange' else 'a'} {mark.colour} {mark.name}"


def describe(picture: Picture, question: str) -> str:
    names = [whole_name(mark) for mark in sorted(picture.marks, key=lambda mark: place(picture, mark))]
    return " and ".join(part for part in (", ".join(names[:-1]), names[-1]) if part)


def colour(picture: Picture, question: str) -> str:
    kind = re.findall(KIND, question)[0]
    found = matching(picture, kind)
    assert len(found) < 2
    return found[0].colour if found else f"there is no {kind}"


def kind(picture: Picture, question: str) -> str:
    name = re.findall(COLOUR, question)[0]
    found = matching(picture, name)
    assert len(found) < 2
    return f"a {found[0].name}" if found else f"there is no {name} shape"


def count(picture: Picture, question: str) -> str:
    return str(len(matching(picture, re.findall(GROUP, question)[0])))


def where(picture: Picture, question: str) -> str:
    words = re.findall(THING, question)[0]
    found = matching(picture, words)
    assert len(found) < 2
    if not found:
        return f"there is no {words}"
    x, y = place(picture, found[0])
    across, down = ("left", "", "right")[int(3 * x)], ("top", "", "bottom")[int(3 * y)]
    if down:
        return f"at the {down} {across}".strip()
    return f"on the {across}" if across else "in the middle"


def relation(picture: Picture, question: str) -> str:
    words = re.findall(THING, question)[0]
    found = matching(picture, words)
    assert len(found) < 2
    if not found:
        return f"there is no {words}"
    side = re.findall("left of|right of|above|below", question)[0]
    axis, sign = {"left of": (0, -1), "right of": (0, 1), "above": (1, -1), "below": (1, 1)}[side]
    own = place(picture, found[0])[axis]
    beside = [mark for mark in picture.marks if sign * (place(picture, mark)[axis] - own) > 0.05]
    assert len(beside) < 2
    return whole_name(beside[0]) if beside else "nothing"


def compare(picture: Picture, question: str) -> str:
    said = re.findall(f"({COLOUR}|{KIND}e?s) or ({GROUP})", question)[0]
    numbers = [len(matching(picture, words)) for words in said]
    if numbers[0] == numbers[1]:
        return "the same number"
    more = said[numbers[1] > numbers[0]]
    return f"more {more}{' shapes' if more in COLOURS else ''}"


TRUTHS = {
    "describe": describe,
    "colour": colour,
    "kind": kind,
    "count": count,
    "where": where,
    "relation": relation,
    "compare": compare,
}


@pytest.mark.parametrize("split", ["train", "test"])
@pytest.mark.parametrize("task", TRUTHS)
def test_answers_follow_from_the_marks(split: Split, task: str) -> None:
    for sample in samples(split, task, 20):
        for turn in sample.turns:
            if turn.task in TRUTHS:
                expected = TRUTHS[turn.task](picture_of(sample), turn.question)
                assert turn.answer.lower() == f"{expected}.", turn.question


def is_true(picture: Picture, question: str) -> bool | None:
    """Of a question for yes or no; None where it is about sizes."""
    if said := re.search(rf"\ban? ({THING})\b", question):
        return bool(matching(picture, said[1]))
    if said := re.search(rf"({THING}) (?:lie |is )?(left of|right of|above|below) the ({THING})", question):
        first, second = (place(picture, matching(picture, words)[0]) for words in (said[1], said[3]))
        axis = said[2] in ("above", "below")
        further = first[axis] - second[axis]
        return further > 0.04 if said[2] in ("right of", "below") else further < -0.04
    if said := re.search(rf"({KIND}) (?:look |is )?({COLOUR})\?", question):
        return matching(picture, said[1])[0].colour == said[2]
    if said := re.search(f"more ({GROUP}) than ({GROUP})", question):
        return len(matching(picture, said[1])) > len(matching(picture, said[2]))
    if said := re.search(rf"({'|'.join(NUMBERS)}) ({GROUP})", question):
        return len(matching(picture, said[2])) == NUMBERS.index(said[1])
    assert re.search("larger|bigger|smaller", question), question
    return None


@pytest.mark.parametrize("split", ["train", "test"])
def test_yes_and_no_follow_from_the_marks_and_come_as_often(split: Split) -> None:
    found = [(sample.turns[0], picture_of(sample)) for sample in samples(split, "yesno", 80, turns=1)]
    for turn, picture in found:
        truth = is_true(picture, turn.question)
        assert truth is None or turn.answer == ("Yes." if truth else "No."), turn.question
    assert 0.35 < sum(turn.answer == "Yes." for turn, _ in found) / len(found) < 0.65


@pytest.mark.parametrize("split", ["train", "test"])
def test_the_largest_and_the_smallest_stand_out(split: Split) -> None:
    for sample in samples(split, "size", 30, turns=1):
        (turn,), picture = sample.turns, picture_of(sample)
        spans = {mark: max(mark.box[2] - mark.box[0], mark.box[3] - mark.box[1]) for mark in picture.marks}
        order = sorted(spans, key=lambda mark: spans[mark], reverse="smallest" not in turn.question)
        assert turn.answer == f"The {order[0].colour} {order[0].name}."
        ratio = spans[order[0]] / spans[order[1]]
        # A turned square spans more than it is wide.
        assert max(ratio, 1 / ratio) > 1.08


@pytest.mark.parametrize("split", ["train", "test"])
def test_sums_are_right_and_begin_with_what_is_in_the_picture(split: Split) -> None:
    for sample in samples(split, "arithmetic", 50, turns=1):
        (turn,) = sample.turns
        first, sign, second, total = turn.answer.removesuffix(".").replace("= ", "").split()
        assert int(total) == int(first) + (int(second) if sign == "+" else -int(second))
        counted = {
            str(len(matching(picture_of(sample), words))) for words in re.findall(GROUP, turn.question)
        }
        assert first in counted, turn
        words = re.findall(r"\w+", turn.question)
        named = {str(NUMBERS.index(word)) for word in words if word in NUMBERS} | set(words)
        assert second in counted | named, turn


@pytest.mark.parametrize("split", ["train", "test"])
@pytest.mark.parametrize("task", ["more", "in_which"])
def test_answers_about_two_pictures_follow_from_the_marks(split: Split, task: str) -> None:
    for sample in samples(split, task, 25, turns=1):
        (turn,) = sample.turns
        words = re.findall(GROUP, turn.question)[0]
        first, second = (len(matching(picture_of(sample, at), words)) for at in (0, 1))
        if task == "in_which":
            first, second = min(first, 1), min(second, 1)
        equal = "Both have the same number." if task == "more" else "Both." if first else "Neither."
        expected = equal if first == second else "The first." if first > second else "The second."
        assert turn.answer == expected, turn.question


@pytest.mark.parametrize("split", ["train", "test"])
def test_differences_are_in_the_marks(split: Split) -> None:
    for sample in samples(split, "difference", 35, turns=1):
        (turn,) = sample.turns
        first, second = (
            {(mark.colour, mark.name, mark.box) for mark in picture_of(sample, at).marks} for at in (0, 1)
        )
        gone, new = ([mark[:2] for mark in marks] for marks in (first - second, second - first))
        said = re.findall(f"{COLOUR}|{KIND}", turn.answer)
        if turn.answer in ("Yes.", "Nothing differs."):
            assert first == second
        elif turn.answer == "No.":
            assert first != second
        elif " only " in turn.answer:
            assert (gone, new) == (([tuple(said)], []) if "first" in turn.answer else ([], [tuple(said)]))
        elif said[0] in COLOURS:
            assert (gone, new) == ([(said[0], said[1])], [(said[0], said[2])])
        else:
            assert (gone, new) == ([(said[1], said[0])], [(said[2], said[0])])


def test_dialogues_have_an_opening_and_a_question_that_leans_on_it() -> None:
    for sample in samples("train", "dialogue", 20, turns=1):
        assert 2 <= len(sample.turns) <= 3
        assert {turn.task for turn in sample.turns} == {"dialogue"}


@pytest.mark.parametrize("split", ["train", "test"])
def test_what_is_read_is_what_is_printed(split: Split) -> None:
    for sample in samples(split, "says", 25, turns=6):
        glyphs = [mark for mark in picture_of(sample).marks if mark.kind == "glyph"]
        text = "".join(mark.name for mark in glyphs)
        assert split == "train" or text.isdigit() or text in WORDS
        for turn in sample.turns:
            if turn.task == "says":
                claimed = re.findall(r"\b[A-Z0-9]+\b", turn.question)
                assert turn.answer == ("Yes." if claimed == [text] else "No.")
            elif turn.task == "ink":
                assert turn.answer.lower() == f"{glyphs[0].colour}."
            elif turn.task == "glyph":
                at = {"first": 0, "second": 1, "third": 2, "last": -1}
                assert turn.answer == f"{next(text[at[word]] for word in at if word in turn.question)}."
            elif turn.task == "sort":
                assert turn.answer == ("A number." if text.isdigit() else "A word.")


@pytest.mark.parametrize("task", [*pictures.TASKS, *lettering.TASKS])
def test_answers_have_one_wording_and_no_question_comes_twice(task: str) -> None:
    for split in ("train", "test"):
        for sample in samples(split, task, 12):
            assert sample.turns[0].task == task
            assert len({turn.question for turn in sample.turns}) == len(sample.turns)
            for turn in sample.turns:
                assert turn.answer[0].isupper() or turn.answer[0].isdigit()
                assert ANSWERS.fullmatch(turn.answer.removesuffix(".").lower()), turn


def test_words_are_few_enough_for_a_small_tokenizer() -> None:
    words: set[str] = set()
    for task in (*pictures.TASKS, *lettering.TASKS):
        for sample in samples("train", task, 8):
            said = " ".join(turn.question + " " + turn.answer for turn in sample.turns)
            words |= set(re.findall("[a-z']+", re.sub(r"\b[A-Z]{2,}\b", "", said).lower()))
    assert len(words) < 220, sorted(words)
