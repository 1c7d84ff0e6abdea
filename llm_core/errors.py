"""What the engine raises to its callers."""

from __future__ import annotations


class RequestError(ValueError):
    """A request that cannot be served as it is. `param` names the field at fault."""

    def __init__(self, message: str, *, param: str | None = None) -> None:
        super().__init__(message)
        self.param = param


class ContextTooLongError(RequestError):
    """The prompt, or the prompt and the wished answer, exceed the context."""


class EngineError(RuntimeError):
    """The engine cannot take or finish work."""


class EngineOverloadedError(EngineError):
    """The queue is full; `retry_after_s` says when to come back."""

    def __init__(self, message: str, *, retry_after_s: float) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


class EngineDeadError(EngineError):
    """The engine thread has stopped."""


class CheckpointError(ValueError):
    """A checkpoint folder that does not hold what its configuration promises."""
