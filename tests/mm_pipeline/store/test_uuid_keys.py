"""Client-side keys: apart by API key, and no hit under other settings."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mm_pipeline.content_key import content_key
from mm_pipeline.store import Aliases, key_for_uuid

TEXT = st.text(max_size=8)
API_KEYS = st.none() | TEXT


@given(first=st.tuples(API_KEYS, TEXT), second=st.tuples(API_KEYS, TEXT))
def test_keys_are_equal_only_for_equal_names(first: tuple, second: tuple) -> None:
    assert (key_for_uuid(*first) == key_for_uuid(*second)) == (first == second)


def test_a_uuid_key_is_no_content_key() -> None:
    assert key_for_uuid(None, "x") != content_key("image", "", {"api_key": None}, b"x")


def test_other_settings_are_a_miss_and_new_bytes_replace_old() -> None:
    aliases = Aliases()
    key = key_for_uuid("secret", "cat")
    small, large = (content_key("image", "encoder", {"max_pixels": size}, b"") for size in (100, 200))
    aliases.set(key, small, "content 1")
    assert aliases.get(key, small) == "content 1"
    assert aliases.get(key, large) is None
    assert aliases.get(key_for_uuid("another secret", "cat"), small) is None
    aliases.set(key, small, "content 2")
    assert aliases.get(key, small) == "content 2"
    assert len(aliases) == 1


def test_the_least_recently_used_alias_goes() -> None:
    aliases = Aliases(2)
    aliases.set("a", "s", "1")
    aliases.set("b", "s", "2")
    assert aliases.get("a", "s") == "1"
    aliases.set("c", "s", "3")
    assert aliases.items() == [("a", "s", "1"), ("c", "s", "3")]
    with pytest.raises(ValueError, match="at least 1"):
        Aliases(0)
