"""Questions whose answers come from counting the shapes of one scene. Paints nothing."""

from __future__ import annotations

import numpy as np

from samples.demo_training.scenes.layouts import Scene
from samples.demo_training.scenes.shapes import COLOURS, SHAPES, pick
from samples.demo_training.scenes.wording import NUMBERS, Exchange, plural, yes_or_no

_SHARE_ABSENT = 0.12
SAME_NUMBER = "The same number."


def number_of(scene: Scene, *, kind: str | None = None, colour: str | None = None) -> int:
    return sum(kind in (None, shape.kind) and colour in (None, shape.colour) for shape in scene.shapes)


def ask_number(rng: np.random.Generator, words: str) -> str:
    wordings = (
        "How many {} are there?",
        "How many {} do you see?",
        "How many {} are in the picture?",
        "Count the {}.",
        "What is the number of {}?",
        "How many {} does the picture show?",
        "How many {} can you count?",
    )
    return pick(rng, wordings).format(words)


def some_group(rng: np.random.Generator, scene: Scene) -> tuple[int, str]:
    """How many, and of what: all shapes, those of a colour, of a kind, or both; seldom of what is not there."""
    by = pick(rng, ("all", "colour", "kind", "kind", "both"))
    if by == "all":
        return len(scene.shapes), "shapes"
    if rng.random() < _SHARE_ABSENT or not scene.shapes:
        colour, kind = pick(rng, COLOURS), pick(rng, SHAPES)
    else:
        shape = pick(rng, scene.shapes)
        colour, kind = shape.colour, shape.kind
    if by == "colour":
        return number_of(scene, colour=colour), f"{colour} shapes"
    if by == "kind":
        return number_of(scene, kind=kind), plural(kind)
    return number_of(scene, colour=colour, kind=kind), f"{colour} {plural(kind)}"


def count(rng: np.random.Generator, scene: Scene) -> Exchange:
    number, words = some_group(rng, scene)
    return [(ask_number(rng, words), f"{number}.")]


def two_groups(rng: np.random.Generator, scene: Scene) -> tuple[tuple[int, str], tuple[int, str]] | None:
    """Two kinds or two colours with their numbers; at least one of each, but for a few cases."""
    by_kind = bool(rng.random() < 0.65)
    present = sorted(set(scene.kinds if by_kind else scene.colours))
    absent = [name for name in (SHAPES if by_kind else COLOURS) if name not in present]
    if absent and rng.random() < _SHARE_ABSENT:
        present = [*present[:1], pick(rng, absent)]
    if len(present) < 2:
        return None
    chosen = [present[index] for index in rng.permutation(len(present))[:2]]
    if by_kind:
        first, second = ((number_of(scene, kind=kind), plural(kind)) for kind in chosen)
    else:
        first, second = ((number_of(scene, colour=colour), f"{colour} shapes") for colour in chosen)
    return first, second


def compare(rng: np.random.Generator, scene: Scene) -> Exchange:
    groups = two_groups(rng, scene)
    if not groups:
        return []
    (first, words), (second, other_words) = groups
    wordings = (
        "Are there more {} or {}?",
        "Do you see more {} or {}?",
        "Which are there more of, {} or {}?",
        "What is there more of: {} or {}?",
        "Does the picture show more {} or {}?",
        "Of which are there more, {} or {}?",
    )
    answer = SAME_NUMBER if first == second else f"More {words if first > second else other_words}."
    return [(pick(rng, wordings).format(words.removesuffix(" shapes"), other_words), answer)]


def is_more(rng: np.random.Generator, scene: Scene) -> Exchange:
    groups = two_groups(rng, scene)
    if not groups:
        return []
    (first, words), (second, other_words) = groups
    wordings = (
        "Are there more {} than {}?",
        "Do you see more {} than {}?",
        "Is it true that there are more {} than {}?",
    )
    return [(pick(rng, wordings).format(words, other_words), yes_or_no(first > second))]


def is_number(rng: np.random.Generator, scene: Scene) -> Exchange:
    number, words = some_group(rng, scene)
    said = number if rng.random() < 0.5 else number + pick(rng, (-1, 1))
    if said < 2:
        return []
    wordings = ("Are there {} {}?", "Do you see {} {}?", "Are there exactly {} {}?")
    # "There are two" is also true of three: only "exactly" asks that.
    wording = wordings[2] if said < number else pick(rng, wordings)
    return [(wording.format(NUMBERS[said], words), yes_or_no(said == number))]


def arithmetic(rng: np.random.Generator, scene: Scene) -> Exchange:
    return pick(rng, (_together, _taken_away, _taken_away, _added, _how_many_more))(rng, scene)


def figure(rng: np.random.Generator, number: int) -> str:
    """A number as people write it: in a word or in digits."""
    return NUMBERS[number] if rng.random() < 0.6 else str(number)


def noun(number: int, plural_words: str) -> str:
    """ "circles" or, for one, "circle"."""
    if number != 1:
        return plural_words
    return (
        plural_words.removesuffix("es") if plural_words.endswith("sses") else plural_words.removesuffix("s")
    )


def _together(rng: np.random.Generator, scene: Scene) -> Exchange:
    groups = two_groups(rng, scene)
    if not groups:
        return []
    (first, words), (second, other_words) = groups
    wordings = (
        "How many {} and {} are there together?",
        "How many {} and {} are there in all?",
        "How many are the {} and the {} together?",
        "What is the number of {} plus the number of {}?",
        "Add the number of {} and the number of {}.",
    )
    return [(pick(rng, wordings).format(words, other_words), f"{first} + {second} = {first + second}.")]


def _taken_away(rng: np.random.Generator, scene: Scene) -> Exchange:
    number, words = some_group(rng, scene)
    if number == 0:
        return []
    taken = int(rng.integers(1, number + 1))
    of_all = words != "shapes" and rng.random() < 0.5
    total, left = (len(scene.shapes), "shapes") if of_all else (number, words)
    wordings = (
        "If I take {} {} away, how many {} are left?",
        "I take {} {} away. How many {} remain?",
        "How many {2} are left if I take away {0} {1}?",
        "How many {2} remain without {0} {1}?",
        "Without {} {}, how many {} are there?",
    )
    question = pick(rng, wordings).format(figure(rng, taken), noun(taken, words), left)
    return [(question, f"{total} - {taken} = {total - taken}.")]


def _added(rng: np.random.Generator, scene: Scene) -> Exchange:
    number, words = some_group(rng, scene)
    more = int(rng.integers(1, 5))
    wordings = (
        "If I add {} {}, how many {} are there?",
        "I draw {} more {}. How many {} are there then?",
        "How many {2} are there if I add {0} {1}?",
        "With {} more {}, how many {} are there?",
    )
    question = pick(rng, wordings).format(figure(rng, more), noun(more, words), words)
    return [(question, f"{number} + {more} = {number + more}.")]


def _how_many_more(rng: np.random.Generator, scene: Scene) -> Exchange:
    groups = two_groups(rng, scene)
    if not groups:
        return []
    (first, words), (second, other_words) = sorted(groups, reverse=True)
    if first == second:
        return []
    wordings = (
        "How many more {} than {} are there?",
        "How many more {} than {} do you see?",
        "By how many are there more {} than {}?",
        "How many {} are there more than {}?",
    )
    return [(pick(rng, wordings).format(words, other_words), f"{first} - {second} = {first - second}.")]
