"""Calls whose errors are values and hold no local variables, which hold payloads. Knows nothing of batches."""

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
    """What the call returns, or a Failure whose traceback holds no local variables: they hold payloads, and
    the caller keeps the error.
    """
    found = _call(call, *args)
    if isinstance(found, Failure):
        seen: set[int] = set()
        errors: list[BaseException | None] = [found.error]
        while errors:
            error = errors.pop()
            if error is not None and id(error) not in seen:
                seen.add(id(error))
                traceback.clear_frames(error.__traceback__)
                errors += [error.__cause__, error.__context__]
    return found


def _call(call: Callable[..., Any], *args: Any) -> Any:
    try:
        return call(*args)
    except BaseException as error:  # A thread that dies would leave its callers waiting.
        return Failure(error=error)
