"""A tiny byte-level tokenizer folder with a Qwen-style template."""

import json

import pytest
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers

from serve_apps.checkpoint.tokenizer import SPECIAL_TOKENS

# Added, but not special: `skip_special_tokens` leaves it alone and so do options that only know special ones.
ADDED = "<think>"
TEMPLATE = """\
{%- for message in messages %}
{{- '<|im_start|>' + message.role + '\\n' }}
{%- if message.content is string %}{{ message.content }}{% else %}
{%- for part in message.content %}
{%- if part.type == 'image' %}{{ '<|vision_start|><|image_pad|><|vision_end|>' }}
{%- elif part.type == 'video' %}{{ '<|vision_start|><|video_pad|><|vision_end|>' }}
{%- elif part.type == 'text' %}{{ part.text }}{% endif %}
{%- endfor %}{% endif %}
{{- '<|im_end|>\\n' }}
{%- if message.role == 'tool' %}{{ raise_exception('tool is not a role here') }}{% endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"""
CORPUS = [
    "What is in this picture? The user asks the assistant about an image, a chart and a street sign. " * 3
]


@pytest.fixture(scope="session")
def tokenizer_folder(tmp_path_factory):
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=400, initial_alphabet=alphabet, show_progress=False)
    tokenizer.train_from_iterator(CORPUS, trainer)
    tokenizer.add_special_tokens(
        [AddedToken(token, special=True, normalized=False) for token in SPECIAL_TOKENS]
    )
    tokenizer.add_tokens([AddedToken(ADDED, special=False, normalized=False)])
    folder = tmp_path_factory.mktemp("tokenizer")
    tokenizer.save(str(folder / "tokenizer.json"))
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "eos_token": "<|im_end|>",
        "pad_token": "<|endoftext|>",
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    (folder / "chat_template.jinja").write_text(TEMPLATE)
    names = {
        "image_token_id": "<|image_pad|>",
        "video_token_id": "<|video_pad|>",
        "audio_token_id": "<|audio_pad|>",
        "vision_start_token_id": "<|vision_start|>",
        "vision_end_token_id": "<|vision_end|>",
        "video_start_token_id": "<|mimo_video_start|>",
        "video_end_token_id": "<|mimo_video_end|>",
        "audio_start_token_id": "<|mimo_audio_start|>",
        "audio_end_token_id": "<|mimo_audio_end|>",
    }
    ids = {key: tokenizer.token_to_id(token) for key, token in names.items()}
    top_level = {key: ids.pop(key) for key in ("image_token_id", "video_token_id")}
    (folder / "config.json").write_text(json.dumps({"processor_config": ids, **top_level}))
    return folder
