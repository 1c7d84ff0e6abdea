"""Request bodies: what is accepted, and what every refusal says."""

from __future__ import annotations

import json
from typing import Any

import pytest

from mm_pipeline.options import MediaOptions
from serve_apps.api.errors import ApiError
from serve_apps.api.schemas import IGNORED_FIELDS, UNSUPPORTED_FIELDS
from serve_apps.api.validation import media_parts, parse_chat_request, text_chars

USER = {"role": "user", "content": "hi"}


def body(**fields: Any) -> bytes:
    return json.dumps({"model": "demo", "messages": [USER], **fields}).encode()


def refused(data: bytes) -> ApiError:
    with pytest.raises(ApiError) as info:
        parse_chat_request(data)
    assert info.value.status == 400
    assert "pydantic" not in info.value.message
    return info.value


def test_a_full_request_is_accepted():
    request = parse_chat_request(
        body(
            stream=True,
            stream_options={"include_usage": True},
            max_completion_tokens=7,
            temperature=0,
            top_p=0.5,
            top_k=40,
            min_p=0.1,
            repetition_penalty=1.1,
            presence_penalty=-1,
            frequency_penalty=0.5,
            seed=-3,
            logprobs=True,
            top_logprobs=5,
            stop=["a", "b"],
            stop_token_ids=[1],
            ignore_eos=True,
        )
    )
    assert request.token_limit == 7
    assert request.include_usage
    assert request.temperature == 0.0
    assert request.stop == ["a", "b"]


def test_null_means_absent_and_stop_may_be_one_string():
    request = parse_chat_request(body(stop="x", temperature=None, max_tokens=None, tools=None, n=None))
    assert request.stop == ["x"]
    assert request.token_limit is None


@pytest.mark.parametrize("name", sorted(IGNORED_FIELDS))
def test_fields_that_cannot_change_the_answer_are_ignored(name):
    parse_chat_request(body(**{name: "anything"}))


@pytest.mark.parametrize("name", sorted(UNSUPPORTED_FIELDS))
def test_unsupported_fields_are_refused_by_name(name):
    error = refused(body(**{name: 2}))
    assert error.param == name
    assert error.code == "unsupported_parameter"
    assert name in error.message


@pytest.mark.parametrize(
    "fields",
    [
        {"n": 1},
        {"tools": []},
        {"tool_choice": "none"},
        {"response_format": {"type": "text"}},
        {"modalities": ["text"]},
        {"logit_bias": {}},
    ],
)
def test_unsupported_fields_that_ask_for_nothing_are_accepted(fields):
    parse_chat_request(body(**fields))


def test_true_is_not_the_number_one():
    assert refused(body(n=True)).param == "n"


@pytest.mark.parametrize(
    ("fields", "param", "part"),
    [
        ({"zzz": 1}, "zzz", "not a known field"),
        ({"temperature": "1"}, "temperature", "must be a number, but '1' came"),
        ({"temperature": 3}, "temperature", "at most 2.0, but 3 came"),
        ({"temperature": -0.1}, "temperature", "at least 0.0"),
        ({"top_p": 0}, "top_p", "greater than 0.0, but 0 came"),
        ({"top_k": 1.5}, "top_k", "whole number"),
        ({"priority": -1}, "priority", "at least 0, but -1 came"),
        ({"priority": 101}, "priority", "at most 100, but 101 came"),
        ({"max_tokens": 0}, "max_tokens", "at least 1, but 0 came"),
        ({"max_tokens": True}, "max_tokens", "but true came"),
        ({"max_tokens": 10**30}, "max_tokens", "less than 2147483648"),
        ({"max_tokens": 3, "max_completion_tokens": 4}, "max_tokens", "Send one of them"),
        ({"stop": ["a"] * 17}, "stop", "may have 16 entries, but 17 came"),
        ({"stop": ["a" * 257]}, "stop.0", "may have 256 characters, but 257 came"),
        ({"stop": [""]}, "stop.0", "must not be empty"),
        ({"stop": 5}, "stop", "must be a list, but 5 came"),
        ({"stop_token_ids": list(range(65))}, "stop_token_ids", "64 entries"),
        ({"stop_token_ids": [-1]}, "stop_token_ids.0", "at least 0"),
        ({"top_logprobs": 21, "logprobs": True}, "top_logprobs", "at most 20"),
        ({"top_logprobs": 2}, "top_logprobs", "without 'logprobs'"),
        ({"stream_options": {"include_usage": True}}, "stream_options", "without 'stream'"),
        ({"stream": "yes"}, "stream", "must be true or false, but 'yes' came"),
        ({"seed": 2**63}, "seed", "less than"),
        ({"messages": []}, "messages", "must not be empty"),
        ({"messages": "hi"}, "messages", "must be a list"),
        ({"messages": [USER] * 1025}, "messages", "may have 1024 entries, but 1025 came"),
        ({"messages": [5]}, "messages.0", "must be an object"),
        ({"model": ""}, "model", "must not be empty"),
        ({"model": 5}, "model", "must be a string, but 5 came"),
        ({"mm_processor_kwargs": [1]}, "mm_processor_kwargs", "must be an object"),
        (
            {"mm_processor_kwargs": {"nframes": 3}},
            "mm_processor_kwargs.nframes",
            "Use fps, min_frames, max_frames, max_pixels, total_pixels, start_s, end_s or use_audio_in_video",
        ),
        ({"mm_processor_kwargs": {"fps": 0}}, "mm_processor_kwargs.fps", "greater than 0.0, but 0 came"),
        ({"mm_processor_kwargs": {"fps": "2"}}, "mm_processor_kwargs.fps", "must be a number"),
        ({"mm_processor_kwargs": {"fps": True}}, "mm_processor_kwargs.fps", "but true came"),
        ({"mm_processor_kwargs": {"max_frames": 0}}, "mm_processor_kwargs.max_frames", "at least 1"),
        ({"mm_processor_kwargs": {"max_frames": 2.5}}, "mm_processor_kwargs.max_frames", "whole number"),
        ({"mm_processor_kwargs": {"max_pixels": 2**60}}, "mm_processor_kwargs.max_pixels", "less than"),
        ({"mm_processor_kwargs": {"start_s": -1}}, "mm_processor_kwargs.start_s", "at least 0.0, but -1"),
        (
            {"mm_processor_kwargs": {"start_s": 5, "end_s": 5}},
            "mm_processor_kwargs.end_s",
            "start_s is 5.0 and end_s 5.0",
        ),
        (
            {"mm_processor_kwargs": {"min_frames": 9, "max_frames": 8}},
            "mm_processor_kwargs.min_frames",
            "min_frames is 9 and max_frames 8",
        ),
        (
            {"mm_processor_kwargs": {"use_audio_in_video": 1}},
            "mm_processor_kwargs.use_audio_in_video",
            "true or false",
        ),
    ],
)
def test_values_out_of_range_say_what_came_and_what_is_allowed(fields, param, part):
    error = refused(body(**fields))
    assert error.param == param
    assert part in error.message


@pytest.mark.parametrize(
    ("message", "param", "part"),
    [
        ({"role": "usr", "content": "x"}, "messages.0.role", "'developer'"),
        ({"role": "tool", "content": "x"}, "messages.0.role", "tool calls are not supported"),
        ({"role": "user"}, "messages.0.content", "is missing"),
        ({"role": "user", "content": None}, "messages.0.content", "string or a list of parts, but null"),
        ({"role": "user", "content": []}, "messages.0.content", "must not be empty"),
        ({"role": "user", "content": [3]}, "messages.0.content.0", "part without a type"),
        ({"role": "user", "content": [{"type": "foo"}]}, "messages.0.content.0", "the type 'foo' came"),
        ({"role": "user", "content": [{"type": "text"}]}, "messages.0.content.0.text", "is missing"),
        (
            {"role": "user", "content": [{"type": "image_url", "image_url": "http://x"}]},
            "messages.0.content.0.image_url",
            "must be an object, but 'http://x' came",
        ),
        (
            {"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x", "detail": "z"}}]},
            "messages.0.content.0.image_url.detail",
            "'auto', 'low'",
        ),
        (
            {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "file"}]},
            "messages.0.content.1",
            "file parts are not supported. Use text, image_url, video_url, input_audio or audio_url",
        ),
        (
            {"role": "user", "content": [{"type": "video_url", "video_url": {"url": "x", "fps": 1}}]},
            "messages.0.content.0.video_url.fps",
            "not a known field",
        ),
        (
            {"role": "user", "content": [{"type": "audio_url", "audio_url": {"url": ""}}]},
            "messages.0.content.0.audio_url.url",
            "must not be empty",
        ),
        (
            {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "input_audio"}]},
            "messages.0.content.1.input_audio",
            "is missing",
        ),
        (
            {"role": "user", "content": [{"type": "input_audio", "input_audio": {"data": "A"}}]},
            "messages.0.content.0.input_audio.format",
            "is missing",
        ),
        (
            {
                "role": "user",
                "content": [{"type": "input_audio", "input_audio": {"data": "A", "format": "midi"}}],
            },
            "messages.0.content.0.input_audio.format",
            "'wav', 'mp3'",
        ),
        (
            {"role": "user", "content": [{"type": "image_url"}]},
            "messages.0.content.0.image_url",
            "or the 'uuid' with which the media were sent before",
        ),
        (
            {"role": "user", "content": [{"type": "video_url", "video_url": {"url": None}, "uuid": None}]},
            "messages.0.content.0.video_url.url",
            "is missing",
        ),
        (
            {"role": "user", "content": [{"type": "input_audio", "input_audio": {"format": "wav"}}]},
            "messages.0.content.0.input_audio.data",
            "is missing",
        ),
        (
            {"role": "user", "content": [{"type": "text", "text": "a", "uuid": "x"}]},
            "messages.0.content.0.uuid",
            "not a known field",
        ),
        (
            {"role": "assistant", "content": "x", "tool_calls": [{"id": "1"}]},
            "messages.0.tool_calls",
            "not a known field",
        ),
    ],
)
def test_bad_messages_name_the_part(message, param, part):
    error = refused(body(messages=[message]))
    assert error.param == param
    assert part in error.message


def test_an_answer_may_be_sent_back_as_the_official_client_prints_it():
    answer = {
        "role": "assistant",
        "content": "x",
        "refusal": None,
        "annotations": [],
        "audio": None,
        "function_call": None,
        "tool_calls": None,
    }
    assert len(parse_chat_request(body(messages=[USER, answer, USER])).messages) == 3


@pytest.mark.parametrize(
    "data",
    [b"", b"{", b"[" * 5000, b"\xff\xfe", b'{"a": NaN}', b'{"model": "\\ud800"}', b"[]", b"3", b"null"],
)
def test_malformed_json_is_a_400(data):
    assert refused(data).code == "invalid_json"


def test_long_values_are_not_echoed_whole():
    assert len(refused(body(temperature="x" * 100_000)).message) < 250


def test_media_parts_and_text_are_found_in_order():
    content = [
        {"type": "text", "text": "abc"},
        {"type": "image_url", "image_url": {"url": "u1"}},
        {"type": "image_url", "image_url": {"url": "u2", "detail": "low"}},
        {"type": "video_url", "video_url": {"url": "u3"}},
        {"type": "audio_url", "audio_url": {"url": "u4"}},
        {"type": "input_audio", "input_audio": {"data": "AAAA", "format": "wav"}},
        {"type": "input_audio", "input_audio": {"data": "data:;base64,AAAA", "format": "mp3"}},
    ]
    request = parse_chat_request(body(messages=[USER, {"role": "user", "content": content}]))
    assert [(param, part.modality, part.url) for param, part in media_parts(request)] == [
        ("messages.1.content.1", "image", "u1"),
        ("messages.1.content.2", "image", "u2"),
        ("messages.1.content.3", "video", "u3"),
        ("messages.1.content.4", "audio", "u4"),
        ("messages.1.content.5", "audio", "data:audio/wav;base64,AAAA"),
        ("messages.1.content.6", "audio", "data:;base64,AAAA"),
    ]
    assert text_chars(request) == 5


@pytest.mark.parametrize(
    "part",
    [
        {"type": "image_url"},
        {"type": "image_url", "image_url": None},
        {"type": "image_url", "image_url": {"url": None, "detail": "high"}},
        {"type": "video_url", "video_url": {}},
        {"type": "audio_url", "audio_url": {"url": None}},
        {"type": "input_audio", "input_audio": None},
        {"type": "input_audio", "input_audio": {"data": None, "format": "wav"}},
    ],
    ids=str,
)
def test_media_with_a_uuid_may_be_left_out(part):
    uuid = "!" + "~" * 127
    request = parse_chat_request(body(messages=[{"role": "user", "content": [{**part, "uuid": uuid}]}]))
    ((_, found),) = media_parts(request)
    assert (found.url, found.uuid) == (None, uuid)


@pytest.mark.parametrize(
    ("uuid", "part"),
    [
        ("", "must not be empty"),
        ("x" * 129, "may have 128 characters, but 129 came"),
        ("my key", "may have ASCII letters, digits and punctuation, but 'my key' came"),
        ("key\n", "ASCII"),
        ("clé", "ASCII"),
        (7, "must be a string, but 7 came"),
    ],
)
def test_a_uuid_is_short_and_plain(uuid, part):
    content = [{"type": "image_url", "image_url": {"url": "u"}, "uuid": uuid}]
    error = refused(body(messages=[{"role": "user", "content": content}]))
    assert error.param == "messages.0.content.0.uuid"
    assert part in error.message


def test_the_sampling_wishes_of_a_request():
    wishes = {"fps": 2, "max_frames": 16, "max_pixels": None, "end_s": 3.5, "use_audio_in_video": False}
    request = parse_chat_request(body(mm_processor_kwargs=wishes))
    assert request.media_options == MediaOptions(fps=2.0, max_frames=16, end_s=3.5, use_audio_in_video=False)
    for absent in ({}, {"mm_processor_kwargs": None}, {"mm_processor_kwargs": {"use_audio_in_video": None}}):
        assert parse_chat_request(body(**absent)).media_options == MediaOptions()


def test_a_number_that_is_too_large_for_a_float_is_refused():
    data = body().replace(b'"model"', b'"mm_processor_kwargs": {"fps": 1e999}, "model"', 1)
    with pytest.raises(ApiError) as info:
        parse_chat_request(data)
    assert info.value.status == 400
