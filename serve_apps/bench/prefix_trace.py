"""Made-up conversations for `mmserve bench prefix`: what is said, turn by turn, in which order. Knows no engine."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain

import numpy as np

from llm_core.core import EmbedSpan
from llm_core.prefix import PageKey, page_keys

VOCABULARY = 256


@dataclass(frozen=True, kw_only=True)
class Shape:
    """How conversations of a kind look. system: lengths of the system prompts, of which every session has one.

    said: tokens that a turn adds, from and to. picture_share: of the turns, those that come with a picture.
    """

    sessions: int
    turns: int
    system: tuple[int, ...]
    said: tuple[int, int]
    picture_share: float


TRACES = {
    "agentic": Shape(sessions=50, turns=12, system=(2048,), said=(100, 400), picture_share=0.2),
    "chat": Shape(sessions=50, turns=6, system=(200,), said=(20, 80), picture_share=0.3),
    "shared-system": Shape(sessions=200, turns=1, system=(2048,) * 4, said=(50, 200), picture_share=0.1),
}
PICTURE_TOKENS = 64


@dataclass(frozen=True, kw_only=True)
class Said:
    """What one turn adds. picture: the name of one that comes before the text, or "" for none."""

    token_ids: tuple[int, ...]
    picture: str


@dataclass
class Session:
    """A conversation as far as it has come: its tokens and pictures so far, and what is still to be said."""

    number: int
    said: Sequence[Said]
    token_ids: list[int]
    pictures: list[tuple[int, str]] = field(default_factory=list)
    num_turns: int = 0

    def speak(self) -> None:
        """Adds the next turn of the user."""
        turn = self.said[self.num_turns]
        self.num_turns += 1
        if turn.picture:
            self.pictures.append((len(self.token_ids), turn.picture))
            self.token_ids += [0] * PICTURE_TOKENS
        self.token_ids += turn.token_ids


def make_sessions(shape: Shape, seed: int) -> list[Session]:
    rng = np.random.default_rng([3, seed])
    systems = [rng.integers(0, VOCABULARY, length).tolist() for length in shape.system]
    sessions = []
    for number in range(shape.sessions):
        turns = [
            Said(
                token_ids=tuple(rng.integers(0, VOCABULARY, int(rng.integers(*shape.said))).tolist()),
                picture=f"{number}-{turn}" if rng.random() < shape.picture_share else "",
            )
            for turn in range(shape.turns)
        ]
        sessions.append(Session(number=number, said=turns, token_ids=list(systems[number % len(systems)])))
    return sessions


def order_of_turns(sessions: Sequence[Session], seed: int) -> Iterator[Session]:
    """Each session as often as it has turns, shuffled: between two turns of one come turns of others."""
    rng = np.random.default_rng([4, seed])
    order = list(chain.from_iterable([session] * len(session.said) for session in sessions))
    for index in rng.permutation(len(order)):
        yield order[index]


class Ideal:
    """A cache that forgets nothing and needs no windows: how much of a prompt was there before, in whole pages."""

    def __init__(self, page_size: int) -> None:
        self._page_size = page_size
        self._known: set[PageKey] = set()

    def meet(self, token_ids: Sequence[int], spans: Sequence[EmbedSpan], num_prompt: int) -> int:
        """How many of the prompt's tokens are known; all of `token_ids` is, afterwards."""
        found = 0
        for index, key in enumerate(page_keys(token_ids, spans, 0, self._page_size)):
            found += key in self._known and (index + 1) * self._page_size < num_prompt
            self._known.add(key)
        return found * self._page_size

    @property
    def num_pages(self) -> int:
        return len(self._known)
