"""The tokenizer files: what transformers makes of them, and that they come out the same every time."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jinja2.exceptions import TemplateError
from tokenizers import Tokenizer
from transformers import AutoTokenizer

from serve_apps.checkpoint.tokenizer import (
    NUM_TOKENS,
    SPECIAL_TOKENS,
    TOKEN_IDS,
    build_tokenizer,
    write_tokenizer,
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tokenizer")
    write_tokenizer(folder, build_tokenizer())
    return folder


@pytest.fixture(scope="module")
def hub_tokenizer(folder: Path) -> Any:
    return AutoTokenizer.from_pretrained(folder)


@pytest.fixture(scope="module")
def plain_tokenizer(folder: Path) -> Tokenizer:
    return Tokenizer.from_file(str(folder / "tokenizer.json"))


def test_special_tokens_have_the_ids_that_the_config_names(hub_tokenizer: Any) -> None:
    assert len(hub_tokenizer) == NUM_TOKENS
    assert hub_tokenizer.convert_tokens_to_ids(list(SPECIAL_TOKENS)) == list(TOKEN_IDS.values())
    assert hub_tokenizer.eos_token == "<|im_end|>"
    assert hub_tokenizer.pad_token == "<|endoftext|>"


def test_same_files_every_time(plain_tokenizer: Tokenizer) -> None:
    assert build_tokenizer().to_str() == plain_tokenizer.to_str()


def test_merges_shorten_english(plain_tokenizer: Tokenizer) -> None:
    text = "What is in this picture? The picture shows a street with a sign."
    assert len(plain_tokenizer.encode(text)) < len(text) / 2


@settings(max_examples=100, deadline=None)
@given(text=st.text(alphabet=st.characters(exclude_categories=["Cs"]), max_size=80))
def test_every_text_survives_encode_and_decode(plain_tokenizer: Tokenizer, text: str) -> None:
    ids = plain_tokenizer.encode(text).ids
    assert plain_tokenizer.decode(ids, skip_special_tokens=False) == text


def test_template_puts_one_marker_per_media_part(hub_tokenizer: Any) -> None:
    parts = [
        {"type": "image"},
        {"type": "text", "text": "and"},
        {"type": "audio"},
        {"type": "video"},
    ]
    messages = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": parts},
        {"role": "assistant", "content": "Yes."},
        {"role": "user", "content": "Why?"},
    ]
    text = hub_tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    assert text == (
        "<|im_start|>system\nBe brief.<|im_end|>\n"
        "<|im_start|>user\n<|vision_start|><|image_pad|><|vision_end|>and"
        "<|mimo_audio_start|><|audio_pad|><|mimo_audio_end|>"
        "<|mimo_video_start|><|video_pad|><|mimo_video_end|><|im_end|>\n"
        "<|im_start|>assistant\nYes.<|im_end|>\n"
        "<|im_start|>user\nWhy?<|im_end|>\n"
        "<|im_start|>assistant\n"
    )


@pytest.mark.parametrize(
    ("message", "complaint"),
    [
        ({"role": "tool", "content": "x"}, "role tool"),
        ({"role": "user", "content": [{"type": "smell"}]}, "content part smell"),
    ],
)
def test_template_names_what_it_cannot_render(
    hub_tokenizer: Any, message: dict[str, Any], complaint: str
) -> None:
    with pytest.raises(TemplateError, match=complaint):
        hub_tokenizer.apply_chat_template([message], tokenize=False)
