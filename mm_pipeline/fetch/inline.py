"""Media that needs no network: data: URLs, and file: URLs under one configured folder."""

from __future__ import annotations

import base64
import binascii
import os
import stat
from pathlib import Path
from urllib.parse import unquote, unquote_to_bytes, urlsplit

from mm_pipeline.errors import InvalidMediaError, MediaFetchError, MediaForbiddenError, MediaTooLargeError
from mm_pipeline.limits import MediaLimits


def read_data_url(url: str, limits: MediaLimits) -> tuple[bytes, str | None]:
    """(bytes, media type or None) of a data: URL (RFC 2397), base64 or percent-encoded.

    The size is checked before anything is decoded. Raises InvalidMediaError or MediaTooLargeError.
    """
    header, comma, payload = url[len("data:") :].partition(",")
    if not comma:
        raise InvalidMediaError("the data: URL has no comma; send data:<type>;base64,<data>")
    parameters = [part.strip().lower() for part in header.split(";")]
    if parameters[-1] == "base64":
        num_bytes = 3 * (len(payload) - 3 * payload.count("%")) // 4 - 2
        _check_size(num_bytes, limits)
        try:
            data = base64.b64decode("".join(unquote(payload).split()), validate=True)
        except (binascii.Error, ValueError) as error:
            raise InvalidMediaError("the data: URL's payload is not valid base64") from error
    else:
        _check_size(len(payload) - 2 * payload.count("%"), limits)
        data = unquote_to_bytes(payload)
    _check_size(len(data), limits)
    return data, parameters[0] or None


def read_file_url(url: str, limits: MediaLimits) -> bytes:
    """Bytes of a regular file under `limits.file_root`, links resolved first. Blocks.

    Raises MediaForbiddenError outside the root or without one, MediaFetchError for a missing file,
    MediaTooLargeError over max_bytes.
    """
    if limits.file_root is None:
        raise MediaForbiddenError("this server reads no file: URLs; send http, https or data")
    outside = MediaForbiddenError("the file: URL is outside the folder this server reads")
    parts = urlsplit(url)
    if parts.netloc not in ("", "localhost") or parts.query or parts.fragment:
        raise InvalidMediaError("the file: URL must be file:///path without host, query or fragment")
    try:
        root = limits.file_root.resolve(strict=True)
        path = Path(unquote(parts.path)).resolve()
    except (OSError, RuntimeError, ValueError) as error:
        raise outside from error
    if not path.is_relative_to(root):
        raise outside
    try:
        # The path is resolved: a link at its end can only have been put there since. A pipe must not block open.
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError as error:
        raise MediaFetchError("the file: URL names no readable file") from error
    try:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            raise MediaFetchError("the file: URL names no regular file")
        _check_size(status.st_size, limits)
        with open(descriptor, "rb", closefd=False) as file:
            data = file.read(limits.max_bytes + 1)
    finally:
        os.close(descriptor)
    _check_size(len(data), limits)
    return data


def _check_size(num_bytes: int, limits: MediaLimits) -> None:
    if num_bytes > limits.max_bytes:
        raise MediaTooLargeError(f"the item has {num_bytes} bytes or more; max_bytes is {limits.max_bytes}")
