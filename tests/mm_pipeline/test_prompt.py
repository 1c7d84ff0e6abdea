import json
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from transformers import AutoTokenizer

from mm_pipeline.image import smart_resize
from mm_pipeline.pipeline import EncodedMedia
from mm_pipeline.prompt import ChatPrompter, MediaSlot, MediaSpan, SpecialTokens, expand
from serve_apps.checkpoint.tokenizer import SPECIAL_TOKENS
from tests.golden import golden_dir
from tests.mm_pipeline.conftest import ADDED

IMAGE = {"type": "image"}


def text(value):
    return {"type": "text", "text": value}


def user(content):
    return [{"role": "user", "content": content}]


def image(num_tokens):
    return EncodedMedia(
        embeddings=torch.zeros(num_tokens, 1), num_tokens=num_tokens, modality="image", content_key="k"
    )


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


ordinary = st.text(st.characters(exclude_categories=["Cs"]), max_size=30) | st.sampled_from(
    ["What is in this picture?", " a < b ", "<", "|>", "<|im", "  \n\n", "end|>"]
)


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
    expanded = expand(prompt, [image(3), image(1)], tokens)
    first = len(prompt[0])
    assert expanded.spans == (
        MediaSpan(start=first + 1, length=3, media_index=0),
        MediaSpan(start=first + 6, length=1, media_index=1),
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


def test_golden_image_expansion(tokens):
    path = golden_dir() / "golden_expansion.json"
    if not path.exists():
        path = Path(golden_dir()) / "expansion_image.json"
    golden = json.loads(path.read_text())
    names = golden["token_ids"]
    real = SpecialTokens(**{name: names[name] for name in SpecialTokens.__dataclass_fields__})
    for case in golden["cases"]["image"]:
        height, width = smart_resize(
            case["height"], case["width"], factor=32, min_pixels=8192, max_pixels=8_388_608
        )
        assert case["grid_thw"] == [1, height // 16, width // 16]
        expected = [segment["id"] for segment in case["segments"] for _ in range(segment["count"])]
        item = image(height * width // 1024)
        expanded = expand(([1, 2], MediaSlot(index=0, modality="image"), [3]), [item], real)
        assert list(expanded.token_ids) == [1, 2, *expected, 3]
        assert expanded.spans == (MediaSpan(start=3, length=item.num_tokens, media_index=0),)
        assert len(expected) == case["total_special_tokens"]


def test_mismatches_are_errors(prompter, tokens):
    prompt = prompter.render(user([IMAGE]))
    with pytest.raises(ValueError, match="1 media slots, but 2"):
        expand(prompt, [image(1), image(1)], tokens)
    audio = EncodedMedia(embeddings=torch.zeros(1, 1), num_tokens=1, modality="audio", content_key="k")
    with pytest.raises(ValueError, match="is audio; its place in the prompt is for image"):
        expand(prompt, [audio], tokens)
    with pytest.raises(ValueError, match="only images"):
        expand((MediaSlot(index=0, modality="audio"),), [audio], tokens)
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
