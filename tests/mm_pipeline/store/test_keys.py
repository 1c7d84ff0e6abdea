"""Keys of everything a store may hold: equal only for the same bytes, seen in the same way by the same encoder."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import astuple, fields, replace
from typing import Any, NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mm_pipeline.audio import AudioSettings
from mm_pipeline.image import ImageSettings
from mm_pipeline.limits import MediaLimits
from mm_pipeline.options import MediaOptions
from mm_pipeline.pipeline import ImagePipeline, MediaEncoder
from mm_pipeline.store import key_for_uuid
from mm_pipeline.video import VideoSettings

LIMITS = MediaLimits()


class Model(NamedTuple):
    """What a server has loaded. sound: the audio encoder's identity; None where it does not hear."""

    processor: tuple[tuple[str, int], ...] = ()
    sight: str = "a"
    sound: str | None = "a"


class Item(NamedTuple):
    """What a client sends."""

    modality: str = "image"
    options: MediaOptions = MediaOptions()
    data: bytes = b""


class Named:
    """As much of an encoder as a key needs."""

    hidden_size = 1

    def __init__(self, identity: str) -> None:
        self.identity = identity


def key_of(model: Model, item: Item) -> str:
    """As the server makes it."""
    config = {"processor_config": dict(model.processor)}
    sight: Any = Named(model.sight)
    sound: Any = None if model.sound is None else Named(model.sound)
    if item.modality == "image":
        pipeline = ImagePipeline(sight, ImageSettings.from_config(config), LIMITS)
        return pipeline.key(item.data, max_pixels=item.options.max_pixels)
    return MediaEncoder(sight, sound, config, LIMITS).key(item.data, item.modality, item.options)


def meaning_of(model: Model, item: Item) -> tuple[object, ...]:
    """All that the embeddings depend on, spelled out from the settings themselves."""
    config = {"processor_config": dict(model.processor)}
    options, sound = item.options, (model.sound, astuple(AudioSettings.from_config(config)))
    if item.modality == "image":
        images = ImageSettings.from_config(config)
        images = images if options.max_pixels is None else images.lowered(options.max_pixels)
        return item.modality, item.data, model.sight, astuple(images)
    if item.modality == "audio":
        return item.modality, item.data, sound, options.start_s, options.end_s
    heard = sound if options.use_audio_in_video and model.sound is not None else None
    video = VideoSettings.from_config(config).lowered(options, LIMITS)
    return item.modality, item.data, model.sight, astuple(video), heard


# Few values of each, so that many pairs differ in one thing only.
MODELS = st.builds(
    Model,
    st.sampled_from([(), (("image_max_pixels", 65536), ("video_max_pixels", 65536)), (("audio_fmin", 50),)]),
    st.sampled_from("ab"),
    st.sampled_from(["a", "b", None]),
)
OPTIONS = st.builds(
    MediaOptions,
    fps=st.sampled_from([None, 1.0, 2.0]),
    max_frames=st.sampled_from([None, 8, 3600]),
    max_pixels=st.sampled_from([None, 8192, 65536]),
    total_pixels=st.sampled_from([None, 65536]),
    start_s=st.sampled_from([None, 0.0]),
    end_s=st.sampled_from([None, 1.0]),
    use_audio_in_video=st.booleans(),
)
ITEMS = st.builds(
    Item,
    st.sampled_from(["image", "video", "audio"]),
    OPTIONS,
    st.sampled_from([b"", b"a", b"aa"]),
)


@st.composite
def pairs(draw: st.DrawFn) -> tuple[tuple[Model, Item], tuple[Model, Item]]:
    """Two servers and what they are sent, which have most things in common."""
    (model, other_model), (item, other) = draw(st.tuples(MODELS, MODELS)), draw(st.tuples(ITEMS, ITEMS))
    names = draw(st.sets(st.sampled_from([*Model._fields, *Item._fields]), max_size=2))
    second_model = model._replace(**{name: getattr(other_model, name) for name in names & {*Model._fields}})
    second = item._replace(**{name: getattr(other, name) for name in names & {*Item._fields}})
    return (model, item), (second_model, second)


@given(pair=pairs())
@settings(max_examples=500, deadline=None)
def test_keys_are_equal_only_where_the_embeddings_are(pair) -> None:
    first, second = pair
    assert (key_of(*first) == key_of(*second)) == (meaning_of(*first) == meaning_of(*second))


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (Item("image"), Item("video")),
        (Item("image"), Item("audio")),
        (Item("video"), Item("audio")),
        (Item("image", MediaOptions(max_pixels=8192)), Item("image", MediaOptions(max_pixels=65536))),
        (Item("video", MediaOptions(max_pixels=8192)), Item("video", MediaOptions(max_pixels=65536))),
        (Item("video", MediaOptions(fps=1.0)), Item("video", MediaOptions(fps=2.0))),
        (Item("video"), Item("video", MediaOptions(use_audio_in_video=False))),
        (Item("audio"), Item("audio", MediaOptions(start_s=1.0))),
    ],
    ids=["image, video", "image, audio", "video, audio", "sizes", "frame sizes", "rates", "sound", "parts"],
)
@given(data=st.binary(max_size=64))
@settings(max_examples=25, deadline=None)
def test_the_same_bytes_seen_in_two_ways(first: Item, second: Item, data: bytes) -> None:
    first, second = first._replace(data=data), second._replace(data=data)
    assert key_of(Model(), first) != key_of(Model(), second)


def changed(value: Any) -> Any:
    """Another value of the same kind, which every setting here allows."""
    if isinstance(value, tuple):
        return (*value[:-1], value[-1] + 0.25)
    if value is None:
        return 1.5
    return not value if isinstance(value, bool) else value + 1


def settings_with_one_change() -> Iterator[Any]:
    for own in (ImageSettings(), VideoSettings(), AudioSettings()):
        # How sound is thinned out is the encoder's, which has its own identity.
        thinning = {"conv_stride", "pool_size", "group_size"} if isinstance(own, AudioSettings) else set()
        for field in fields(own):
            if field.name not in thinning:
                yield pytest.param(own, field.name, id=f"{type(own).__name__}.{field.name}")


@pytest.mark.parametrize(("own", "name"), list(settings_with_one_change()))
def test_no_setting_is_left_out_of_the_key(own: Any, name: str) -> None:
    if name == "window_size":
        # The default is as large as it may be.
        other = replace(own, window_size=own.window_size - 1)
    else:
        other = replace(own, **{name: changed(getattr(own, name))})
    assert other.key_settings() != own.key_settings()


NAMES = st.text(max_size=8)
API_KEYS = st.none() | NAMES


@given(uuid=NAMES, other_uuid=NAMES, api_key=API_KEYS, other_api_key=API_KEYS)
def test_a_uuid_is_another_key_for_another_client(
    uuid: str, other_uuid: str, api_key: str | None, other_api_key: str | None
) -> None:
    key = key_for_uuid(api_key, uuid)
    assert (key == key_for_uuid(other_api_key, uuid)) == (api_key == other_api_key)
    assert (key == key_for_uuid(api_key, other_uuid)) == (uuid == other_uuid)
    assert (key == key_for_uuid(other_api_key, other_uuid)) == (
        (api_key, uuid) == (other_api_key, other_uuid)
    )


@given(model=MODELS, item=ITEMS, api_key=API_KEYS)
@settings(max_examples=50, deadline=None)
def test_a_uuid_is_no_content_key_whatever_it_says(model: Model, item: Item, api_key: str | None) -> None:
    """Not even when a client names its media by their own key."""
    key = key_of(model, item)
    assert key_for_uuid(api_key, key) != key
    assert key_for_uuid(api_key, item.data.decode()) != key
