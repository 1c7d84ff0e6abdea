"""Limits, errors, content keys."""

import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mm_pipeline.content_key import content_key
from mm_pipeline.errors import MediaFetchError, MediaTooLargeError
from mm_pipeline.image import ImageSettings
from mm_pipeline.limits import MediaLimits

plain_values = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5)
values = plain_values | st.lists(plain_values, max_size=3)
calls = st.tuples(
    st.sampled_from(["image", "audio"]),
    st.text(max_size=4),
    st.dictionaries(st.text(max_size=4), values, max_size=3),
    st.binary(max_size=8),
)


def spelled(call) -> str:
    modality, identity, settings, data = call
    return repr((modality, identity, sorted(settings.items()), data))


@given(calls, calls)
def test_keys_differ_exactly_when_the_parts_do(one, other):
    assert (content_key(*one) == content_key(*other)) == (spelled(one) == spelled(other))


def test_key_is_full_width_and_framed():
    key = content_key("image", "ab", {}, b"cd")
    assert len(key) == 64
    assert key != content_key("image", "abc", {}, b"d")
    assert content_key("image", "x", {"a": 1, "b": 2}, b"") == content_key(
        "image", "x", {"b": 2, "a": 1}, b""
    )
    assert (
        len({content_key("image", "x", {"a": value}, b"") for value in (1, 1.0, True, "1", None, [1], ["1"])})
        == 7
    )


def test_key_refuses_other_values():
    with pytest.raises(TypeError, match="dict"):
        content_key("image", "x", {"a": {}}, b"")


def test_every_image_setting_enters_the_key():
    base = ImageSettings()
    changed = (
        ImageSettings(max_pixels=99_999),
        ImageSettings(min_pixels=9_999),
        ImageSettings(mean=(0.5, 0.5, 0.5)),
        ImageSettings(patch_size=14),
        ImageSettings(merge_size=1),
        ImageSettings(temporal_patch_size=1),
        ImageSettings(std=(1.0, 1.0, 1.0)),
    )
    keys = {content_key("image", "x", one.key_settings(), b"") for one in (base, *changed)}
    assert len(keys) == 1 + len(changed)


def test_errors_carry_status_and_survive_pickling():
    error = MediaTooLargeError("too large", param="messages.0")
    copy = pickle.loads(pickle.dumps(error))
    assert (copy.status, copy.code, copy.param, str(copy)) == (
        413,
        "media_too_large",
        "messages.0",
        "too large",
    )
    assert MediaFetchError("gone").param is None


@pytest.mark.parametrize("wrong", [{"max_bytes": 0}, {"fetch_timeout_s": -1}, {"max_redirects": -1}])
def test_limits_check_themselves(wrong):
    with pytest.raises(ValueError, match=next(iter(wrong))):
        MediaLimits(**wrong)
