import asyncio
import gzip
import ipaddress

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer
from hypothesis import given
from hypothesis import strategies as st

from mm_pipeline.errors import (
    InvalidMediaError,
    MediaError,
    MediaFetchError,
    MediaForbiddenError,
    MediaTooLargeError,
    UnsupportedMediaError,
)
from mm_pipeline.fetch import Fetcher
from mm_pipeline.fetch.guard import address_is_public
from mm_pipeline.limits import MediaLimits

BODY = b"\xff\xd8\xff" + bytes(range(256)) * 8
OPEN = MediaLimits(allow_private_hosts=True, fetch_timeout_s=5)


class Site:
    """A server on loopback that counts its requests."""

    def __init__(self):
        self.paths = []
        self.headers = {}

    async def handle(self, request):
        self.paths.append(request.path)
        self.headers = dict(request.headers)
        match request.path:
            case "/image":
                return web.Response(body=BODY, content_type="image/jpeg")
            case "/typed":
                return web.Response(body=BODY, headers={"Content-Type": request.query["type"]})
            case "/to":
                return web.Response(
                    status=int(request.query.get("status", 302)), headers={"Location": request.query["url"]}
                )
            case "/nowhere":
                return web.Response(status=302)
            case "/loop":
                return web.Response(status=302, headers={"Location": "/loop"})
            case "/stream":
                response = web.StreamResponse(headers={"Content-Type": "image/png"})
                await response.prepare(request)
                for _ in range(int(request.query["chunks"])):
                    await response.write(b"x" * 1000)
                return response
            case "/slow":
                await asyncio.sleep(30)
            case "/gzip":
                return web.Response(
                    body=gzip.compress(bytes(100_000)),
                    headers={"Content-Encoding": "gzip", "Content-Type": "image/png"},
                )
            case "/short":
                response = web.StreamResponse(headers={"Content-Length": "5000", "Content-Type": "image/png"})
                await response.prepare(request)
                await response.write(b"x" * 10)
                request.transport.close()
                return response
        return web.Response(status=404)


@pytest.fixture
async def site():
    handler = Site()
    app = web.Application()
    app.router.add_get("/{path:.*}", handler.handle)
    async with TestServer(app, host="127.0.0.1") as server:
        handler.url = f"http://127.0.0.1:{server.port}"
        handler.port = server.port
        yield handler


@pytest.fixture
async def open_fetcher():
    fetcher = Fetcher(OPEN)
    yield fetcher
    await fetcher.close()


class FakeNames:
    """A resolver whose answers change from one question to the next."""

    def __init__(self, **answers):
        self.answers = {name.replace("_", "."): list(sequence) for name, sequence in answers.items()}
        self.asked = []

    async def __call__(self, host):
        self.asked.append(host)
        if host not in self.answers:
            raise OSError("unknown name")
        sequence = self.answers[host]
        return sequence.pop(0) if len(sequence) > 1 else sequence[0]


def guarded(names, **limits):
    """Loopback plays the public internet; every other address is judged as usual."""
    return Fetcher(
        MediaLimits(fetch_timeout_s=5, **limits),
        resolve=names,
        address_allowed=lambda address: address == "127.0.0.1" or address_is_public(address),
    )


async def test_image_arrives(site, open_fetcher):
    fetched = await open_fetcher.fetch(site.url + "/image")
    assert (fetched.data, fetched.content_type) == (BODY, "image/jpeg")
    assert site.headers["Accept-Encoding"] == "identity"


async def test_same_host_is_reached_by_name(site):
    fetcher = guarded(FakeNames(public_test=[["127.0.0.1"]]))
    fetched = await fetcher.fetch(f"http://public.test:{site.port}/image")
    assert fetched.data == BODY
    assert site.headers["Host"] == f"public.test:{site.port}"
    await fetcher.close()


@pytest.mark.parametrize("content_type", ["image/png; charset=x", "IMAGE/WEBP", "application/octet-stream"])
async def test_accepted_types(site, open_fetcher, content_type):
    fetched = await open_fetcher.fetch(f"{site.url}/typed?type={content_type.replace(' ', '%20')}")
    assert fetched.content_type == content_type.partition(";")[0].lower()


async def test_absent_type_is_accepted(open_fetcher):
    async def answer(reader, writer):
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nabc")
        await writer.drain()
        writer.close()

    async with await asyncio.start_server(answer, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        fetched = await open_fetcher.fetch(f"http://127.0.0.1:{port}/")
    assert (fetched.data, fetched.content_type) == (b"abc", None)


@pytest.mark.parametrize("content_type", ["text/html", "application/json", "video/mp4"])
async def test_other_types_are_refused(site, open_fetcher, content_type):
    with pytest.raises(UnsupportedMediaError, match=content_type) as caught:
        await open_fetcher.fetch(f"{site.url}/typed?type={content_type}")
    assert caught.value.status == 415


@pytest.mark.parametrize(
    ("modality", "content_type"),
    [
        ("video", "video/mp4"),
        ("video", "image/gif"),
        ("audio", "audio/mpeg"),
        ("audio", "video/webm"),
        ("audio", "application/ogg"),
        ("audio", "application/octet-stream"),
    ],
)
async def test_modality_decides_the_type(site, open_fetcher, modality, content_type):
    fetched = await open_fetcher.fetch(f"{site.url}/typed?type={content_type}", modality=modality)
    assert fetched.content_type == content_type


@pytest.mark.parametrize(("modality", "content_type"), [("video", "audio/mpeg"), ("audio", "image/png")])
async def test_a_type_that_cannot_hold_the_modality_is_refused(site, open_fetcher, modality, content_type):
    with pytest.raises(UnsupportedMediaError, match=content_type):
        await open_fetcher.fetch(f"{site.url}/typed?type={content_type}", modality=modality)


@pytest.mark.parametrize(
    ("path", "text"),
    [
        ("/missing", "status 404"),
        ("/nowhere", "without saying where"),
        ("/loop", "more than 3 times"),
        ("/to?url=ftp://x/y", "non-http"),
        ("/to?url=file:///etc/hostname", "non-http"),
        ("/to?url=data:,x", "non-http"),
        ("/to?url=http://a:99999/", "malformed"),
        ("/gzip", "compressed"),
        ("/short", "broke off"),
    ],
)
async def test_failed_downloads(site, open_fetcher, path, text):
    with pytest.raises(MediaFetchError, match=text) as caught:
        await open_fetcher.fetch(site.url + path)
    assert caught.value.status == 424
    assert "127.0.0.1" not in str(caught.value)


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
async def test_redirects_are_followed(site, open_fetcher, status):
    assert (await open_fetcher.fetch(f"{site.url}/to?status={status}&url=/image")).data == BODY


async def test_byte_cap_by_header_and_by_stream(site):
    fetcher = Fetcher(MediaLimits(allow_private_hosts=True, max_bytes=2000))
    with pytest.raises(MediaTooLargeError, match=f"has {len(BODY)} bytes; max_bytes is 2000"):
        await fetcher.fetch(site.url + "/image")
    with pytest.raises(MediaTooLargeError, match="more than 2000 bytes"):
        await fetcher.fetch(site.url + "/stream?chunks=5000")
    assert len((await fetcher.fetch(site.url + "/stream?chunks=2")).data) == 2000
    await fetcher.close()


async def test_slow_servers_and_closed_ports(site, unused_tcp_port):
    fetcher = Fetcher(MediaLimits(allow_private_hosts=True, fetch_timeout_s=0.3))
    with pytest.raises(MediaFetchError, match=r"within 0\.3 s"):
        await fetcher.fetch(site.url + "/slow")
    with pytest.raises(MediaFetchError, match="could not be reached"):
        await fetcher.fetch(f"http://127.0.0.1:{unused_tcp_port}/")
    await fetcher.close()
    fetcher = guarded(FakeNames())
    with pytest.raises(MediaFetchError, match="could not be reached"):
        await fetcher.fetch("http://unknown.test/")
    await fetcher.close()


async def test_slow_name_resolution():
    async def never(_host):
        await asyncio.sleep(30)
        return []

    fetcher = Fetcher(MediaLimits(connect_timeout_s=0.2), resolve=never)
    with pytest.raises(MediaFetchError, match=r"no connection .* within 0\.2 s"):
        await fetcher.fetch("http://slow.test/")
    await fetcher.close()


FORBIDDEN_ADDRESSES = [
    "127.0.0.1",
    "127.8.8.8",
    "0.0.0.0",
    "10.0.0.1",
    "172.16.0.1",
    "192.168.1.1",
    "169.254.169.254",
    "100.100.100.200",
    "168.63.129.16",
    "192.0.0.192",
    "192.0.2.1",
    "224.0.0.1",
    "240.0.0.1",
    "255.255.255.255",
    "::",
    "::1",
    "::127.0.0.1",
    "::ffff:127.0.0.1",
    "::ffff:10.0.0.1",
    "64:ff9b::7f00:1",
    "64:ff9b:1::7f00:1",
    "2002:7f00:1::",
    "2001:0:7f00:1::",
    "fe80::1",
    "fe80::1%eth0",
    "fec0::1",
    "fd00:ec2::254",
    "ff02::1",
]


@pytest.mark.parametrize("address", FORBIDDEN_ADDRESSES)
async def test_private_addresses_are_refused_in_every_form(address):
    assert not address_is_public(address)
    fetcher = Fetcher(
        MediaLimits(), resolve=FakeNames(evil_test=[[address]], mixed_test=[["8.8.8.8", address]])
    )
    for url in ("http://evil.test/", "https://evil.test/x", "http://mixed.test/"):
        with pytest.raises(MediaForbiddenError, match="not public") as caught:
            await fetcher.fetch(url)
        assert address not in str(caught.value)
    literal = f"[{address}]" if ":" in address else address
    with pytest.raises((MediaForbiddenError, InvalidMediaError)):
        await fetcher.fetch(f"http://{literal.replace('%', '%25')}/")
    await fetcher.close()


@given(st.ip_addresses(v=4, network="10.0.0.0/8") | st.ip_addresses(v=4, network="127.0.0.0/8"))
def test_private_networks_however_wrapped(address):
    assert not address_is_public(str(address))
    assert not address_is_public(f"::ffff:{address}")
    assert not address_is_public(f"::{address}")
    assert not address_is_public(f"64:ff9b::{address}")


@given(st.ip_addresses() | st.text(max_size=20))
def test_the_check_never_raises_and_public_means_global(address):
    if address_is_public(str(address)):
        assert ipaddress.ip_address(str(address)).is_global


@pytest.mark.parametrize("address", ["8.8.8.8", "1.1.1.1", "2606:4700::1111", "::ffff:8.8.8.8"])
def test_public_addresses_pass(address):
    assert address_is_public(address)


@pytest.mark.parametrize("host", ["2130706433", "0x7f.1", "127.1", "0177.0.0.1", "localhost"])
async def test_odd_spellings_of_loopback(host, site):
    fetcher = Fetcher(MediaLimits(fetch_timeout_s=5))
    with pytest.raises((MediaForbiddenError, MediaFetchError)):
        await fetcher.fetch(f"http://{host}:{site.port}/image")
    assert site.paths == []
    await fetcher.close()


async def test_every_redirect_hop_is_checked(site):
    names = FakeNames(public_test=[["127.0.0.1"]], inside_test=[["10.1.2.3"]])
    fetcher = guarded(names)
    for target in (
        "http://10.1.2.3/",
        "http://inside.test/",
        "http://[::ffff:10.1.2.3]/",
        "//169.254.169.254/x",
    ):
        with pytest.raises(MediaForbiddenError, match="not public"):
            await fetcher.fetch(f"http://public.test:{site.port}/to?url={target}")
    with pytest.raises(MediaForbiddenError, match="user name"):
        await fetcher.fetch(f"http://public.test:{site.port}/to?url=http://u:p@public.test/")
    await fetcher.close()


async def test_rebinding_cannot_swap_the_checked_address(site):
    """The name answers once per connection, and that answer is both checked and used."""
    names = FakeNames(rebind_test=[["127.0.0.1"], ["10.0.0.1"]])
    fetcher = guarded(names)
    assert (await fetcher.fetch(f"http://rebind.test:{site.port}/image")).data == BODY
    assert names.asked == ["rebind.test"]
    await fetcher.close()
    with pytest.raises(MediaForbiddenError):
        await fetcher.fetch(f"http://rebind.test:{site.port}/image")
    await fetcher.close()
    assert site.paths == ["/image"]


async def test_allow_list_holds_for_redirects_too(site):
    names = FakeNames(
        good_test=[["127.0.0.1"]],
        a_good_test=[["127.0.0.1"]],
        notgood_test=[["127.0.0.1"]],
        bad_test=[["127.0.0.1"]],
    )
    fetcher = guarded(names, allowed_domains=("Good.test",))
    port = site.port
    for host in ("good.test", "a.good.test", "GOOD.test"):
        assert (await fetcher.fetch(f"http://{host}:{port}/image")).data == BODY
    for url in (
        f"http://bad.test:{port}/image",
        f"http://notgood.test:{port}/image",
        f"http://127.0.0.1:{port}/image",
        f"http://good.test.bad.test:{port}/image",
        f"http://good.test:{port}/to?url=http://bad.test:{port}/image",
    ):
        with pytest.raises(MediaForbiddenError, match=r"only from: good\.test"):
            await fetcher.fetch(url)
    await fetcher.close()


@pytest.mark.parametrize(
    "url",
    [
        "http://user@example.com/",
        "http://user:pass@example.com/",
        "http://example.com@127.0.0.1/",
        "ftp://example.com/x",
        "gopher://example.com/",
        "javascript:alert(1)",
        "http://",
        "http:///path",
        "",
        "//example.com/x",
        "picture.jpg",
        "http://exa mple.com/",
        "http://example.com\\@127.0.0.1/",
        "http://example.com:99999/",
        "http://[::1/",
        "http://example.com/\r\nX: y",
    ],
)
async def test_malformed_and_odd_urls(url):
    fetcher = Fetcher(MediaLimits(), resolve=FakeNames())
    with pytest.raises(MediaError) as caught:
        await fetcher.fetch(url)
    assert caught.value.status == 400
    await fetcher.close()


async def test_proxy_settings_are_ignored(site, open_fetcher, monkeypatch):
    monkeypatch.setenv("http_proxy", "http://10.9.9.9:1")
    assert (await open_fetcher.fetch(site.url + "/image")).data == BODY
