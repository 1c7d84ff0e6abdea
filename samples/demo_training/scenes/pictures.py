"""Pictures of shapes with questions about them: the "pictures" family. Reading is in `lettering`."""

from __future__ import annotations

import numpy as np

from samples.demo_training.scenes import layouts, questions
from samples.demo_training.scenes.base import Sample, Split, Turn
from samples.demo_training.scenes.shapes import pick

TASKS: tuple[str, ...] = tuple(questions.TASKS)

_FEW_SHAPES = ("describe", "relation")
_GROUPED = ("count",)


def scene_for(rng: np.random.Generator, split: Split, task: str) -> layouts.Scene:
    """A scene that often lets this task be asked."""
    if task in _FEW_SHAPES:
        return layouts.scene(rng, split, num_shapes=int(rng.integers(1 if task == "describe" else 2, 4)))
    num_shapes = int(rng.integers(1, 7))
    if task in _GROUPED:
        return layouts.scene(
            rng, split, num_shapes=num_shapes, num_kinds=2, num_colours=int(rng.integers(1, 4))
        )
    return layouts.scene(rng, split, num_shapes=num_shapes)


def sample(rng: np.random.Generator, split: Split, turns: int = 4, task: str | None = None) -> Sample:
    """A picture with its questions, the first one of `task`.

    Dialogues are one turn longer than asked where their first question needs another before it.
    """
    task = task or pick(rng, TASKS)
    exchange: questions.Exchange = []
    while not exchange:
        scene = scene_for(rng, split, task)
        exchange = questions.TASKS[task](rng, scene)
    asked = [(question, answer, task) for question, answer in exchange]
    for _ in range(4 * turns):
        if len(asked) >= turns:
            break
        other = pick(rng, TASKS)
        more = questions.TASKS[other](rng, scene)
        if not {question for question, _ in more} & {question for question, _, _ in asked}:
            asked += [(question, answer, other) for question, answer in more]
    found = tuple(Turn(question=question, answer=answer, task=name) for question, answer, name in asked)
    return Sample(turns=found, media=(layouts.render(rng, scene),))
