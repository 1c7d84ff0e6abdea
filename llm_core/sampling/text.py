"""Tokens to text, as they come: incremental detokenising and stop strings."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol


class Decoder(Protocol):
    """The part of `tokenizers.Tokenizer` that is needed."""

    def decode(self, ids: Sequence[int], skip_special_tokens: bool = True) -> str: ...


_REPLACEMENT = "�"
# A character has at most 4 bytes, so a fifth undecodable token means the bytes are broken, not incomplete.
_MAX_PENDING_TOKENS = 4


class IncrementalDetokenizer:
    """Text of a growing list of tokens, without ever taking back what it gave.

    Tokens [begin, seen) are decoded again with each new token, because a token's text may depend on the one
    before it; a character whose bytes are still incomplete is held back.
    """

    def __init__(self, decoder: Decoder) -> None:
        self._decoder = decoder
        self._ids: list[int] = []
        self._begin = 0
        self._seen = 0

    def add(self, token_id: int) -> str:
        """The text that became certain with this token."""
        self._ids.append(token_id)
        is_pending = len(self._ids) - self._seen < _MAX_PENDING_TOKENS
        return self._advance(hold_back=is_pending)

    def flush(self) -> str:
        """What was held back; broken bytes become replacement characters."""
        return self._advance(hold_back=False)

    def _advance(self, *, hold_back: bool) -> str:
        known = self._decoder.decode(self._ids[self._begin : self._seen], skip_special_tokens=True)
        text = self._decoder.decode(self._ids[self._begin :], skip_special_tokens=True)
        if hold_back and text.endswith(_REPLACEMENT):
            return ""
        self._begin, self._seen = self._seen, len(self._ids)
        return text[len(known) :]


class StopStrings:
    """Cuts a stream of text at the stop string that is complete first; text that may become one is held back."""

    def __init__(self, stops: Sequence[str]) -> None:
        self._stops = tuple(stops)
        self._held = ""

    def add(self, text: str) -> tuple[str, str | None]:
        """New text to hand out, and the stop string met, if any. Nothing may be added after a stop."""
        self._held += text
        # The one that is complete first wins, and of those that end together the longest: so the cut does not
        # depend on how the text was split into tokens.
        first = min(
            ((at, stop) for stop in self._stops if (at := self._held.find(stop)) >= 0),
            default=None,
            key=lambda found: (found[0] + len(found[1]), found[0]),
        )
        if first is not None:
            at, stop = first
            return self._held[:at], stop
        keep = self._num_undecided()
        out = self._held[: len(self._held) - keep]
        self._held = self._held[len(out) :]
        return out, None

    def flush(self) -> str:
        """What was held back."""
        out, self._held = self._held, ""
        return out

    def _num_undecided(self) -> int:
        """Length of the longest end of the text that begins a stop string."""
        longest = max(map(len, self._stops), default=1) - 1
        for length in range(min(longest, len(self._held)), 0, -1):
            if any(stop.startswith(self._held[-length:]) for stop in self._stops):
                return length
        return 0
