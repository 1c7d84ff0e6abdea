"""Pictures with a printed number or word, alone or beside shapes: the "reading" family.

What is read is answered in capitals and digits, whatever case it is printed in.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TypeAlias

import numpy as np

from samples.demo_training.scenes import layouts, printing, questions, wording
from samples.demo_training.scenes.base import Mark, Sample, Split, Turn
from samples.demo_training.scenes.shapes import COLOURS, Shape, paint, pick, shade, spread
from samples.demo_training.scenes.words import WORDS

_LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
_DIGITS = "0123456789"
_SHARE_RANDOM_LETTERS = 0.25
_SHARE_ABSENT = 0.1
_BESIDE = ("colour", "kind", "count", "where", "yesno")


@dataclass(frozen=True, kw_only=True)
class Print:
    """What is printed, in capitals. is_word: false for numbers and for letters that make no word."""

    text: str
    colour: str
    is_number: bool
    is_word: bool


Task: TypeAlias = Callable[[np.random.Generator, Print], tuple[str, str] | None]

_ANY = (
    "What does it say?",
    "What is written here?",
    "Read the text.",
    "What does the text say?",
    "What is printed in the picture?",
    "What can you read?",
    "What does the sign say?",
)
_NUMBER = (
    "What number is printed?",
    "Which number do you see?",
    "Read the number.",
    "What is the number?",
    "What number does the picture show?",
    "Which number is written here?",
)
_WORD = (
    "What word is printed?",
    "Which word do you see?",
    "Read the word.",
    "What is the word?",
    "What word does the picture show?",
    "Which word is written here?",
)
_SPELT = ("Which letters do you see?", "Read the letters.", "Which letters are printed?")


def _number(rng: np.random.Generator, found: Print) -> tuple[str, str] | None:
    if not found.is_number:
        absent = rng.random() < _SHARE_ABSENT
        return (pick(rng, _NUMBER), "There is no number.") if absent else None
    return pick(rng, _ANY + _NUMBER), f"It says {found.text}."


def _word(rng: np.random.Generator, found: Print) -> tuple[str, str] | None:
    if found.is_number:
        absent = rng.random() < _SHARE_ABSENT
        return (pick(rng, _WORD), "There is no word.") if absent else None
    return pick(rng, _ANY + (_WORD if found.is_word else _SPELT)), f"It says {found.text}."


def _ink(rng: np.random.Generator, found: Print) -> tuple[str, str]:
    wordings = (
        "What colour is the {}?",
        "What color is the {}?",
        "Which colour does the {} have?",
        "In which colour is the {} printed?",
        "What is the colour of the {}?",
    )
    thing = "number" if found.is_number else "word" if found.is_word else "text"
    return pick(rng, wordings).format(pick(rng, (thing, "text"))), wording.sentence(found.colour)


def _glyph(rng: np.random.Generator, found: Print) -> tuple[str, str] | None:
    if len(found.text) < 2:
        return None
    places = {"first": 0, "second": 1, "last": -1} | ({"third": 2} if len(found.text) > 2 else {})
    place = pick(rng, tuple(places))
    wordings = ("What is the {} {}?", "Which is the {} {}?", "What {} {} do you see?", "Tell me the {} {}.")
    thing = "digit" if found.is_number else "letter"
    return pick(rng, wordings).format(place, thing), f"{found.text[places[place]]}."


def _says(rng: np.random.Generator, found: Print) -> tuple[str, str]:
    truth = bool(rng.random() < 0.5)
    claimed = found.text
    if not truth:
        if rng.random() < 0.5 or not found.is_word:
            at = int(rng.integers(len(claimed)))
            signs = (_DIGITS if found.is_number else _LETTERS).replace(claimed[at], "")
            claimed = claimed[:at] + pick(rng, signs) + claimed[at + 1 :]
        else:
            claimed = pick(rng, [word for word in WORDS if word != claimed])
    wordings = ("Does it say {}?", "Is {} written here?", "Do you read {}?", "Is it true that it says {}?")
    return pick(rng, wordings).format(claimed), wording.yes_or_no(truth)


def _sort(rng: np.random.Generator, found: Print) -> tuple[str, str] | None:
    if not found.is_number and not found.is_word:
        return None
    wordings = ("Is it a word or a number?", "Is that a number or a word?", "Do you see a word or a number?")
    return pick(rng, wordings), "A number." if found.is_number else "A word."


_ASK: dict[str, Task] = {
    "number": _number,
    "word": _word,
    "ink": _ink,
    "glyph": _glyph,
    "says": _says,
    "sort": _sort,
}
TASKS: tuple[str, ...] = (*_ASK, "beside", "nothing")


def _text(rng: np.random.Generator, split: Split, task: str) -> tuple[str, str, bool]:
    """What is printed in capitals, as printed, and whether it is a word."""
    is_number = task != "word" and (task == "number" or rng.random() < 0.5)
    if is_number != (rng.random() < 0.04 and task in ("word", "number")):
        digits = pick(rng, _DIGITS[1:]) + "".join(pick(rng, _DIGITS) for _ in range(int(rng.integers(5))))
        return digits, digits, False
    is_word = split == "test" or rng.random() >= _SHARE_RANDOM_LETTERS
    text = (
        pick(rng, WORDS) if is_word else "".join(pick(rng, _LETTERS) for _ in range(int(rng.integers(3, 7))))
    )
    return text, pick(rng, (text, text, text.lower(), text.title())), is_word


def _ground(rng: np.random.Generator, split: Split) -> layouts.Ground:
    """As for shapes, or of one strong colour, as signs are."""
    behind = layouts.ground(rng, split)
    if rng.random() < 0.35:
        found = shade(rng, pick(rng, COLOURS), split)
        behind = replace(behind, corners=(found,) * 4)
    return behind


def _shapes_beside(
    rng: np.random.Generator, split: Split, behind: layouts.Ground, line: printing.Line, most: int
) -> tuple[Shape, ...]:
    """Up to so many shapes that touch neither the line nor each other, in other colours than the ink."""
    found: list[Shape] = []
    boxes = [line.box]
    for _ in range(12 * most):
        size = spread(rng, 0.14, 0.32, split) * behind.side
        x, y = (0.6 * size + (length - 1.2 * size) * rng.random() for length in (behind.width, behind.height))
        gap = 0.6 * size + 0.03 * behind.side
        if any(
            left - gap < x < right + gap and top - gap < y < bottom + gap
            for left, top, right, bottom in boxes
        ):
            continue
        shape = layouts.any_figure(rng, split, behind, taken=[line.colour], x=x, y=y, size=size)
        if shape:
            found.append(shape)
            boxes.append(shape.box)
        if len(found) == most:
            break
    return tuple(sorted(found, key=lambda shape: (shape.x, shape.y)))


def sample(rng: np.random.Generator, split: Split, turns: int = 4, task: str | None = None) -> Sample:
    """A picture with something to read, or (task "nothing") with shapes alone, and its questions."""
    task = task or pick(rng, TASKS)
    if task == "nothing":
        return _nothing(rng, split, turns)
    while True:
        text, printed, is_word = _text(rng, split, task)
        behind = _ground(rng, split)
        num_shapes = int(rng.integers(1, 4)) if task == "beside" or rng.random() < 0.25 else 0
        line = printing.set_line(rng, split, printed, behind, 0.6 if num_shapes else 1.0)
        if not line:
            continue
        shapes = _shapes_beside(rng, split, behind, line, num_shapes) if num_shapes else ()
        read = Print(text=text, colour=line.colour, is_number=text.isdigit(), is_word=is_word)
        scene = layouts.Scene(ground=behind, shapes=shapes)
        asked = _ask(rng, read, scene, task)
        if asked:
            break
    exchanges = [(*asked, task)]
    others = [name for name in TASKS[:-1] if name != task]
    for index in rng.permutation(len(others)):
        more = _ask(rng, read, scene, others[index]) if len(exchanges) < turns else None
        if more and more[0] not in [question for question, _, _ in exchanges]:
            exchanges.append((*more, others[index]))
    canvas = layouts.backdrop(behind)
    for shape in shapes:
        paint(canvas, shape)
    line.paint(canvas)
    glyphs = tuple(
        Mark(kind="glyph", name=name, colour=line.colour, box=box, index=index)
        for index, (name, box) in enumerate(zip(text, line.boxes, strict=True))
    )
    picture = layouts.develop(rng, canvas, behind, layouts.marks(shapes) + glyphs)
    found = tuple(Turn(question=question, answer=answer, task=name) for question, answer, name in exchanges)
    return Sample(turns=found, media=(picture,))


def _ask(rng: np.random.Generator, read: Print, scene: layouts.Scene, task: str) -> tuple[str, str] | None:
    if task != "beside":
        return _ASK[task](rng, read)
    name = pick(rng, _BESIDE)
    exchange = questions.TASKS[name](rng, scene) if scene.shapes else []
    # "What is the yellow thing?" may mean the text or the ground.
    if name == "kind" and exchange and exchange[0][1].startswith("There is no"):
        return None
    return exchange[0] if exchange else None


def _nothing(rng: np.random.Generator, split: Split, turns: int) -> Sample:
    scene = layouts.scene(rng, split, num_shapes=int(rng.integers(1, 5)))
    wordings = (
        (_ANY, "There is no text."),
        (_NUMBER, "There is no number."),
        (_WORD, "There is no word."),
    )
    order = [wordings[i] for i in rng.permutation(3)[: max(1, min(turns, 3))]]
    found = tuple(Turn(question=pick(rng, asks), answer=answer, task="nothing") for asks, answer in order)
    return Sample(turns=found, media=(layouts.render(rng, scene),))
