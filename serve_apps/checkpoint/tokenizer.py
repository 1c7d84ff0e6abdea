"""A small byte-level BPE tokenizer with MiMo's special tokens, as ordinary tokenizer files.

Every text survives encode and decode unchanged: all 256 bytes are tokens. The merges are learnt from a page
of English kept here, so that the same files come out every time. Knows nothing of weights or model shapes.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tokenizers import Tokenizer

NUM_PLAIN_TOKENS = 500
"""256 bytes, the rest merges."""

SPECIAL_TOKENS = (
    "<|endoftext|>",
    "<|im_start|>",
    "<|im_end|>",
    "<|vision_start|>",
    "<|vision_end|>",
    "<|image_pad|>",
    "<|video_pad|>",
    "<|audio_pad|>",
    "<|mimo_video_start|>",
    "<|mimo_video_end|>",
    "<|mimo_audio_start|>",
    "<|mimo_audio_end|>",
)


def token_ids(num_plain_tokens: int) -> dict[str, int]:
    """Ids of `SPECIAL_TOKENS` in a tokenizer with so many others before them."""
    return {token: num_plain_tokens + index for index, token in enumerate(SPECIAL_TOKENS)}


TOKEN_IDS = token_ids(NUM_PLAIN_TOKENS)
NUM_TOKENS = NUM_PLAIN_TOKENS + len(SPECIAL_TOKENS)

_CORPUS = """\
What is in this picture? The picture shows a street with a green sign on a grey post, and the words on the
sign are easy to read. How many shapes are there, and which colours do they have? There are three red
circles, two blue squares and one yellow triangle. Describe the chart in one sentence. The chart has five
bars, one for each day of the week; the highest bar is on the right and the lowest is on the left. Is it day
or night? It is an evening by the water, the sun is low over the hills and the sky goes from orange to
violet. What does the person say in the recording? A woman is speaking about the weather, then some music is
playing, and a dog is barking outside. When does the red car come into view in the video? The car comes into
view after about ten seconds and leaves again before the light changes. Compare the two pictures. The first
one is brighter than the second, but both of them show the same place from a different side. You are a
helpful assistant. Answer the question of the user, and say so when you do not know. I would like to know
what happens between the beginning and the end. Please read the text on the label, and write down the number
under it. The number on the label is 4072, and the price is 15.80 with a discount of 25 percent. Where is
the cat? The cat is sitting behind the window, next to a small plant, looking at the birds. Which animal is
larger, and what is it doing with the ball? The image is too small to tell, but something moves from the
left to the right of the frame.
"""

# The split that Qwen tokenizers use: contractions, words with their leading mark, single digits, punctuation,
# line ends, blanks.
SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)


def train_tokenizer(
    texts: Iterable[str], num_plain_tokens: int = NUM_PLAIN_TOKENS, split: str = SPLIT
) -> Tokenizer:
    """A tokenizer with ids 0..255 bytes, then merges learnt from `texts`, then `SPECIAL_TOKENS` in their order.

    split: regular expression whose matches, and what lies between them, are never merged with each other.
    Raises ValueError when the texts are too few for that many merges.
    """
    from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(split), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=num_plain_tokens,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        special_tokens=[],
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    if tokenizer.get_vocab_size() != num_plain_tokens:
        raise ValueError(
            f"the texts give {tokenizer.get_vocab_size()} tokens; {num_plain_tokens} are needed, so add texts"
        )
    tokenizer.add_special_tokens(
        [AddedToken(token, special=True, normalized=False) for token in SPECIAL_TOKENS]
    )
    return tokenizer


def build_tokenizer() -> Tokenizer:
    """The tokenizer of random checkpoints."""
    return train_tokenizer([_CORPUS])


def write_tokenizer(folder: Path, tokenizer: Tokenizer) -> None:
    """Writes tokenizer.json, tokenizer_config.json, special_tokens_map.json and chat_template.jinja."""
    tokenizer.save(str(folder / "tokenizer.json"))
    named = {"eos_token": "<|im_end|>", "pad_token": "<|endoftext|>"}
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "added_tokens_decoder": {
            str(token_id): {
                "content": token,
                "lstrip": False,
                "normalized": False,
                "rstrip": False,
                "single_word": False,
                "special": True,
            }
            for token, token_id in ((token, tokenizer.token_to_id(token)) for token in SPECIAL_TOKENS)
        },
        "bos_token": None,
        "unk_token": None,
        "clean_up_tokenization_spaces": False,
        "model_max_length": 1_048_576,
        **named,
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(config, indent=2) + "\n")
    (folder / "special_tokens_map.json").write_text(json.dumps(named, indent=2) + "\n")
    template = Path(__file__).with_name("chat_template.jinja").read_text()
    (folder / "chat_template.jinja").write_text(template)
