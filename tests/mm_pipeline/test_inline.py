"""data: and file: URLs."""

import base64

import pytest

from mm_pipeline.errors import (
    InvalidMediaError,
    MediaFetchError,
    MediaForbiddenError,
    MediaTooLargeError,
    UnsupportedMediaError,
)
from mm_pipeline.fetch import Fetcher
from mm_pipeline.limits import MediaLimits

BODY = b"\xff\xd8\xff" + bytes(range(256)) * 8


async def test_data_urls():
    fetcher = Fetcher(MediaLimits())
    for url, data, kind in (
        ("data:image/png;base64," + base64.b64encode(BODY).decode(), BODY, "image/png"),
        ("DATA:;base64,QUI%3D", b"AB", None),
        ("data:image/png;charset=x;base64,QU\nI=", b"AB", "image/png"),
        ("data:image/x,a%00b", b"a\0b", "image/x"),
        ("data:,", b"", None),
    ):
        fetched = await fetcher.fetch(url)
        assert (fetched.data, fetched.content_type) == (data, kind)


async def test_bad_data_urls():
    fetcher = Fetcher(MediaLimits(max_bytes=100))
    for url, error in (
        ("data:image/png;base64", InvalidMediaError),
        ("data:image/png;base64,@@@", InvalidMediaError),
        ("data:image/png;base64,é", InvalidMediaError),
        ("data:text/html,x", UnsupportedMediaError),
        ("data:image/png;base64," + "A" * 200, MediaTooLargeError),
        ("data:image/png," + "%41" * 101, MediaTooLargeError),
    ):
        with pytest.raises(error):
            await fetcher.fetch(url)
    assert len((await fetcher.fetch("data:image/png," + "%41" * 100)).data) == 100
    assert (
        len((await fetcher.fetch("data:image/png;base64," + base64.b64encode(b"x" * 100).decode())).data)
        == 100
    )


async def test_file_urls(tmp_path):
    root, outside = tmp_path / "root", tmp_path / "outside"
    root.mkdir()
    outside.mkdir()
    (root / "a b.png").write_bytes(BODY)
    (outside / "secret").write_bytes(b"no")
    (root / "link").symlink_to(outside / "secret")
    (root / "inner").symlink_to(root / "a b.png")
    fetcher = Fetcher(MediaLimits(file_root=root))
    assert (await fetcher.fetch(f"file://{root}/a%20b.png")).data == BODY
    assert (await fetcher.fetch(f"file://localhost{root}/inner")).data == BODY
    for path, error in (
        (f"{outside}/secret", MediaForbiddenError),
        (f"{root}/link", MediaForbiddenError),
        (f"{root}/../outside/secret", MediaForbiddenError),
        (f"{root}/%2e%2e/outside/secret", MediaForbiddenError),
        (f"{root}/missing", MediaFetchError),
        (f"{root}", MediaFetchError),
        (f"{root}/a%00b", MediaForbiddenError),
        (f"host{root}/a", InvalidMediaError),
    ):
        with pytest.raises(error) as caught:
            await fetcher.fetch(f"file://{path}")
        assert str(tmp_path) not in str(caught.value)
    with pytest.raises(MediaForbiddenError, match="no file: URLs"):
        await Fetcher(MediaLimits()).fetch(f"file://{root}/a%20b.png")
    with pytest.raises(MediaTooLargeError, match="max_bytes is 10"):
        await Fetcher(MediaLimits(file_root=root, max_bytes=10)).fetch(f"file://{root}/a%20b.png")
