"""Pictures of shapes with questions about them: the "pictures" family. Reading is in `lettering`."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from samples.demo_training.scenes import dialogues, layouts, pairs, questions
from samples.demo_training.scenes.base import Picture, Sample, Split, Turn
from samples.demo_training.scenes.shapes import COLOURS, SHAPES, pick
from samples.demo_training.scenes.wording import Exchange

_OF_ONE: dict[str, questions.Task] = questions.TASKS | {"dialogue": dialogues.dialogue}
TASKS: tuple[str, ...] = (*_OF_ONE, *pairs.TASKS)

_GROUPED = ("count", "compare", "arithmetic")
_NUM_SHAPES = {
    "describe": (1, 3),
    "relation": (2, 3),
    "size": (2, 4),
    "count": (2, 6),
    "compare": (3, 6),
    "arithmetic": (2, 6),
}


def scene_for(rng: np.random.Generator, split: Split, task: str) -> layouts.Scene:
    """A scene that often lets this task, one about a single picture, be asked."""
    least, most = _NUM_SHAPES.get(task, (1, 6))
    num_shapes = int(rng.integers(least, most + 1))
    if task in _GROUPED or (task == "dialogue" and rng.random() < 0.5):
        kinds, colours = layouts.some(rng, SHAPES, 2), layouts.some(rng, COLOURS, int(rng.integers(2, 4)))
        return layouts.scene(rng, split, num_shapes=num_shapes, kinds=kinds, colours=colours)
    return layouts.scene(rng, split, num_shapes=num_shapes)


def sample(rng: np.random.Generator, split: Split, turns: int = 4, task: str | None = None) -> Sample:
    """One or two pictures with their questions, the first one of `task`.

    A dialogue takes two or three turns, even where fewer are asked for.
    """
    task = task or pick(rng, TASKS)
    if task in pairs.TASKS:
        return _pair(rng, split, turns, task)
    exchange: Exchange = []
    while not exchange:
        scene = scene_for(rng, split, task)
        exchange = _OF_ONE[task](rng, scene)
    found = _talk(rng, task, exchange, turns, tuple(_OF_ONE), lambda name: _OF_ONE[name](rng, scene))
    return Sample(turns=found, media=(layouts.render(rng, scene),))


def _pair(rng: np.random.Generator, split: Split, turns: int, task: str) -> Sample:
    exchange: Exchange = []
    while not exchange:
        pair = pairs.pair_for(rng, split, task)
        exchange = pairs.TASKS[task](rng, pair)
    found = _talk(rng, task, exchange, turns, tuple(pairs.TASKS), lambda name: pairs.TASKS[name](rng, pair))
    shown: list[Picture] = [layouts.render(rng, scene) for scene in pair.scenes]
    return Sample(turns=found, media=tuple(shown))


def _talk(
    rng: np.random.Generator,
    task: str,
    exchange: Exchange,
    turns: int,
    tasks: tuple[str, ...],
    ask: Callable[[str], Exchange],
) -> tuple[Turn, ...]:
    """The first exchange and others of any task; nothing is asked twice, not even in other words."""
    found = [Turn(question=question, answer=answer, task=task) for question, answer in exchange]
    for _ in range(4 * turns):
        if len(found) >= turns:
            break
        name = pick(rng, tasks)
        more = [Turn(question=question, answer=answer, task=name) for question, answer in ask(name)]
        known = {turn.question for turn in found} | {(turn.task, turn.answer) for turn in found}
        if not any(
            turn.question in known or (name != "yesno" and (name, turn.answer) in known) for turn in more
        ):
            found += more
    return tuple(found)
