"""Where the decoder should look from which word of a conversation: it follows from the scene and the words so far.

From the end of each part of a video at the shapes in it. From a word that names shapes at these; in a video at the
parts in which they are the latest to be seen; from "second 4" at that part; from the letters of "Does it say CAT?"
at those that are printed. Before each letter, key or shape of an answer that names one after another, at the next.
Knows no model.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Literal, TypeAlias

import torch

from mm_pipeline.prompt import MediaSpan
from samples.demo_training.labels import token_of
from samples.demo_training.named import Named, Text
from samples.demo_training.scenes.base import Clip, Mark, Medium, Picture
from samples.demo_training.scenes.seen import MOST_ENTRIES

LookKind: TypeAlias = Literal["word", "phrase", "next"]

_ORDINALS = {"first": 0, "second": 1, "third": 2, "last": -1}
_WHICH_LETTER = re.compile(rf"\b({'|'.join(_ORDINALS)}) (?:letter|digit)\b")
# In a question.
_CLAIMED = re.compile(r"\b(?:[A-Z]{2,}|[0-9]+)\b")
_SECOND = re.compile(r"\bsecond (\d+)")
_READ_ALOUD = re.compile(r"It says ([A-Z0-9]+)\.")
_HEARD = re.compile(r"[A-Z0-9*#]|(?:Loud|Soft|High|Low)(?=\W|$)", re.IGNORECASE)
_ALL_HEARD = re.compile(r"[A-Z0-9*#]+|(?:(?:Loud|Soft|High|Low)(?:, |\.))+", re.IGNORECASE)


@dataclass(frozen=True, kw_only=True)
class Look:
    """From the token at `position`, at the tokens `at` of the same conversation, all earlier.

    kind: "word" for what the one word names, "phrase" for what it and the words before it name, "next" for what is
    to be named next.
    """

    kind: LookKind
    position: int
    at: tuple[int, ...]


Chosen: TypeAlias = Callable[[Sequence[Mark]], list[Mark]]


class Looks:
    """See the module's text.

    turns: each answer's [first, end) tokens. grids: of the pictures' patches. units: of a video, the last token of
    each and when its last frame is shown. signs: `Conversation.signs`.
    """

    def __init__(
        self,
        text: Text,
        media: Sequence[Medium],
        spans: Sequence[MediaSpan],
        *,
        turns: Sequence[tuple[int, int]],
        grids: Sequence[tuple[int, int, int]],
        units: Sequence[tuple[int, float]],
        signs: torch.Tensor,
    ) -> None:
        self._text, self._turns, self._grids, self._units, self._signs = text, turns, grids, units, signs
        pictures = [medium for medium in media if isinstance(medium, Picture)]
        self._pictures = pictures if len(pictures) == len(media) else []
        self._clip = media[0] if len(media) == 1 and isinstance(media[0], Clip) else None
        self._starts = {span.media_index: span.start for span in reversed(spans)}

    def all(self) -> tuple[Look, ...]:
        """Of one conversation."""
        parts = (
            [self._at_shapes(), self._at_letters()] if self._pictures else [],
            [self._at_units(self._clip)] if self._clip else [],
            [self._at_signs()],
        )
        return tuple(look for part in parts for looks in part for look in looks)

    def _at_shapes(self) -> Iterator[Look]:
        for named in self._text.shapes_named():
            position = self._text.token_with(named.end - 1)
            if named.colour or named.kind:
                yield from self._at_marks("phrase", position, named.among)
            # A word alone names more than the phrase that it ends.
            word = replace(named, colour="") if named.kind else named
            if word.colour or word.kind:
                yield from self._at_marks("word", position, word.among)
            first = self._text.token_with(named.start)
            if named.colour and named.kind and any(start <= first < end for start, end in self._turns):
                yield from self._at_marks("next", first - 1, named.among)

    def _at_letters(self) -> Iterator[Look]:
        for said in _READ_ALOUD.finditer(self._text.whole):
            for index in range(len(said[1])):
                before = self._text.token_with(said.start(1) + index) - 1
                yield from self._at_marks("next", before, partial(_letters, index=index))
        for claimed in _CLAIMED.finditer(self._text.whole):
            token = self._text.token_with(claimed.start())
            if not any(first <= token < end for first, end in self._turns):
                for index in range(claimed.start(), claimed.end()):
                    chosen = partial(_letters, index=index - claimed.start())
                    yield from self._at_marks("phrase", self._text.token_with(index), chosen)
        for asked in _WHICH_LETTER.finditer(self._text.whole):
            chosen = partial(_letters, index=_ORDINALS[asked[1]])
            yield from self._at_marks("phrase", self._text.token_with(asked.end() - 1), chosen)

    def _at_marks(self, kind: LookKind, position: int, chosen: Chosen) -> Iterator[Look]:
        """At the tokens with the centres of the chosen marks, if there are any."""
        at = [
            self._starts[index] + token_of(mark.box, picture.pixels.shape[:2], self._grids[index])
            for index, picture in enumerate(self._pictures)
            for mark in chosen(picture.marks)
        ]
        if at:
            yield Look(kind=kind, position=position, at=tuple(at))

    def _at_units(self, clip: Clip) -> Iterator[Look]:
        (grid,) = self._grids
        for position, seconds in self._units:
            first = position + 1 - grid[1] * grid[2] // 4
            size = clip.draw(seconds).shape[:2]
            at = [first + token_of(mark.box, size, grid) for mark in clip.marks(seconds)]
            if at:
                yield Look(kind="word", position=position, at=tuple(at))
        for named in self._text.shapes_named():
            at = [position for position, seconds in self._units if _is_latest(clip, seconds, named)]
            if at and (named.colour or named.kind):
                yield Look(kind="phrase", position=self._text.token_with(named.end - 1), at=tuple(at))
        for said in _SECOND.finditer(self._text.whole):
            at = [position for position, seconds in self._units if seconds >= int(said[1]) + 0.45][:1]
            position = self._text.token_with(said.end() - 1)
            if at and position > at[0]:
                yield Look(kind="phrase", position=position, at=tuple(at))

    def _at_signs(self) -> Iterator[Look]:
        """Before each of the signs that an answer names, where it is the last that was heard; only where an answer
        names all."""
        numbers = self._signs[:, 0]
        for first, end in self._turns:
            start = self._text.start_of(first)
            answer = self._text.whole[start : self._text.start_of(end - 1)]
            named = list(_HEARD.finditer(answer)) if _ALL_HEARD.fullmatch(answer) else []
            if not named or int(numbers.max()) != len(named):
                continue
            for number, sign in enumerate(named, start=1):
                at = (numbers == number).nonzero().flatten().tolist()
                if at:
                    position = self._text.token_with(start + sign.start()) - 1
                    yield Look(kind="next", position=position, at=tuple(at))


def _letters(marks: Sequence[Mark], index: int) -> list[Mark]:
    """The one with this index, counted as in a list."""
    letters = sorted((mark for mark in marks if mark.kind == "glyph"), key=lambda mark: mark.index)
    return letters[index:][:1]


def _is_latest(clip: Clip, seconds: float, named: Named) -> bool:
    """Whether what is named is among the latest that has been seen by then."""
    facts = clip.facts(seconds)
    seen = [number for number in range(MOST_ENTRIES) if facts[f"second {number}"] != "none"]
    latest = facts[f"second {seen[-1]}"] if seen else ""
    return any(
        facts[f"second {number}"] == latest and named.fits(facts[f"colour {number}"], facts[f"kind {number}"])
        for number in seen
    )


def centres_of(
    media: Sequence[Medium], spans: Iterable[MediaSpan], grids: Sequence[tuple[int, int, int]]
) -> list[dict[int, Mark]]:
    """Per picture its shapes by the token that has their centre; not those that share one."""
    pictures = [medium for medium in media if isinstance(medium, Picture)]
    starts = [span.start for span in spans if span.modality == "image" and not span.offset]
    found = []
    for picture, start, grid in zip(pictures, starts, grids, strict=len(pictures) == len(media)):
        by_token: dict[int, list[Mark]] = {}
        for mark in picture.marks:
            if mark.kind == "shape":
                token = start + token_of(mark.box, picture.pixels.shape[:2], grid)
                by_token.setdefault(token, []).append(mark)
        found.append({token: marks[0] for token, marks in by_token.items() if len(marks) == 1})
    return found


def units_of(spans: Iterable[MediaSpan], times: Sequence[float]) -> list[tuple[int, float]]:
    """The last token of each unit of a video, and when its last frame is shown: one of `times`."""
    seen = [span for span in spans if span.modality == "video"]
    return [(span.start + span.length - 1, seconds) for span, seconds in zip(seen, times, strict=True)]
