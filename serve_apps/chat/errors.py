"""The one place that turns errors of mm_pipeline and llm_core into OpenAI errors."""

from __future__ import annotations

import logging
from dataclasses import fields

from llm_core.errors import ContextTooLongError, EngineDeadError, EngineOverloadedError, RequestError
from mm_pipeline.errors import MediaError, QueueFullError
from mm_pipeline.options import MediaOptions
from serve_apps.api.errors import (
    OPTIONS_FIELD,
    RETRY_AFTER_SECONDS,
    ApiError,
    bad_request,
    internal_error,
    overloaded,
    unavailable,
)

_OPTION_NAMES = frozenset(option.name for option in fields(MediaOptions))

_log = logging.getLogger(__name__)


def to_api_error(error: BaseException, *, param: str | None = None) -> ApiError:
    """The error a client sees. `param` names the part of the request that was being worked on."""
    if isinstance(error, ApiError):
        if error.param is None and error.status < 500:
            error.param = param
        return error
    if isinstance(error, QueueFullError):
        return overloaded(error.message, retry_after_s=error.retry_after_s)
    if isinstance(error, MediaError) and error.status >= 500:
        # Not the item's fault: no part of the request is to blame.
        retry_after_s = RETRY_AFTER_SECONDS if error.status == 503 else None
        return ApiError(error.status, error.message, code=error.code, retry_after_s=retry_after_s)
    if isinstance(error, MediaError):
        own = f"{OPTIONS_FIELD}.{error.param}" if error.param in _OPTION_NAMES else None
        return ApiError(error.status, error.message, code=error.code, param=own or param or error.param)
    if isinstance(error, ContextTooLongError):
        return bad_request(str(error), param=error.param or param, code="context_length_exceeded")
    if isinstance(error, RequestError):
        return bad_request(str(error), param=error.param or param, code="invalid_value")
    if isinstance(error, EngineOverloadedError):
        return overloaded(
            "The engine's queue is full. Send the request again later.", retry_after_s=error.retry_after_s
        )
    if isinstance(error, EngineDeadError):
        return unavailable("The engine has stopped and is being restarted. Send the request again later.")
    _log.error("unexpected error while answering a request", exc_info=error)
    return internal_error()
