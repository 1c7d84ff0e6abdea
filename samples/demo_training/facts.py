"""What the decoder should know at which word of a conversation: facts that follow from the scene and what was said.

At the centre of a shape it should know how many like it came before, row by row, which makes counting a matter of
averages. At a word that names shapes ("red", "circles", "red circle") it should know how many there are, in which
colours, of which kinds and where; where an answer begins, what is printed; there and after each part of a video,
what has happened in it. Knows no model.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

import torch

from samples.demo_training.labels import COLOURS, GLYPHS, IGNORED, NUM_PLACES, SHAPES
from samples.demo_training.named import Named, Text
from samples.demo_training.scenes.base import Clip, Mark, Medium, Picture
from samples.demo_training.scenes.seen import MOST_BLINKS, MOST_ENTRIES, MOST_SECONDS, WAYS

_YES_NO = ("no", "yes")
_MOST_SHAPES = 7
_FIELDS = tuple(
    f"{down} {across}" for down in ("top", "centre", "bottom") for across in ("left", "middle", "right")
)
_NTH = ("nth of all", "nth of its colour", "nth of its kind")
_PLACES_NOW, _NUM_PLACES_NOW = ("across now", "down now"), 5
_COUNTS = ("number in the first", "number in the second")
_SECONDS = ("none", *(str(second) for second in range(MOST_SECONDS + 1)))

FACTS: Mapping[str, tuple[str, ...]] = {
    **dict.fromkeys(_COUNTS, tuple(str(number) for number in range(_MOST_SHAPES + 1))),
    **dict.fromkeys((*COLOURS, *SHAPES, *_FIELDS), _YES_NO),
    "field": _FIELDS,
    **{f"glyph {place}": ("none", *GLYPHS) for place in range(NUM_PLACES)},
    **{f"colour {entry}": ("none", *COLOURS) for entry in range(MOST_ENTRIES)},
    **{f"kind {entry}": ("none", *SHAPES) for entry in range(MOST_ENTRIES)},
    **{f"second {entry}": _SECONDS for entry in range(MOST_ENTRIES)},
    **{f"blink {blink}": _SECONDS for blink in range(MOST_BLINKS)},
    "way": ("none", *(way for way in WAYS if way)),
    "blinks": tuple(str(number) for number in range(MOST_BLINKS + 1)),
    **dict.fromkeys(_NTH, tuple(str(number) for number in range(1, _MOST_SHAPES + 1))),
    **dict.fromkeys(_PLACES_NOW, ("none", *(str(place) for place in range(_NUM_PLACES_NOW)))),
    "colour now": ("none", *COLOURS),
    "kind now": ("none", *SHAPES),
}
"""Every fact and what it may be."""

_NAMES = {name: index for index, name in enumerate(FACTS)}


def facts_known(
    text: Text,
    media: Sequence[Medium],
    answers: Iterable[int],
    *,
    centres: Sequence[Mapping[int, Mark]] = (),
    units: Iterable[tuple[int, float]] = (),
) -> torch.Tensor:
    """int64 [S, F]: the place of each fact in its row of `FACTS`, IGNORED where it is not asked.

    answers: numbers of the tokens that answers begin with. centres: per picture, the tokens with one shape's
    centre, and the shape. units: of a video, the last token of each and when its last frame is shown.
    """
    known = torch.full((text.num_tokens, len(FACTS)), IGNORED)
    pictures = [medium for medium in media if isinstance(medium, Picture)]
    if pictures and len(pictures) == len(media):
        for named in text.shapes_named():
            _write(known[text.token_with(named.end - 1)], _facts_of_shapes(pictures, named))
    for shapes in centres:
        _number(known, shapes)
    of_all: Mapping[str, str] = {}
    if len(media) == 1:
        (medium,) = media
        if isinstance(medium, Clip):
            of_all = medium.facts(math.inf)
            for position, seconds in units:
                facts = medium.facts(seconds)
                _write(known[position], {**facts, **_facts_of_now(facts), **_places_now(medium, seconds)})
        elif isinstance(medium, Picture):
            glyphs = {mark.index: mark.name for mark in medium.marks if mark.kind == "glyph"}
            of_all = {f"glyph {place}": glyphs.get(place, "none") for place in range(NUM_PLACES)}
    for first in answers:
        _write(known[first - 1], of_all)
    return known


def _number(known: torch.Tensor, shapes: Mapping[int, Mark]) -> None:
    seen: Counter[tuple[str, str]] = Counter()
    for position in sorted(shapes):
        mark = shapes[position]
        groups = dict(zip(_NTH, (("", ""), (mark.colour, ""), ("", mark.name)), strict=True))
        seen.update(groups.values())
        _write(known[position], {name: str(seen[group]) for name, group in groups.items()})


def _write(row: torch.Tensor, facts: Mapping[str, str]) -> None:
    for name, value in facts.items():
        row[_NAMES[name]] = FACTS[name].index(value)


def _facts_of_shapes(pictures: Sequence[Picture], named: Named) -> dict[str, str]:
    shapes = [named.among(picture.marks) for picture in pictures]
    facts = {name: str(min(len(marks), _MOST_SHAPES)) for name, marks in zip(_COUNTS, shapes, strict=False)}
    if len(pictures) == 1:
        there = {
            *(mark.colour for mark in shapes[0]),
            *(mark.name for mark in shapes[0]),
            *(_field(mark, pictures[0]) for mark in shapes[0]),
        }
        facts |= {name: _YES_NO[name in there] for name in (*COLOURS, *SHAPES, *_FIELDS)}
        if len(shapes[0]) == 1:
            facts["field"] = _field(shapes[0][0], pictures[0])
    return facts


def _facts_of_now(facts: Mapping[str, str]) -> dict[str, str]:
    """The latest of what has been seen, if it is one thing."""
    seen = [number for number in range(MOST_ENTRIES) if facts[f"second {number}"] != "none"]
    seconds = [facts[f"second {number}"] for number in seen]
    if seconds and seconds.count(seconds[-1]) == 1:
        return {f"{what} now": facts[f"{what} {seen[-1]}"] for what in ("colour", "kind")}
    return {}


def _places_now(clip: Clip, seconds: float) -> dict[str, str]:
    """Where the first of the shapes is that are there; where one moves, that one."""
    shown = clip.marks(seconds)
    if not shown:
        return dict.fromkeys(_PLACES_NOW, "none")
    height, width = clip.draw(seconds).shape[:2]
    left, top, right, bottom = shown[0].box
    shares = (left + right) / 2 / width, (top + bottom) / 2 / height
    places = (min(_NUM_PLACES_NOW - 1, max(0, int(share * _NUM_PLACES_NOW))) for share in shares)
    return {name: str(place) for name, place in zip(_PLACES_NOW, places, strict=True)}


def _field(mark: Mark, picture: Picture) -> str:
    height, width = picture.pixels.shape[:2]
    left, top, right, bottom = mark.box
    across = min(2, max(0, int(3 * (left + right) / 2 / width)))
    down = min(2, max(0, int(3 * (top + bottom) / 2 / height)))
    return _FIELDS[3 * down + across]
