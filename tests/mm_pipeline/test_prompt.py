import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from transformers import AutoTokenizer

from mm_pipeline.prompt import ChatPrompter, MediaShape, MediaSlot, MediaSpan, SpecialTokens, expand
from serve_apps.checkpoint.tokenizer import SPECIAL_TOKENS
from tests.mm_pipeline.conftest import ADDED

IMAGE = {"type": "image"}


def text(value):
    return {"type": "text", "text": value}


def user(content):
    return [{"role": "user", "content": content}]


def image(num_tokens):
    return MediaShape(modality="image", num_tokens=num_tokens)


@pytest.fixture(scope="module")
def prompter(tokenizer_folder):
    return ChatPrompter.from_folder(tokenizer_folder)


@pytest.fixture(scope="module")
def tokenizer(tokenizer_folder):
    return AutoTokenizer.from_pretrained(tokenizer_folder)


@pytest.fixture(scope="module")
def tokens(tokenizer_folder):
    return SpecialTokens.from_config(json.loads((tokenizer_folder / "config.json").read_text()))


def ids_of(prompt):
    return [token_id for piece in prompt if not isinstance(piece, MediaSlot) for token_id in piece]


# hypothesis also draws the string constants of the code under test, special tokens among them.
ordinary = st.text(st.characters(exclude_categories=["Cs"]), max_size=30).filter(
    lambda text: not any(token in text for token in (*SPECIAL_TOKENS, ADDED))
) | st.sampled_from(["What is in this picture?", " a < b ", "<", "|>", "<|im", "  \n\n", "end|>"])


@given(st.lists(ordinary, min_size=1, max_size=3))
def test_ordinary_text_is_tokenised_as_transformers_does(prompter, tokenizer, texts):
    messages = [
        {"role": "system", "content": texts[0]},
        {"role": "user", "content": [text(one) for one in texts]},
    ]
    expected = tokenizer.apply_chat_template(messages, add_generation_prompt=True)["input_ids"]
    assert ids_of(prompter.render(messages)) == expected


pieces = st.sampled_from(
    [
        *SPECIAL_TOKENS,
        ADDED,
        *(token[:4] for token in SPECIAL_TOKENS),
        *(token[4:] for token in SPECIAL_TOKENS),
    ]
)


@given(st.lists(st.lists(pieces | st.text("ab<|>im_\n", max_size=4), max_size=4), min_size=1, max_size=4))
def test_special_tokens_in_users_text_stay_text(prompter, tokenizer, parts):
    texts = ["".join(part) for part in parts]
    messages = user([text(one) for one in texts])
    prompt = prompter.render(messages)
    added = set(tokenizer.added_tokens_decoder)
    structure = [token_id for token_id in ids_of(prompt) if token_id in added]
    empty = ids_of(prompter.render(user("")))
    assert structure == [token_id for token_id in empty if token_id in added]
    assert tokenizer.decode(ids_of(prompt)) == tokenizer.apply_chat_template(
        messages, tokenize=False, add_generation_prompt=True
    )


def test_token_split_over_two_parts_stays_text(prompter, tokenizer):
    for parts in (["<|im_st", "art|>"], ["a<|image", "_pad|>b"], ["<thi", "nk>"], ["<", "|im_end", "|>"]):
        ids = ids_of(prompter.render(user([text(part) for part in parts])))
        assert "".join(parts) in tokenizer.decode(ids)
        added = set(tokenizer.added_tokens_decoder)
        assert sum(token_id in added for token_id in ids) == 3


def test_marks_typed_by_the_user_stay_text(prompter, tokenizer):
    typed = "\ufdd00:0\ufdd1<|im_end|>\ufdd01:0\ufdd1"
    assert typed in tokenizer.decode(ids_of(prompter.render(user(typed))))


def test_media_slots_replace_the_templates_marker(prompter, tokenizer, tokens):
    prompt = prompter.render(user([text("Look: "), IMAGE, IMAGE, text("<|image_pad|> What?")]))
    assert [piece for piece in prompt if isinstance(piece, MediaSlot)] == [
        MediaSlot(index=0, modality="image"),
        MediaSlot(index=1, modality="image"),
    ]
    kept = set(ids_of(prompt))
    assert not kept & {tokens.vision_start, tokens.vision_end, tokens.image_pad}
    assert tokenizer.decode(prompt[0]).endswith("Look: ")
    expanded = expand(prompt, [image(3), image(1)], tokens, prompter.encode_text)
    first = len(prompt[0])
    assert expanded.spans == (
        MediaSpan(start=first + 1, length=3, media_index=0, offset=0, modality="image"),
        MediaSpan(start=first + 6, length=1, media_index=1, offset=0, modality="image"),
    )
    pad, start, end = tokens.image_pad, tokens.vision_start, tokens.vision_end
    assert expanded.token_ids[first : first + 8] == (start, pad, pad, pad, end, start, pad, end)
    assert expanded.token_ids[:first] == tuple(prompt[0])
    assert expanded.token_ids[first + 8 :] == tuple(prompt[-1])


def test_bare_pad_of_a_template_is_a_slot_too(tokenizer, tokens):
    tokenizer = AutoTokenizer.from_pretrained(tokenizer.name_or_path)
    tokenizer.chat_template = "{% for part in messages[0].content %}<|image_pad|>.{% endfor %}"
    prompt = ChatPrompter(tokenizer, tokens).render(user([IMAGE, IMAGE]))
    assert [isinstance(piece, MediaSlot) for piece in prompt] == [True, False, True, False]


def test_a_text_on_its_own_holds_no_special_token(prompter, tokenizer):
    for value in ("01:05", "", "<|im_end|>", "a <think> b"):
        ids = prompter.encode_text(value)
        assert tokenizer.decode(ids) == value
        assert not set(ids) & set(tokenizer.added_tokens_decoder)


def test_mismatches_are_errors(prompter):
    with pytest.raises(ValueError, match=r"has media \['audio'\].*places for none"):
        prompter.render(user([{"type": "audio"}]))
    with pytest.raises(ValueError, match="tool is not a role here"):
        prompter.render([{"role": "tool", "content": "x"}])


def test_incomplete_folders_are_errors(tokenizer_folder, tmp_path):
    for name in ("tokenizer.json", "tokenizer_config.json", "config.json"):
        (tmp_path / name).write_text((tokenizer_folder / name).read_text())
    with pytest.raises(ValueError, match="no chat template"):
        ChatPrompter.from_folder(tmp_path)
    with pytest.raises(ValueError, match="no video_start_token_id"):
        SpecialTokens.from_config(
            {
                "image_token_id": 1,
                "video_token_id": 2,
                "audio_token_id": 3,
                "vision_start_token_id": 4,
                "vision_end_token_id": 5,
            }
        )
