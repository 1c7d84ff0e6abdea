"""Errors about media, each with the HTTP status it maps to. Knows nothing of HTTP beyond that number."""

from __future__ import annotations

from typing import ClassVar


class MediaError(Exception):
    """A media item that cannot be used. The message is meant for the caller who sent the item.

    status: HTTP status. code: short machine-readable name. param: request field at fault, if known.
    """

    status: ClassVar[int] = 400
    code: ClassVar[str] = "media_error"

    def __init__(self, message: str, param: str | None = None) -> None:
        # Both go into args, so that the error survives pickling between processes.
        super().__init__(message, param)
        self.message = message
        self.param = param

    def __str__(self) -> str:
        return self.message


class InvalidMediaError(MediaError):
    """The item or its URL is malformed, or has a shape the model cannot take."""

    status = 400
    code = "invalid_media"


class MediaForbiddenError(MediaError):
    """The URL points to a place this server does not read."""

    status = 400
    code = "media_forbidden"


class MediaTooLargeError(MediaError):
    """The item is over a limit; the message names the limit, its value and what came."""

    status = 413
    code = "media_too_large"


class UnsupportedMediaError(MediaError):
    """The bytes are not media of a supported kind, or are damaged so that they do not decode."""

    status = 415
    code = "unsupported_media"


class MediaFetchError(MediaError):
    """The URL is allowed but did not deliver the item."""

    status = 424
    code = "media_fetch_failed"


class ItemTooLargeError(MediaTooLargeError):
    """The item is over what an encoder's queue or one of its batches can ever hold."""

    code = "item_too_large"


class QueueFullError(MediaError):
    """More waits for the encoder than may. retry_after_s: when there should be room again, at least 1.0."""

    status = 503
    code = "queue_full"

    def __init__(self, retry_after_s: float) -> None:
        super().__init__(
            "The server's encoders have more waiting than they may. Send the request again later."
        )
        # For pickling: an error is made again from its args.
        self.args = (retry_after_s,)
        self.retry_after_s = retry_after_s


class EncoderClosedError(MediaError):
    """The encoder is shutting down."""

    status = 503
    code = "encoder_closed"


class DeadlineExceededError(MediaError):
    """The time that the request was given passed before the item's turn came."""

    status = 504
    code = "deadline_exceeded"
