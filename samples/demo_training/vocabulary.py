"""The demo model's tokenizer, learnt from its own questions and answers, and the config that names its tokens.

tokenizer.json is learnt once and kept: weights are good for one tokenizer only, and the wordings of scenes may
change. To learn it anew, which makes every trained state useless:

    python -m samples.demo_training.vocabulary
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

from samples.demo_training.architecture import HERE, model_config
from samples.demo_training.scenes import clips, lettering, pictures, refusals, sounds, talk
from serve_apps.checkpoint.tokenizer import SPECIAL_TOKENS, SPLIT, token_ids, train_tokenizer

if TYPE_CHECKING:
    from tokenizers import Tokenizer

_FILE = HERE / "tokenizer.json"
_SEED = 5_000_000
_SAMPLES_PER_FAMILY = 500
# Capitals that spell something are tokens of their own, and the blank before them too: a letter then looks the
# same wherever it stands.
_LETTERS = r" (?=\p{Lu}(?!\p{Ll}))|\p{Lu}(?!\p{Ll})"


def load_tokenizer() -> Tokenizer:
    """The one that is kept."""
    from tokenizers import Tokenizer

    return Tokenizer.from_file(str(_FILE))


def learn_tokenizer() -> Tokenizer:
    """From today's questions and answers."""
    num_plain_tokens = model_config()["vocab_size"] - len(SPECIAL_TOKENS)
    return train_tokenizer(_texts(), num_plain_tokens, f"{_LETTERS}|{SPLIT}")


def full_config() -> dict[str, Any]:
    """config.json with the ids of the special tokens."""
    config = model_config()
    ids = token_ids(config["vocab_size"] - len(SPECIAL_TOKENS))
    media = {
        "image_token_id": ids["<|image_pad|>"],
        "video_token_id": ids["<|video_pad|>"],
        "audio_token_id": ids["<|audio_pad|>"],
        "vision_start_token_id": ids["<|vision_start|>"],
        "vision_end_token_id": ids["<|vision_end|>"],
        "video_start_token_id": ids["<|mimo_video_start|>"],
        "video_end_token_id": ids["<|mimo_video_end|>"],
        "audio_start_token_id": ids["<|mimo_audio_start|>"],
        "audio_end_token_id": ids["<|mimo_audio_end|>"],
        "pad_token_id": ids["<|endoftext|>"],
    }
    return (
        config
        | media
        | {
            "eos_token_id": ids["<|im_end|>"],
            "processor_config": config["processor_config"] | media,
        }
    )


def _texts() -> Iterator[str]:
    rng = np.random.default_rng(_SEED)
    for family in (pictures, lettering, sounds, clips, refusals, talk):
        for _ in range(_SAMPLES_PER_FAMILY):
            for turn in family.sample(rng, "train").turns:
                yield turn.question
                yield turn.answer
    yield "user\nassistant\nsystem\nYou are a helpful assistant."


if __name__ == "__main__":
    learn_tokenizer().save(str(_FILE))
