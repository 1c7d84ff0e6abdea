"""Calls whose errors are values and hold no frames. Knows nothing of batches."""

from __future__ import annotations

import traceback
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, kw_only=True)
class Failure:
    """What a call raised."""

    error: BaseException


def attempt(call: Callable[..., Any], *args: Any) -> Any:
    """What the call returns, or a Failure. Its error keeps its traceback as a note and not as frames: these, and
    all that called them, would hold payloads for as long as the caller keeps the error.
    """
    try:
        return call(*args)
    except BaseException as error:  # A thread that dies would leave its callers waiting.
        error.add_note("".join(traceback.format_tb(error.__traceback__)))
        _drop_frames(error)
        return Failure(error=error)


def _drop_frames(error: BaseException) -> None:
    seen: set[int] = set()
    errors: list[BaseException | None] = [error]
    while errors:
        one = errors.pop()
        if one is not None and id(one) not in seen:
            seen.add(id(one))
            one.__traceback__ = None
            errors += [one.__cause__, one.__context__]
