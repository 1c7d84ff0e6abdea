"""What a clip shows, and the questions that it answers. Draws nothing.

Every answer follows from frames at 0, 0.5, 1.0 ... s and the sound, in exactly one wording. Seconds are those that
have passed: what happens between 4 and 5 s happens at second 4.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

import numpy as np

from samples.demo_training.scenes.base import Turn
from samples.demo_training.scenes.seen_wordings import WORDINGS
from samples.demo_training.scenes.shapes import COLOURS, SHAPES, pick
from samples.demo_training.scenes.wording import sentence, with_article, yes_or_no

SeenKind: TypeAlias = Literal["colours", "moves", "blinks", "appears"]
SoundKind: TypeAlias = Literal["none", "keys", "beeps"]

TASKS: tuple[str, ...] = (
    "colours",
    "when",
    "direction",
    "blinks",
    "appears",
    "dialled",
    "sound",
    "shapes",
)

MOST_ENTRIES, MOST_BLINKS, MOST_SECONDS = 4, 5, 12

WAYS = {
    "left": "It moves to the left.",
    "right": "It moves to the right.",
    "up": "It moves up.",
    "down": "It moves down.",
    "": "It stands still.",
}
NO_SOUND = "There is no sound."
NO_KEYS = "No keys were dialled."


@dataclass(frozen=True, kw_only=True)
class Entry:
    """A shape, or a colour of the one shape, that is there from this second on. keys: dialled in its time."""

    second: int
    kind: str
    colour: str
    keys: str = ""


@dataclass(frozen=True, kw_only=True)
class Seen:
    """What happens in a clip of `num_seconds`.

    entries: by kind of clip: "colours" the colours of a shape one after another (kind is "" when it is the whole
    screen); "moves" the shape that moves, if any, and those that stand still; "blinks" the shape; "appears" the
    shapes one after another. way: where the first shape moves. blinks: at which seconds it lights up.
    """

    kind: SeenKind
    num_seconds: int
    entries: tuple[Entry, ...]
    way: str = ""
    blinks: tuple[int, ...] = ()
    sound: SoundKind = "none"
    num_beeps: int = 0
    keys: str = ""

    @property
    def kinds(self) -> list[str]:
        """The shapes in it, each once."""
        return list(dict.fromkeys(entry.kind for entry in self.entries if entry.kind))

    def facts(self, seconds: float) -> dict[str, str]:
        """What has been seen by the frame at that time, word by word; "none" where there is nothing."""
        entries = [entry for entry in self.entries if not entry.second or _is_seen(entry.second, seconds)]
        blinks = [second for second in self.blinks if _is_seen(second, seconds)]
        # A motion needs two frames that are well apart.
        found = {"way": self.way or "none"} if _is_seen(1, seconds) else {}
        found["blinks"] = str(len(blinks))
        for number in range(MOST_ENTRIES):
            entry = entries[number] if number < len(entries) else None
            found[f"colour {number}"] = entry.colour if entry else "none"
            found[f"kind {number}"] = entry.kind or "none" if entry else "none"
            found[f"second {number}"] = str(entry.second) if entry else "none"
        for number in range(MOST_BLINKS):
            found[f"blink {number}"] = str(blinks[number]) if number < len(blinks) else "none"
        return found


def _is_seen(second: int, seconds: float) -> bool:
    """What happens at a second happens up to 0.4 s after it."""
    return second + 0.4 < seconds


@dataclass(frozen=True, kw_only=True)
class _Question:
    """name: of its wordings. fill: what stands for {} in them."""

    name: str
    answer: str
    fill: str = ""


Asker: TypeAlias = Callable[[np.random.Generator, Seen], list[_Question]]


def turns_about(rng: np.random.Generator, seen: Seen, first: str, count: int) -> tuple[Turn, ...]:
    """Up to `count` different questions, the first of the task `first`."""
    names = [first, *(str(name) for name in rng.permutation(TASKS))]
    asked: dict[str, Turn] = {}
    # Tasks with several questions come round again.
    for name in names + names[1:]:
        open_questions = [question for question in _ASKERS[name](rng, seen) if question.name not in asked]
        if open_questions and len(asked) < count:
            question = pick(rng, open_questions)
            wording = pick(rng, WORDINGS[question.name]).format(question.fill)
            asked[question.name] = Turn(question=wording, answer=question.answer, task=name)
    return tuple(asked.values())


def _colours(rng: np.random.Generator, seen: Seen) -> list[_Question]:
    if seen.kind != "colours":
        return []
    names = [entry.colour for entry in seen.entries]
    before = int(rng.integers(len(names) - 1))
    # Only seconds in which nothing changes.
    changes = {entry.second for entry in seen.entries[1:]}
    quiet = [second for second in range(seen.num_seconds) if second not in changes]
    second = pick(rng, quiet)
    return [
        _Question(name="colour_order", answer=_list(names)),
        _Question(name="colour_order", answer=_list(names)),
        _Question(name="first_colour", answer=sentence(names[0])),
        _Question(name="last_colour", answer=sentence(names[-1])),
        _Question(name="colour_after", fill=names[before], answer=sentence(names[before + 1])),
        _Question(name="colour_at", fill=str(second), answer=sentence(_colour_at(seen, second))),
        _Question(name="num_colours", answer=f"{len(names)}."),
    ]


def _when(rng: np.random.Generator, seen: Seen) -> list[_Question]:
    if seen.kind == "colours":
        entry = pick(rng, seen.entries[1:])
        questions = [_Question(name="when_colour", fill=entry.colour, answer=_at(entry.second))]
        absent = _absent(rng, COLOURS, [entry.colour for entry in seen.entries])
        return (
            questions
            if rng.random() < 0.88
            else [_Question(name="when_colour", fill=absent, answer="Never.")]
        )
    if seen.kind == "appears":
        entry = pick(rng, seen.entries)
        if rng.random() < 0.88:
            return [_Question(name="when_shape", fill=entry.kind, answer=_at(entry.second))]
        absent = _absent(rng, SHAPES, seen.kinds)
        return [_Question(name="when_shape", fill=absent, answer=f"There is no {absent}.")]
    if seen.kind == "blinks" and seen.blinks:
        return [
            _Question(name="first_blink", answer=_at(seen.blinks[0])),
            _Question(name="last_blink", answer=_at(seen.blinks[-1])),
        ]
    return []


def _direction(rng: np.random.Generator, seen: Seen) -> list[_Question]:
    if seen.kind != "moves":
        return []
    if len(seen.entries) == 1:
        return [_Question(name="way", answer=WAYS[seen.way])]
    mover, *others = [entry.kind for entry in seen.entries]
    asked, moves = pick(rng, ((mover, "Yes."), (pick(rng, others), "No.")))
    return [
        _Question(name="way_of", fill=mover, answer=WAYS[seen.way]),
        _Question(name="way_of", fill=mover, answer=WAYS[seen.way]),
        _Question(name="mover", answer=_a(mover)),
        _Question(name="does_move", fill=asked, answer=moves),
    ]


def _blinks(rng: np.random.Generator, seen: Seen) -> list[_Question]:
    if seen.kind != "blinks":
        return []
    number = len(seen.blinks)
    times = {0: "It does not blink.", 1: "It blinks once."}.get(number, f"It blinks {number} times.")
    return [_Question(name="num_blinks", answer=times)]


def _appears(rng: np.random.Generator, seen: Seen) -> list[_Question]:
    if seen.kind != "appears":
        return []
    entry, kinds = pick(rng, seen.entries), [entry.kind for entry in seen.entries]
    questions = [
        _Question(name="shape_at", fill=str(entry.second), answer=_a(entry.kind)),
        _Question(name="shape_at", fill=str(entry.second), answer=_a(entry.kind)),
    ]
    if len(kinds) > 1:
        questions += [
            _Question(name="first_shape", answer=_a(kinds[0])),
            _Question(name="last_shape", answer=_a(kinds[-1])),
            _Question(name="shape_order", answer=sentence(", ".join(with_article(kind) for kind in kinds))),
        ]
    return questions


def _dialled(rng: np.random.Generator, seen: Seen) -> list[_Question]:
    if seen.sound != "keys":
        return [_Question(name="keys", answer=NO_SOUND if seen.sound == "none" else NO_KEYS)]
    questions = [_Question(name="keys", answer=seen.keys)]
    if seen.kind != "colours":
        return questions
    entry = pick(rng, seen.entries)
    fill = f"the {entry.kind} was {entry.colour}" if entry.kind else f"it was {entry.colour}"
    questions += [_Question(name="keys_while", fill=fill, answer=entry.keys or NO_KEYS)] * 4
    single = [(key, entry) for entry in seen.entries for key in entry.keys if seen.keys.count(key) == 1]
    if single:
        key, entry = pick(rng, single)
        questions.append(_Question(name="colour_of_key", fill=key, answer=sentence(entry.colour)))
    return questions


def _sound(rng: np.random.Generator, seen: Seen) -> list[_Question]:
    what = {"none": NO_SOUND, "keys": "Dial tones.", "beeps": "Beeps."}[seen.sound]
    questions = [
        _Question(name="any_sound", answer=yes_or_no(seen.sound != "none")),
        _Question(name="any_sound", answer=yes_or_no(seen.sound != "none")),
    ]
    # One beep is no row of beeps.
    if seen.num_beeps != 1:
        questions.append(_Question(name="which_sound", answer=what))
    if seen.sound == "beeps":
        questions.append(_Question(name="num_beeps", answer=f"{seen.num_beeps}."))
    return questions


def _shapes(rng: np.random.Generator, seen: Seen) -> list[_Question]:
    if not seen.kinds:
        return [_Question(name="any_shape", fill=with_article(pick(rng, SHAPES)), answer="No.")]
    questions = []
    asked = pick(rng, seen.kinds) if rng.random() < 0.5 else _absent(rng, SHAPES, seen.kinds)
    questions.append(
        _Question(name="any_shape", fill=with_article(asked), answer=yes_or_no(asked in seen.kinds))
    )
    if len(seen.kinds) == 1:
        questions.append(_Question(name="shape", answer=_a(seen.kinds[0])))
    if seen.kind != "colours":
        entry = pick(rng, seen.entries)
        questions.append(_Question(name="colour_of", fill=entry.kind, answer=sentence(entry.colour)))
        if sum(other.colour == entry.colour for other in seen.entries) == 1:
            questions.append(_Question(name="shape_of", fill=entry.colour, answer=_a(entry.kind)))
        questions.append(_Question(name="num_shapes", answer=f"{len(seen.entries)}."))
    return questions


_ASKERS: dict[str, Asker] = {
    "colours": _colours,
    "when": _when,
    "direction": _direction,
    "blinks": _blinks,
    "appears": _appears,
    "dialled": _dialled,
    "sound": _sound,
    "shapes": _shapes,
}


def _colour_at(seen: Seen, second: int) -> str:
    return [entry.colour for entry in seen.entries if entry.second <= second][-1]


def _absent(rng: np.random.Generator, names: Sequence[str], present: Sequence[str]) -> str:
    return pick(rng, [name for name in names if name not in present])


def _at(second: int) -> str:
    return f"At second {second}."


def _a(kind: str) -> str:
    return sentence(with_article(kind))


def _list(names: Sequence[str]) -> str:
    return sentence(", ".join(names))
