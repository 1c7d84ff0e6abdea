"""Small talk of the demo model: greetings, what it is, sums up to twenty, and dialogues that change the subject.

Knows what may be said in between the questions about media; draws nothing. The sums are the same in both splits
(they are a table to know by heart); the wordings are not.
"""

from __future__ import annotations

import numpy as np

from samples.demo_training.scenes.base import Sample, Split, Turn
from samples.demo_training.scenes.outside import About
from samples.demo_training.scenes.refusals import (
    fitting_task,
    interrupted,
    kind_of,
    pick,
    refusal,
    scene_with,
)

TASKS = ("greeting", "ability", "name", "wellbeing", "thanks", "farewell", "sum", "interrupted")
_WEIGHTS = (0.08, 0.08, 0.06, 0.04, 0.06, 0.04, 0.34, 0.3)

MOST = 20
_ANSWERS = {
    "greeting": "Hello! Ask me about a picture, a sound or a video.",
    "ability": "I name shapes, count, read words, hear tones and watch short videos.",
    "name": "I am a small demo model.",
    "wellbeing": "I am well, thank you.",
    "thanks": "You are welcome.",
    "farewell": "Goodbye!",
}
_SAYINGS: dict[Split, dict[str, tuple[str, ...]]] = {
    "train": {
        "greeting": (
            "Hello",
            "Hello!",
            "Hi",
            "Hi!",
            "Hello there!",
            "Good morning!",
            "Good evening.",
            "Hey!",
        ),
        "ability": (
            "What can you do?",
            "What do you do?",
            "What can I ask you?",
            "What do you know?",
            "How can you help me?",
            "Help!",
            "What are you good at?",
            "What questions can you answer?",
        ),
        "name": (
            "Who are you?",
            "What are you?",
            "What is your name?",
            "Are you a model?",
            "Which model are you?",
        ),
        "wellbeing": ("How are you?", "How do you do?", "How are you today?", "Are you well?"),
        "thanks": ("Thanks", "Thanks!", "Thank you.", "Thank you!", "Thank you very much.", "Many thanks!"),
        "farewell": ("Bye", "Bye!", "Goodbye!", "Goodbye.", "See you!", "Good night."),
    },
    "test": {
        "greeting": ("Good day!", "Hi there!", "hello", "Hey there!"),
        "ability": ("What are you able to do?", "What can you tell me?", "How do you help?"),
        "name": ("Tell me who you are.", "What is your name, please?", "What kind of model are you?"),
        "wellbeing": ("How are you now?", "Hello, how are you?", "Are you well today?"),
        "thanks": ("Thanks a lot!", "Thank you so much.", "Many thanks."),
        "farewell": ("Bye bye!", "Goodbye now.", "See you tomorrow!"),
    },
}
_PLUS: dict[Split, tuple[str, ...]] = {
    "train": (
        "What is {a} + {b}?",
        "What is {a} plus {b}?",
        "How much is {a} + {b}?",
        "How much is {a} plus {b}?",
        "{a} + {b} = ?",
        "{a} + {b}",
        "Add {a} and {b}.",
        "What is {a} and {b} together?",
    ),
    "test": ("What do {a} and {b} make together?", "How much is {a} and {b}?", "{a} plus {b}?"),
}
_MINUS: dict[Split, tuple[str, ...]] = {
    "train": (
        "What is {a} - {b}?",
        "What is {a} minus {b}?",
        "How much is {a} - {b}?",
        "How much is {a} minus {b}?",
        "{a} - {b} = ?",
        "{a} - {b}",
        "Take {b} from {a}.",
        "What is {a} less {b}?",
    ),
    "test": ("What is left of {a} without {b}?", "How much is {a} less {b}?", "{a} minus {b}?"),
}
_NUMBER_WORDS = (
    "zero",
    "one",
    "two",
    "three",
    "four",
    "five",
    "six",
    "seven",
    "eight",
    "nine",
    "ten",
    "eleven",
    "twelve",
    "thirteen",
    "fourteen",
    "fifteen",
    "sixteen",
    "seventeen",
    "eighteen",
    "nineteen",
    "twenty",
)


def sample(rng: np.random.Generator, split: Split, turns: int = 4, task: str | None = None) -> Sample:
    """Small talk, or a dialogue about media that it interrupts. Asked for one `task`, all turns are of that task.

    An "interrupted" sample has at least three turns: two true ones about media, or more, and one of something else.
    """
    name = task or str(rng.choice(TASKS, p=_WEIGHTS))
    if name == "interrupted":
        return _interrupted(rng, split, max(3, turns))
    names = [name, *(task or _small_talk(rng) for _ in range(turns - 1))]
    return Sample(turns=tuple(saying(rng, split, each) for each in names))


def saying(rng: np.random.Generator, split: Split, task: str) -> Turn:
    """Something said that is not about media, and its answer."""
    if task == "sum":
        return _sum(rng, split)
    if task not in _ANSWERS:
        raise ValueError(f"there is no small talk '{task}'; the tasks are {', '.join(TASKS)}")
    return Turn(question=pick(rng, _SAYINGS[split][task]), answer=_ANSWERS[task], task=task)


def _small_talk(rng: np.random.Generator) -> str:
    return "sum" if rng.random() < 0.4 else pick(rng, tuple(_ANSWERS))


def _sum(rng: np.random.Generator, split: Split) -> Turn:
    """A sum or a difference of which no number is negative or more than MOST, in figures or in words."""
    plus = bool(rng.random() < 0.5)
    first = int(rng.integers(0, MOST + 1))
    second = int(rng.integers(0, (MOST - first if plus else first) + 1))
    total = first + second if plus else first - second
    template = pick(rng, (_PLUS if plus else _MINUS)[split])
    in_words = template[0].isalpha() and "+" not in template and " - " not in template and rng.random() < 0.3
    shown = [_NUMBER_WORDS[number] if in_words else str(number) for number in (first, second)]
    return Turn(
        question=template.format(a=shown[0], b=shown[1]),
        answer=f"{first} {'+' if plus else '-'} {second} = {total}.",
        task="sum",
    )


def _interrupted(rng: np.random.Generator, split: Split, turns: int) -> Sample:
    about: About = pick(rng, ("picture", "picture", "sound", "video"))
    num_others = int(rng.integers(1, turns - 1))
    scene = scene_with(rng, split, about, turns - num_others)
    kind = kind_of(scene.media)
    others = [
        saying(rng, split, _small_talk(rng))
        if rng.random() < 0.6
        else refusal(rng, split, fitting_task(rng, kind), kind)
        for _ in range(num_others)
    ]
    return Sample(turns=interrupted(rng, scene.turns, others), media=scene.media)
