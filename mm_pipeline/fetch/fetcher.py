"""Downloads media over http, or reads it from data: and file: URLs. Knows no media format and no cache."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

import aiohttp
from yarl import URL

from mm_pipeline.errors import (
    InvalidMediaError,
    MediaFetchError,
    MediaTooLargeError,
    UnsupportedMediaError,
)
from mm_pipeline.fetch.guard import (
    AddressCheck,
    Guard,
    PinningResolver,
    Resolve,
    address_is_public,
    parse_url,
    resolve_with_system,
)
from mm_pipeline.fetch.inline import read_data_url, read_file_url
from mm_pipeline.limits import MediaLimits

_REDIRECTS = (301, 302, 303, 307, 308)
_CHUNK_BYTES = 1 << 16
_UNTYPED = ("application/octet-stream", "binary/octet-stream")
# Servers name a container by what it most often holds: sound comes in video containers, moving pictures as images.
_TAKEN = {
    "image": ("image/",),
    "video": ("video/", "image/", "application/ogg", "application/mp4"),
    "audio": ("audio/", "video/", "application/ogg", "application/mp4"),
}


@dataclass(frozen=True, kw_only=True)
class FetchedMedia:
    """data: the item's bytes. content_type: what the source said it is, without parameters, lower case."""

    data: bytes
    content_type: str | None


class Fetcher:
    """One per event loop; `close` it there. Safe for concurrent `fetch` calls.

    resolve: name to numeric addresses. address_allowed: which of them may be reached; ignored when the limits allow
    private hosts.
    """

    def __init__(
        self,
        limits: MediaLimits,
        *,
        resolve: Resolve = resolve_with_system,
        address_allowed: AddressCheck = address_is_public,
    ) -> None:
        self._limits = limits
        self._guard = Guard(limits, address_allowed)
        self._resolver = PinningResolver(self._guard, resolve)
        self._session: aiohttp.ClientSession | None = None

    async def fetch(self, url: str, *, modality: str = "image") -> FetchedMedia:
        """The item behind an http, https, data or file URL.

        modality: "image", "video" or "audio"; content types that may hold it, untyped and absent ones are taken.
        Raises InvalidMediaError for a malformed URL, MediaForbiddenError for a place not read, MediaTooLargeError
        over max_bytes, UnsupportedMediaError for another content type, MediaFetchError when nothing came.
        """
        scheme = url[:5].lower()
        if scheme == "data:":
            data, content_type = await asyncio.to_thread(read_data_url, url, self._limits)
            _check_type(content_type, modality)
            return FetchedMedia(data=data, content_type=content_type)
        if scheme == "file:":
            data = await asyncio.to_thread(read_file_url, url, self._limits)
            return FetchedMedia(data=data, content_type=None)
        parsed = parse_url(url)
        try:
            async with asyncio.timeout(self._limits.fetch_timeout_s):
                return await self._download(parsed, modality)
        except aiohttp.ServerTimeoutError as error:
            raise MediaFetchError(
                f"no connection to the URL's host within {self._limits.connect_timeout_s:g} s"
            ) from error
        except TimeoutError as error:
            raise MediaFetchError(
                f"the URL did not deliver within {self._limits.fetch_timeout_s:g} s"
            ) from error
        except (aiohttp.ClientError, OSError) as error:
            raise MediaFetchError("the URL's host could not be reached, or broke off") from error

    async def close(self) -> None:
        """Ends open connections. Idempotent."""
        session, self._session = self._session, None
        if session is not None:
            await session.close()

    async def _download(self, url: URL, modality: str) -> FetchedMedia:
        for _ in range(self._limits.max_redirects + 1):
            self._guard.check_url(url)
            async with self._open_session().get(url, allow_redirects=False) as response:
                if response.status not in _REDIRECTS:
                    return await self._read(response, modality)
                url = _redirected(url, response.headers.get("Location"))
        raise MediaFetchError(f"the URL redirects more than {self._limits.max_redirects} times")

    async def _read(self, response: aiohttp.ClientResponse, modality: str) -> FetchedMedia:
        if response.status != 200:
            raise MediaFetchError(f"the URL's server answered with status {response.status}")
        if response.headers.get("Content-Encoding", "identity").strip().lower() != "identity":
            # Compressed transfer would let few bytes become many; media is compressed already.
            raise MediaFetchError("the URL's server sent a compressed transfer although none was asked for")
        header = response.headers.get("Content-Type", "").partition(";")[0].strip().lower()
        content_type = header or None
        _check_type(content_type, modality)
        max_bytes = self._limits.max_bytes
        if response.content_length is not None and response.content_length > max_bytes:
            raise MediaTooLargeError(
                f"the item has {response.content_length} bytes; max_bytes is {max_bytes}"
            )
        data = bytearray()
        async for chunk in response.content.iter_chunked(_CHUNK_BYTES):
            data += chunk
            if len(data) > max_bytes:
                raise MediaTooLargeError(f"the item has more than {max_bytes} bytes, which is max_bytes")
        return FetchedMedia(data=bytes(data), content_type=content_type)

    def _open_session(self) -> aiohttp.ClientSession:
        if self._session is None:
            self._session = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(resolver=self._resolver, use_dns_cache=False),
                timeout=aiohttp.ClientTimeout(total=None, connect=self._limits.connect_timeout_s),
                headers={"Accept-Encoding": "identity", "User-Agent": "mm-pipeline"},
                cookie_jar=aiohttp.DummyCookieJar(),
                # A proxy from the environment would connect to addresses that nobody checked.
                trust_env=False,
                auto_decompress=False,
            )
        return self._session


def _redirected(url: URL, location: str | None) -> URL:
    if not location:
        raise MediaFetchError("the URL redirects without saying where to")
    try:
        return parse_url(str(url.join(URL(location))))
    except (ValueError, InvalidMediaError) as error:
        raise MediaFetchError("the URL redirects to a malformed or non-http address") from error


def _check_type(content_type: str | None, modality: str) -> None:
    if content_type is None or content_type in _UNTYPED or content_type.startswith(_TAKEN[modality]):
        return
    raise UnsupportedMediaError(
        f"the content type is {content_type[:100]!r}; need {modality}/* or application/octet-stream"
    )
