"""How answers are worded. Knows no scenes."""

from __future__ import annotations

from typing import TypeAlias

Exchange: TypeAlias = list[tuple[str, str]]
"""Questions with their answers that follow on each other; empty where a task cannot be asked without doubt."""

NUMBERS = ("no", "one", "two", "three", "four", "five", "six", "seven")


def sentence(words: str) -> str:
    return words[0].upper() + words[1:] + "."


def yes_or_no(truth: bool) -> str:
    return "Yes." if truth else "No."


def listing(phrases: list[str]) -> str:
    """ "a", "a and b", "a, b and c"."""
    if len(phrases) < 2:
        return "".join(phrases)
    return f"{', '.join(phrases[:-1])} and {phrases[-1]}"


def plural(shape: str) -> str:
    return shape + ("es" if shape.endswith("s") else "s")


def with_article(phrase: str) -> str:
    return f"{'an' if phrase[0] in 'aeiou' else 'a'} {phrase}"
