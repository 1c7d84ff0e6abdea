"""Short dialogues about one scene: each question but the first leans on the one before. Paints nothing."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

import numpy as np

from samples.demo_training.scenes.counts import ask_number, figure, number_of, two_groups
from samples.demo_training.scenes.layouts import Scene
from samples.demo_training.scenes.questions import (
    SIDES,
    colour,
    extreme,
    grid_place,
    kind,
    neighbours,
    some_shape,
)
from samples.demo_training.scenes.shapes import COLOURS, Shape, pick
from samples.demo_training.scenes.wording import Exchange, plural, sentence, with_article

_Dialogue: TypeAlias = Callable[[np.random.Generator, Scene], Exchange]

_OPPOSITE = {"left of": "right of", "right of": "left of", "above": "below", "below": "above"}


def dialogue(rng: np.random.Generator, scene: Scene) -> Exchange:
    return pick(rng, _DIALOGUES)(rng, scene)


def _of_them(rng: np.random.Generator, scene: Scene) -> Exchange:
    name = pick(rng, scene.kinds)
    number = number_of(scene, kind=name)
    chosen = pick(rng, scene.colours if rng.random() < 0.85 else COLOURS)
    if number < 2:
        return []
    wordings = ("And how many of them are {}?", "How many of them are {}?", "How many of those are {}?")
    follow = pick(rng, wordings).format(chosen)
    return [
        (ask_number(rng, plural(name)), f"{number}."),
        (follow, f"{number_of(scene, kind=name, colour=chosen)}."),
    ]


def _and_the(rng: np.random.Generator, scene: Scene) -> Exchange:
    single = [shape for shape in scene.shapes if scene.kinds.count(shape.kind) == 1]
    first = colour(rng, scene)
    others = [shape for shape in single if first and shape.kind not in first[0][0]]
    if not others:
        return []
    other = pick(rng, others)
    wordings = ("And the {}?", "And what about the {}?", "And the colour of the {}?", "What about the {}?")
    return [*first, (pick(rng, wordings).format(other.kind), sentence(other.colour))]


def _about_it(rng: np.random.Generator, scene: Scene) -> Exchange:
    """A shape comes up, then: where is it?"""
    single = [shape for shape in scene.shapes if scene.kinds.count(shape.kind) == 1]
    if not single:
        return []
    shape = pick(rng, single)
    wordings = ("Is there {}?", "Is there {} in the picture?", "Do you see {}?", "Can you see {}?")
    opening = (pick(rng, wordings).format(with_article(shape.kind)), "Yes.")
    if rng.random() < 0.5:
        follow = pick(rng, ("What colour is it?", "Which colour does it have?", "And what colour is it?"))
        return [opening, (follow, sentence(shape.colour))]
    return _place_of(rng, scene, shape, opening)


def _found_by_colour(rng: np.random.Generator, scene: Scene) -> Exchange:
    first = kind(rng, scene)
    found = [shape for shape in scene.shapes if first and f" {shape.colour}" in first[0][0]]
    return _place_of(rng, scene, found[0], first[0]) if found else []


def _place_of(rng: np.random.Generator, scene: Scene, shape: Shape, opening: tuple[str, str]) -> Exchange:
    place = grid_place(scene, shape)
    if not place:
        return []
    return [
        opening,
        (pick(rng, ("Where is it?", "And where is it?", "Where do you see it?")), sentence(place)),
    ]


def _other_side(rng: np.random.Generator, scene: Scene) -> Exchange:
    found = some_shape(rng, scene)
    if not found:
        return []
    side = pick(rng, SIDES)
    answers = []
    for way in (side, _OPPOSITE[side]):
        beside = neighbours(scene, found[0], way)
        if beside is None or len(beside) > 1:
            return []
        answers.append(sentence(with_article(beside[0].name)) if beside else "Nothing.")
    if "Nothing." in answers and rng.random() < 0.7:
        return []
    follow = pick(rng, ("And {} the {}?", "And what is {} the {}?", "What about {} the {}?"))
    opening = pick(rng, ("What is {} the {}?", "What lies {} the {}?", "Which shape is {} the {}?"))
    return [
        (opening.format(side, found[1]), answers[0]),
        (follow.format(_OPPOSITE[side], found[1]), answers[1]),
    ]


def _sum(rng: np.random.Generator, scene: Scene) -> Exchange:
    groups = two_groups(rng, scene)
    if not groups:
        return []
    (first, words), (second, other_words) = groups
    follow = pick(rng, ("And how many {}?", "And {}?", "And how many {} are there?")).format(other_words)
    total = pick(rng, ("How many is that together?", "And together?", "How many are there together?"))
    return [
        (ask_number(rng, words), f"{first}."),
        (follow, f"{second}."),
        (total, f"{first} + {second} = {first + second}."),
    ]


def _less(rng: np.random.Generator, scene: Scene) -> Exchange:
    words = "shapes" if rng.random() < 0.4 else plural(pick(rng, scene.kinds))
    number = len(scene.shapes) if words == "shapes" else [plural(name) for name in scene.kinds].count(words)
    if number < 2:
        return []
    taken = int(rng.integers(1, number + 1))
    wordings = (
        "And if I take {} away?",
        "How many are left if I take {} away?",
        "How many remain without {} of them?",
    )
    follow = pick(rng, wordings).format(figure(rng, taken))
    return [(ask_number(rng, words), f"{number}."), (follow, f"{number} - {taken} = {number - taken}.")]


def _other_extreme(rng: np.random.Generator, scene: Scene) -> Exchange:
    words = pick(rng, (("largest", "smallest"), ("smallest", "largest")))
    first, second = (extreme(scene, word) for word in words)
    if not first or not second:
        return []
    opening = pick(rng, ("Which shape is the {}?", "What is the {} shape?", "Name the {} shape.")).format(
        words[0]
    )
    follow = pick(rng, ("And the {}?", "And which is the {}?", "What about the {}?")).format(words[1])
    return [(opening, f"The {first.name}."), (follow, f"The {second.name}.")]


_DIALOGUES: tuple[_Dialogue, ...] = (
    _of_them,
    _and_the,
    _about_it,
    _found_by_colour,
    _other_side,
    _sum,
    _less,
    _other_extreme,
)
