"""Client-side keys: no hit under other settings, and bounded."""

from __future__ import annotations

import pytest

from mm_pipeline.content_key import content_key
from mm_pipeline.store import Aliases, key_for_uuid


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
