"""Words that name shapes, and where they stand among a conversation's tokens. Knows no scene and no model."""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate

from samples.demo_training.labels import COLOURS, SHAPES
from samples.demo_training.scenes.base import Mark

_KIND = "|".join(f"{kind}(?:es|s)?" for kind in SHAPES)
_WORDS = re.compile(rf"\b(?:({'|'.join(COLOURS)})\b)?\s*(?:\b({_KIND}|shapes?|thing)\b)?", re.IGNORECASE)


@dataclass(frozen=True, kw_only=True)
class Named:
    """Words like "red" or "red circles". start, end: in the text. colour, kind: "" for any."""

    start: int
    end: int
    colour: str
    kind: str

    def fits(self, colour: str, kind: str) -> bool:
        return self.colour in ("", colour) and self.kind in ("", kind)

    def among(self, marks: Sequence[Mark]) -> list[Mark]:
        """The shapes they name."""
        return [mark for mark in marks if mark.kind == "shape" and self.fits(mark.colour, mark.name)]


class Text:
    """pieces: the texts of a conversation's tokens."""

    def __init__(self, pieces: Sequence[str]) -> None:
        self.whole = "".join(pieces)
        self._ends = list(accumulate(len(piece) for piece in pieces))

    @property
    def num_tokens(self) -> int:
        return len(self._ends)

    def token_with(self, place: int) -> int:
        """Number of the token with the character at this place."""
        return bisect_right(self._ends, place)

    def start_of(self, token: int) -> int:
        """Where the token begins."""
        return self._ends[token - 1] if token else 0

    def shapes_named(self) -> Iterator[Named]:
        """In "red circle" two are named: "red" before one knows what, and "red circle"."""
        for found in _WORDS.finditer(self.whole):
            colour, noun = (found[group].lower() if found[group] else "" for group in (1, 2))
            if colour:
                yield Named(start=found.start(1), end=found.end(1), colour=colour, kind="")
            if noun:
                kind = next((kind for kind in SHAPES if noun.startswith(kind)), "")
                start = found.start(1) if colour else found.start(2)
                yield Named(start=start, end=found.end(2), colour=colour, kind=kind)
