"""Where an http URL may lead: scheme, domains, and every address behind a name.

Decides and resolves; opens no connection. A name is resolved once per connection, here, and the connection goes to
the very addresses that were checked.
"""

from __future__ import annotations

import asyncio
import ipaddress
import socket
from collections.abc import Awaitable, Callable, Sequence

from aiohttp.abc import AbstractResolver, ResolveResult
from yarl import URL

from mm_pipeline.errors import InvalidMediaError, MediaForbiddenError
from mm_pipeline.limits import MediaLimits

Resolve = Callable[[str], Awaitable[Sequence[str]]]
AddressCheck = Callable[[str], bool]

# Global by the registries, yet inside somebody's network: a cloud's metadata service, protocol assignments, and the
# old 6to4 relays.
_CLOSED_IPV4 = tuple(map(ipaddress.IPv4Network, ("168.63.129.16/32", "192.0.0.0/24", "192.88.99.0/24")))
_GLOBAL_IPV6 = ipaddress.IPv6Network("2000::/3")
# Teredo and 6to4 carry an IPv4 address that would have to be checked in turn; nobody serves media there.
_CLOSED_IPV6 = tuple(map(ipaddress.IPv6Network, ("2001::/32", "2002::/16")))


def address_is_public(address: str) -> bool:
    """True for a numeric address that belongs to the public internet; False for anything else or malformed."""
    try:
        parsed = ipaddress.ip_address(address)
    except ValueError:
        return False
    if isinstance(parsed, ipaddress.IPv6Address) and parsed.ipv4_mapped is not None:
        parsed = parsed.ipv4_mapped
    if not parsed.is_global or parsed.is_multicast:
        return False
    if isinstance(parsed, ipaddress.IPv4Address):
        return not any(parsed in network for network in _CLOSED_IPV4)
    return parsed in _GLOBAL_IPV6 and not any(parsed in network for network in _CLOSED_IPV6)


async def resolve_with_system(host: str) -> list[str]:
    """Every address of a name, by the system's resolver. Raises OSError when there is none."""
    found = await asyncio.get_running_loop().getaddrinfo(host, None, type=socket.SOCK_STREAM)
    return list(dict.fromkeys(str(entry[4][0]) for entry in found))


def parse_url(text: str) -> URL:
    """The one parse of a URL that is checked and then fetched. Raises InvalidMediaError."""
    if any(character <= " " or character in "\\\x7f" for character in text):
        raise InvalidMediaError("the URL has spaces, control characters or backslashes; percent-encode them")
    try:
        url = URL(text)
        port = url.port
    except ValueError as error:
        raise InvalidMediaError("the URL is malformed; send http://, https:// or data:") from error
    if url.scheme not in ("http", "https"):
        raise InvalidMediaError(f"the URL's scheme is {url.scheme!r}; send http, https or data")
    if not url.host or not port:
        raise InvalidMediaError("the URL has no host or an invalid port")
    return url


class Guard:
    """The rules of one server. `address_allowed` decides about numeric addresses."""

    def __init__(self, limits: MediaLimits, address_allowed: AddressCheck = address_is_public) -> None:
        self._domains = tuple(_plain_host(domain) for domain in limits.allowed_domains)
        self._address_allowed = (lambda _address: True) if limits.allow_private_hosts else address_allowed

    def check_url(self, url: URL) -> None:
        """For the first URL and every redirect. Raises MediaForbiddenError."""
        if url.raw_user is not None or url.raw_password is not None:
            raise MediaForbiddenError("the URL carries a user name or password; send it without")
        host = _plain_host(url.raw_host or "")
        if self._domains and not any(
            host == domain or host.endswith("." + domain) for domain in self._domains
        ):
            raise MediaForbiddenError(f"this server fetches only from: {', '.join(self._domains)}")
        if _is_numeric(host):
            self.check_addresses([host])

    def check_addresses(self, addresses: Sequence[str]) -> None:
        """All of a host's addresses must be allowed. Raises MediaForbiddenError."""
        if not all(self._address_allowed(address) for address in addresses):
            raise MediaForbiddenError(
                "the URL leads to an address that is not public; this server does not fetch it"
            )


class PinningResolver(AbstractResolver):
    """Resolves a name, checks every address, and hands exactly these to the connector."""

    def __init__(self, guard: Guard, resolve: Resolve = resolve_with_system) -> None:
        self._guard = guard
        self._resolve = resolve

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_INET
    ) -> list[ResolveResult]:
        """As aiohttp asks. Raises OSError for an unknown name, MediaForbiddenError for a forbidden address."""
        addresses = await self._resolve(host)
        if not addresses:
            raise OSError("the name has no address")
        self._guard.check_addresses(addresses)
        return [
            ResolveResult(
                hostname=host,
                host=address,
                port=port,
                family=socket.AF_INET6 if ":" in address else socket.AF_INET,
                proto=0,
                flags=socket.AI_NUMERICHOST | socket.AI_NUMERICSERV,
            )
            for address in addresses
        ]

    async def close(self) -> None:
        """Holds nothing."""


def _plain_host(host: str) -> str:
    return host.lower().rstrip(".")


def _is_numeric(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True
