"""Two scenes and what can be asked of both. Paints nothing."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TypeAlias

import numpy as np

from samples.demo_training.scenes import layouts, questions
from samples.demo_training.scenes.base import Split
from samples.demo_training.scenes.counts import number_of
from samples.demo_training.scenes.layouts import Scene
from samples.demo_training.scenes.shapes import COLOURS, SHAPES, Shape, pick
from samples.demo_training.scenes.wording import Exchange, plural, with_article, yes_or_no

ORDINALS = ("first", "second")
ALIKE = "Nothing differs."
_MAX_LONG_PX = 300


_ALIKE = ("Are the two pictures the same?", "Are both pictures alike?", "Do the pictures show the same?")
_DIFFERENT = (
    "What differs?",
    "What is different?",
    "What differs between the two pictures?",
    "What is the difference between the pictures?",
    "Find the difference.",
    "What has changed?",
    "How do the pictures differ?",
)


@dataclass(frozen=True, kw_only=True)
class Pair:
    """difference: what the second scene has otherwise than the first; None where the two were drawn apart."""

    scenes: tuple[Scene, Scene]
    difference: str | None = None


PairTask: TypeAlias = Callable[[np.random.Generator, Pair], Exchange]


def pair_for(rng: np.random.Generator, split: Split, task: str) -> Pair:
    """A pair that often lets this task be asked."""
    if task == "difference":
        return _changed(rng, split)
    is_more = task == "more"
    kinds = layouts.some(rng, SHAPES, 2 if is_more else 5)
    colours = layouts.some(rng, COLOURS, 3 if is_more else 8)
    first, second = (
        layouts.scene(
            rng,
            split,
            num_shapes=int(rng.integers(1, 6 if is_more else 5)),
            kinds=kinds,
            colours=colours,
            max_long=_MAX_LONG_PX,
        )
        for _ in range(2)
    )
    return Pair(scenes=(first, second))


def _changed(rng: np.random.Generator, split: Split) -> Pair:
    """The same scene twice but for one shape, which is missing or of another colour or kind; or just the same."""
    while True:
        first = layouts.scene(rng, split, num_shapes=int(rng.integers(1, 5)), max_long=_MAX_LONG_PX)
        shape = pick(rng, first.shapes)
        found = pick(rng, (_recoloured, _reshaped, _missing, _missing, _same))(rng, split, first, shape)
        if found:
            return found


def _with(scene: Scene, shape: Shape, other: Shape) -> Scene:
    return replace(scene, shapes=tuple(other if each is shape else each for each in scene.shapes))


def _recoloured(rng: np.random.Generator, split: Split, scene: Scene, shape: Shape) -> Pair | None:
    fresh = layouts.any_figure(
        rng, split, scene.ground, taken=[shape.colour], x=shape.x, y=shape.y, size=shape.size
    )
    if not fresh or scene.kinds.count(shape.kind) > 1:
        return None
    second = _with(scene, shape, replace(shape, colour=fresh.colour, shade=fresh.shade))
    answer = f"The {shape.kind} is {shape.colour} in the first picture and {fresh.colour} in the second."
    return Pair(scenes=(scene, second), difference=answer)


def _reshaped(rng: np.random.Generator, split: Split, scene: Scene, shape: Shape) -> Pair | None:
    if scene.colours.count(shape.colour) > 1:
        return None
    kind = pick(rng, [name for name in SHAPES if name != shape.kind])
    second = _with(scene, shape, replace(shape, kind=kind, turn=0.0))
    before, after = with_article(shape.kind), with_article(kind)
    answer = f"The {shape.colour} shape is {before} in the first picture and {after} in the second."
    return Pair(scenes=(scene, second), difference=answer)


def _missing(rng: np.random.Generator, split: Split, scene: Scene, shape: Shape) -> Pair | None:
    if scene.names.count(shape.name) > 1:
        return None
    less = replace(scene, shapes=tuple(each for each in scene.shapes if each is not shape))
    at = int(rng.integers(2))
    scenes = (less, scene) if at else (scene, less)
    return Pair(scenes=scenes, difference=f"The {shape.name} is only in the {ORDINALS[at]} picture.")


def _same(rng: np.random.Generator, split: Split, scene: Scene, shape: Shape) -> Pair | None:
    return Pair(scenes=(scene, scene), difference=ALIKE)


def difference(rng: np.random.Generator, pair: Pair) -> Exchange:
    if not pair.difference:
        return []
    alike = pair.difference == ALIKE
    # So that "Yes." and "No." come about as often.
    if rng.random() < (0.45 if alike else 0.13):
        return [(pick(rng, _ALIKE), yes_or_no(alike))]
    return [(pick(rng, _DIFFERENT), pair.difference)]


def more(rng: np.random.Generator, pair: Pair) -> Exchange:
    shapes = pair.scenes[0].shapes + pair.scenes[1].shapes
    kind, colour = pick(rng, shapes).kind, pick(rng, shapes).colour
    by = pick(rng, ("all", "kind", "kind", "colour"))
    words = {"all": "shapes", "kind": plural(kind), "colour": f"{colour} shapes"}[by]
    first, second = (
        number_of(scene, kind=kind if by == "kind" else None, colour=colour if by == "colour" else None)
        for scene in pair.scenes
    )
    wordings = (
        "Which picture has more {}?",
        "Which picture shows more {}?",
        "In which picture are there more {}?",
        "Where are there more {}, in the first or in the second picture?",
        "Which of the two pictures has more {}?",
        "In which of the pictures do you see more {}?",
    )
    answer = "Both have the same number." if first == second else f"The {ORDINALS[first < second]}."
    return [(pick(rng, wordings).format(words), answer)]


def in_which(rng: np.random.Generator, pair: Pair) -> Exchange:
    by_name = bool(rng.random() < 0.5)
    seen = [scene.names if by_name else scene.kinds for scene in pair.scenes]
    words = pick(rng, seen[0] + seen[1])
    if rng.random() < 0.15:
        words = f"{pick(rng, COLOURS)} {pick(rng, SHAPES)}" if by_name else pick(rng, SHAPES)
    wordings = (
        "Which picture shows {}?",
        "In which picture is there {}?",
        "In which picture do you see {}?",
        "Which of the two pictures has {}?",
        "Which picture has {}?",
    )
    answers = {(True, True): "Both.", (True, False): "The first.", (False, True): "The second."}
    answer = answers.get((words in seen[0], words in seen[1]), "Neither.")
    return [(pick(rng, wordings).format(with_article(words)), answer)]


def one_of_two(rng: np.random.Generator, pair: Pair) -> Exchange:
    """A question about one of them, as it is asked of a single picture."""
    at = int(rng.integers(2))
    name = pick(rng, ("colour", "kind", "count", "where", "yesno", "relation"))
    exchange = questions.TASKS[name](rng, pair.scenes[at]) if pair.scenes[at].shapes else []
    if not exchange or "picture" in exchange[0][0] or ":" in exchange[0][0]:
        return []
    question, answer = exchange[0]
    wordings = ("In the {} picture, {}", "Look at the {} picture: {}", "In the {} picture: {}")
    asked = pick(rng, wordings).format(ORDINALS[at], question[0].lower() + question[1:])
    return [(asked, answer)]


TASKS: dict[str, PairTask] = {
    "more": more,
    "difference": difference,
    "in_which": in_which,
    "one_of_two": one_of_two,
}
