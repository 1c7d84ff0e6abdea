"""The one exception that becomes an OpenAI error object.

Knows the wire format and the status codes. Does not know which library raised what: that mapping is
`serve_apps.chat.errors`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

_TYPE_BY_STATUS = {401: "authentication_error", 429: "rate_limit_error"}

OPTIONS_FIELD = "mm_processor_kwargs"
"""The field of a request that says how its media are sampled."""

RETRY_AFTER_SECONDS = 1.0
"""What Retry-After says when nobody knows better."""


class ApiError(Exception):
    """A request that fails with `status` and the error object {"message", "type", "param", "code"}.

    Picklable, so a replica may hand it to another one as a value. `retry_after_s` becomes the Retry-After
    header.
    """

    def __init__(
        self,
        status: int,
        message: str,
        *,
        code: str | None = None,
        param: str | None = None,
        retry_after_s: float | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.code = code
        self.param = param
        self.retry_after_s = retry_after_s

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuild, (self.status, self.message, self.code, self.param, self.retry_after_s)

    @property
    def type(self) -> str:
        """OpenAI's error type for the status."""
        if self.status >= 500:
            return "server_error"
        return _TYPE_BY_STATUS.get(self.status, "invalid_request_error")

    def body(self) -> dict[str, Any]:
        """The JSON object of the response."""
        return {"error": {"message": self.message, "type": self.type, "param": self.param, "code": self.code}}

    def headers(self) -> dict[str, str]:
        """Extra response headers."""
        if self.status == 401:
            return {"WWW-Authenticate": "Bearer"}
        if self.retry_after_s is None:
            return {}
        return {"Retry-After": str(max(1, math.ceil(self.retry_after_s)))}


def _rebuild(
    status: int, message: str, code: str | None, param: str | None, retry_after_s: float | None
) -> ApiError:
    return ApiError(status, message, code=code, param=param, retry_after_s=retry_after_s)


def bad_request(message: str, param: str | None = None, code: str | None = None) -> ApiError:
    """400: the request is malformed or asks for something that is not served."""
    return ApiError(400, message, param=param, code=code)


def too_large(message: str, param: str | None = None) -> ApiError:
    """413: over a limit of the server. The message names the limit, its value and what came."""
    return ApiError(413, message, param=param, code="request_too_large")


def media_not_cached(params: Sequence[str]) -> ApiError:
    """404: these parts came without media, and nothing is kept under their uuids."""
    return ApiError(
        404,
        f"No media came with {', '.join(params)}, and nothing is cached under the uuid for this API key and these "
        f"'{OPTIONS_FIELD}'. Send the request again with the media.",
        code="media_not_cached",
        param=params[0],
    )


def unavailable(message: str, retry_after_s: float = RETRY_AFTER_SECONDS) -> ApiError:
    """503: the server cannot take the request now; the client may retry."""
    return ApiError(503, message, code="unavailable", retry_after_s=retry_after_s)


def overloaded(message: str, retry_after_s: float = RETRY_AFTER_SECONDS) -> ApiError:
    """503: every queue is full; the client may retry."""
    return ApiError(503, message, code="overloaded", retry_after_s=retry_after_s)


def deadline_exceeded(timeout_s: float) -> ApiError:
    """504: the answer was not finished in the time the request has."""
    return ApiError(
        504,
        f"The answer was not finished within {timeout_s:g} seconds, which is the time this request has. "
        "Ask for less, or for more time where the server allows it.",
        code="deadline_exceeded",
    )


def internal_error() -> ApiError:
    """500: our own bug. Says nothing of the inside; the log has the traceback."""
    return ApiError(
        500, "The server failed while it handled this request; its log says more.", code="internal_error"
    )
