"""Questions about one scene of shapes. Each task asks only where its answer is unique. Paints nothing.

A task takes a scene and gives one or more (question, answer) pairs that follow on each other, or none where the
scene leaves room for doubt. Answers are whole sentences of one wording; questions vary.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import TypeAlias

import numpy as np

from samples.demo_training.scenes.counts import arithmetic, compare, count, is_more, is_number
from samples.demo_training.scenes.layouts import Scene
from samples.demo_training.scenes.shapes import COLOURS, SHAPES, Shape, pick
from samples.demo_training.scenes.wording import Exchange, listing, sentence, with_article, yes_or_no

Task: TypeAlias = Callable[[np.random.Generator, Scene], Exchange]

SIDES = ("left of", "right of", "above", "below")
_SHARE_ABSENT = 0.12


def designation(rng: np.random.Generator, scene: Scene, shape: Shape) -> str | None:
    """Words that fit this shape alone: "star" or "red star"."""
    if scene.kinds.count(shape.kind) == 1 and rng.random() < 0.6:
        return shape.kind
    return shape.name if scene.names.count(shape.name) == 1 else None


def some_shape(rng: np.random.Generator, scene: Scene) -> tuple[Shape, str] | None:
    """A shape that can be spoken of, and how."""
    for index in rng.permutation(len(scene.shapes)):
        shape = scene.shapes[index]
        words = designation(rng, scene, shape)
        if words:
            return shape, words
    return None


def absent_kind(rng: np.random.Generator, scene: Scene) -> str | None:
    absent = [kind for kind in SHAPES if kind not in scene.kinds]
    return pick(rng, absent) if absent else None


def absent_words(rng: np.random.Generator, scene: Scene) -> str | None:
    """What the picture does not show: "star", or "red star" although there is a blue one."""
    if rng.random() < 0.5 or not scene.shapes:
        return absent_kind(rng, scene)
    name = f"{pick(rng, scene.colours)} {pick(rng, scene.kinds)}"
    return None if name in scene.names else name


def is_ordered(scene: Scene) -> bool:
    """Whether nobody can doubt the order from left to right."""
    across = [shape.x for shape in scene.shapes]
    return all(right - left > 0.09 * scene.ground.width for left, right in itertools.pairwise(across))


def describe(rng: np.random.Generator, scene: Scene) -> Exchange:
    if not 1 <= len(scene.shapes) <= 3 or not is_ordered(scene):
        return []
    question = pick(
        rng,
        (
            "Describe the picture.",
            "What is in the picture?",
            "What do you see?",
            "What does the picture show?",
            "Which shapes are in the picture?",
            "What shapes do you see, from left to right?",
            "Name the shapes from left to right.",
            "What's in this image?",
        ),
    )
    return [(question, sentence(listing([with_article(shape.name) for shape in scene.shapes])))]


def colour(rng: np.random.Generator, scene: Scene) -> Exchange:
    wordings = (
        "What colour is the {}?",
        "What color is the {}?",
        "Which colour does the {} have?",
        "Tell me the colour of the {}.",
        "What is the colour of the {}?",
        "The {}: what colour is it?",
    )
    if rng.random() < _SHARE_ABSENT:
        kind = absent_kind(rng, scene)
        return [(pick(rng, wordings).format(kind), f"There is no {kind}.")] if kind else []
    single = [shape for shape in scene.shapes if scene.kinds.count(shape.kind) == 1]
    if not single:
        return []
    shape = pick(rng, single)
    return [(pick(rng, wordings).format(shape.kind), sentence(shape.colour))]


def kind(rng: np.random.Generator, scene: Scene) -> Exchange:
    wordings = (
        "What shape is {}?",
        "Which shape is {}?",
        "What is the {} thing?",
        "What is the {} shape?",
        "Which shape has the colour {}?",
        "Which of the shapes is {}?",
    )
    if rng.random() < _SHARE_ABSENT:
        absent = [name for name in COLOURS if name not in scene.colours]
        name = pick(rng, absent)
        return [(pick(rng, wordings).format(name), f"There is no {name} shape.")]
    single = [shape for shape in scene.shapes if scene.colours.count(shape.colour) == 1]
    if not single:
        return []
    shape = pick(rng, single)
    return [(pick(rng, wordings).format(shape.colour), sentence(with_article(shape.kind)))]


def grid_place(scene: Scene, shape: Shape) -> str | None:
    """Its place among three times three fields, or None near a border of two."""
    fields = []
    for share in (shape.x / scene.ground.width, shape.y / scene.ground.height):
        if min(abs(share - 1 / 3), abs(share - 2 / 3)) < 0.06:
            return None
        fields.append(int(share * 3))
    across, down = ("left", "", "right")[fields[0]], ("top", "", "bottom")[fields[1]]
    if down:
        return f"at the {down} {across}".rstrip()
    return f"on the {across}" if across else "in the middle"


def where(rng: np.random.Generator, scene: Scene) -> Exchange:
    wordings = (
        "Where is the {}?",
        "Where is the {} in the picture?",
        "Where do you see the {}?",
        "In which part of the picture is the {}?",
        "Where can I find the {}?",
        "Where does the {} lie?",
    )
    if rng.random() < _SHARE_ABSENT:
        words = absent_words(rng, scene)
        return [(pick(rng, wordings).format(words), f"There is no {words}.")] if words else []
    found = some_shape(rng, scene)
    place = grid_place(scene, found[0]) if found else None
    if not found or not place:
        return []
    return [(pick(rng, wordings).format(found[1]), sentence(place))]


def is_beside(scene: Scene, shape: Shape, other: Shape, side: str) -> bool | None:
    """Whether shape lies on this side ("left of", ...) of the other; None where people would not agree.

    Clear are shapes whose centres differ by over an eighth of the picture that way, and not much more the other.
    """
    across = (shape.x - other.x) / scene.ground.side, (shape.y - other.y) / scene.ground.side
    way, sideways = across if side in ("left of", "right of") else across[::-1]
    if side in ("left of", "above"):
        way = -way
    if way > max(0.12, 0.5 * abs(sideways)):
        return True
    return False if way < 0.03 else None


def relation(rng: np.random.Generator, scene: Scene) -> Exchange:
    wordings = (
        "What is {} the {}?",
        "What lies {} the {}?",
        "Which shape is {} the {}?",
        "What do you see {} the {}?",
        "What shape is there {} the {}?",
        "Tell me what is {} the {}.",
    )
    side = pick(rng, SIDES)
    if rng.random() < 0.4 * _SHARE_ABSENT:
        words = absent_words(rng, scene)
        return [(pick(rng, wordings).format(side, words), f"There is no {words}.")] if words else []
    found = some_shape(rng, scene)
    beside = neighbours(scene, found[0], side) if found else None
    if not found or beside is None or len(beside) > 1 or (not beside and rng.random() < 0.92):
        return []
    answer = sentence(with_article(beside[0].name)) if beside else "Nothing."
    return [(pick(rng, wordings).format(side, found[1]), answer)]


def neighbours(scene: Scene, shape: Shape, side: str) -> list[Shape] | None:
    """All that lie on this side of the shape, or None in a doubtful case."""
    beside = []
    for other in scene.shapes:
        clear = other is not shape and is_beside(scene, other, shape, side)
        if clear is None:
            return None
        if clear:
            beside.append(other)
    return beside


def yesno(rng: np.random.Generator, scene: Scene) -> Exchange:
    wanted = yes_or_no(bool(rng.random() < 0.5))
    exchange = pick(rng, _YES_OR_NO)(rng, scene)
    # Left to chance most answers would be "No".
    return exchange if exchange and exchange[0][1] == wanted else []


def _is_there(rng: np.random.Generator, scene: Scene) -> Exchange:
    truth = bool(rng.random() < 0.5)
    if truth and scene.shapes:
        shape = pick(rng, scene.shapes)
        words: str | None = shape.kind if rng.random() < 0.5 else shape.name
    else:
        truth, words = False, absent_words(rng, scene)
    if not words:
        return []
    wordings = (
        "Is there {}?",
        "Is there {} in the picture?",
        "Do you see {}?",
        "Can you see {}?",
        "Does it show {}?",
    )
    return [(pick(rng, wordings).format(with_article(words)), yes_or_no(truth))]


def _is_side(rng: np.random.Generator, scene: Scene) -> Exchange:
    first, second = some_shape(rng, scene), some_shape(rng, scene)
    if not first or not second or first[0] is second[0]:
        return []
    side = pick(rng, SIDES)
    truth = is_beside(scene, first[0], second[0], side)
    if truth is None:
        return []
    wordings = ("Is the {} {} the {}?", "Does the {} lie {} the {}?", "Is it true that the {} is {} the {}?")
    return [(pick(rng, wordings).format(first[1], side, second[1]), yes_or_no(truth))]


def _is_coloured(rng: np.random.Generator, scene: Scene) -> Exchange:
    single = [shape for shape in scene.shapes if scene.kinds.count(shape.kind) == 1]
    if not single:
        return []
    shape = pick(rng, single)
    truth = bool(rng.random() < 0.5)
    name = shape.colour if truth else pick(rng, [other for other in COLOURS if other != shape.colour])
    wordings = ("Is the {} {}?", "Does the {} look {}?", "Is it true that the {} is {}?")
    return [(pick(rng, wordings).format(shape.kind, name), yes_or_no(truth))]


# Of the size squared; that people see as large what covers much and what reaches far alike, both must agree.
_AREAS = {"circle": 0.785, "square": 0.81, "triangle": 0.41, "star": 0.36, "cross": 0.51}
_CLEARLY_LARGER = 1.3


def is_larger(shape: Shape, other: Shape) -> bool:
    """Whether nobody can doubt it."""
    areas = [_AREAS[each.kind] * each.size**2 for each in (shape, other)]
    return shape.size > _CLEARLY_LARGER * other.size and areas[0] > _CLEARLY_LARGER * areas[1]


def extreme(scene: Scene, word: str) -> Shape | None:
    """The "largest" or "smallest" shape, if there is one without doubt."""
    for shape in scene.shapes:
        others = [other for other in scene.shapes if other is not shape]
        if all(is_larger(shape, other) if word == "largest" else is_larger(other, shape) for other in others):
            return shape if others and scene.names.count(shape.name) == 1 else None
    return None


def size(rng: np.random.Generator, scene: Scene) -> Exchange:
    word = pick(rng, ("largest", "smallest"))
    shape = extreme(scene, word)
    if not shape:
        return []
    wordings = (
        "Which shape is the {}?",
        "What is the {} shape?",
        "Which is the {} shape in the picture?",
        "Which of the shapes is the {}?",
        "Name the {} shape.",
    )
    said = pick(rng, (word, word, "biggest" if word == "largest" else word))
    return [(pick(rng, wordings).format(said), f"The {shape.name}.")]


def _is_larger(rng: np.random.Generator, scene: Scene) -> Exchange:
    first, second = some_shape(rng, scene), some_shape(rng, scene)
    if not first or not second or first[0] is second[0]:
        return []
    truth = is_larger(first[0], second[0])
    if not truth and not is_larger(second[0], first[0]):
        return []
    word = pick(rng, ("larger", "bigger", "smaller"))
    wordings = ("Is the {} {} than the {}?", "Does the {} look {} than the {}?")
    return [(pick(rng, wordings).format(first[1], word, second[1]), yes_or_no(truth == (word != "smaller")))]


_YES_OR_NO: tuple[Task, ...] = (
    _is_there,
    _is_there,
    _is_side,
    _is_side,
    _is_coloured,
    _is_larger,
    is_number,
    is_more,
)

TASKS: dict[str, Task] = {
    "describe": describe,
    "colour": colour,
    "kind": kind,
    "count": count,
    "where": where,
    "relation": relation,
    "yesno": yesno,
    "size": size,
    "compare": compare,
    "arithmetic": arithmetic,
}
