"""When an answer counts as right. Knows no model and no media."""

from __future__ import annotations


def normalise(answer: str) -> str:
    """The answer without what does not matter: case, blanks and the punctuation at its end."""
    return "".join(answer.split()).casefold().rstrip(".!?")


def is_right(answer: str, expected: str) -> bool:
    """Whether the answer says word by word what is expected."""
    return normalise(answer) == normalise(expected)
