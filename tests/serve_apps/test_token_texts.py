"""Tokens as text and exact bytes."""

from __future__ import annotations

import pytest
from tokenizers import Tokenizer

from serve_apps.chat.token_texts import TokenizerTexts


@pytest.mark.parametrize("text", ["hello world", " two  spaces\n", "naïve – 日本語 🎉", "\x00\x7f"])
def test_the_bytes_of_all_tokens_are_the_text(tiny, text):
    tokenizer = Tokenizer.from_file(str(tiny / "tokenizer.json"))
    texts = TokenizerTexts(tokenizer)
    ids = tokenizer.encode(text, add_special_tokens=False).ids
    assert b"".join(texts.token(token_id).data for token_id in ids) == text.encode()


def test_special_tokens_and_unknown_ids(tiny):
    texts = TokenizerTexts.from_folder(tiny)
    tokenizer = Tokenizer.from_file(str(tiny / "tokenizer.json"))
    assert texts.token(tokenizer.token_to_id("<|im_end|>")).text == "<|im_end|>"
    assert texts.token(10**6).data == b""


def test_part_of_a_character_shows_as_a_replacement(tiny):
    tokenizer = Tokenizer.from_file(str(tiny / "tokenizer.json"))
    first = tokenizer.encode("🎉", add_special_tokens=False).ids[0]
    found = TokenizerTexts(tokenizer).token(first)
    if len(found.data) < 4:
        assert "\ufffd" in found.text
