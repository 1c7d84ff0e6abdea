"""The decoder learns to answer, first from encoders that stand still, then together with them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

from llm_core.config import load_config
from mm_pipeline.encoders.mimo_audio import MimoAudioEncoder, group_codes
from mm_pipeline.encoders.mimo_audio_tokenizer import MimoAudioTokenizer
from mm_pipeline.encoders.mimo_vision import MimoVisionEncoder
from samples.demo_training.conversations import Conversation, Writer
from samples.demo_training.decoder import Decoder
from samples.demo_training.scenes import clips, lettering, pictures, refusals, sounds, talk
from samples.demo_training.training import prefetched
from samples.demo_training.vocabulary import full_config

_SEED = 3_000_000
# Conversations of one step: module, how many, questions in each. Neighbours of like length share a padded batch.
PLAN = (
    ((pictures, 5, 5), (lettering, 4, 4), (refusals, 3, 3)),
    ((sounds, 5, 5), (talk, 2, 3)),
    ((clips, 4, 5),),
)
_FAMILIES = {pictures: "pictures", lettering: "reading", sounds: "sound", clips: "video", refusals: "refusal"}


@dataclass(frozen=True, kw_only=True)
class Group:
    """Conversations that are padded together, and the family of each."""

    conversations: tuple[Conversation, ...]
    families: tuple[str, ...]


class Model(nn.Module):
    """Everything a checkpoint holds but the audio tokenizer."""

    def __init__(self, vision: MimoVisionEncoder, hearing: MimoAudioEncoder) -> None:
        super().__init__()
        self.vision = vision
        self.hearing = hearing
        self.decoder = Decoder(load_config(full_config()))

    def embed(self, conversations: Sequence[Conversation]) -> torch.Tensor:
        """[B, S, H], zeros behind the end of a conversation."""
        length = max(len(one.token_ids) for one in conversations)
        rows = []
        media = self._media(conversations)
        for one in conversations:
            text = self.decoder.embed_tokens(one.token_ids)
            pieces, at = [], 0
            items = [next(media) for _ in one.seen]
            for span in one.spans:
                pieces.append(text[at : span.start])
                pieces.append(items[span.media_index][span.offset : span.offset + span.length])
                at = span.start + span.length
            pieces.append(text[at:])
            rows.append(F.pad(torch.cat(pieces), (0, 0, 0, length - len(one.token_ids))))
        return torch.stack(rows)

    def _media(self, conversations: Sequence[Conversation]) -> Iterator[torch.Tensor]:
        """Embeddings per item, a video's units before its sound, each kind in one packed pass."""
        items = [pair for one in conversations for pair in zip(one.seen, one.heard, strict=True)]
        images = [image for image, _ in items if image is not None]
        sounds_ = [group_codes(codes, self.hearing.config.group_size) for _, codes in items if codes is not None]
        seen: list[torch.Tensor] = []
        if images:
            # Equal grids side by side are fastest.
            order = sorted(range(len(images)), key=lambda index: images[index].grid_thw[1:])
            embedded = self.vision(
                torch.cat([images[index].patches for index in order]), [images[index].grid_thw for index in order]
            )
            parts = embedded.split([images[index].num_tokens for index in order])
            seen = [part for _, part in sorted(zip(order, parts, strict=True), key=lambda pair: pair[0])]
        heard = (
            list(self.hearing(torch.cat(sounds_)).split([len(part) for part in sounds_])) if sounds_ else []
        )
        eyes, ears = iter(seen), iter(heard)
        for image, codes in items:
            yield torch.cat(
                ([next(eyes)] if image is not None else []) + ([next(ears)] if codes is not None else [])
            )


class DecoderStage:
    """See `Stage`. train_encoders: whether the encoders learn too."""

    learning_rate = 1.5e-3

    def __init__(
        self, name: str, steps: int, model: Model, tokenizer: MimoAudioTokenizer, *, train_encoders: bool
    ) -> None:
        self.name, self.steps, self.module = name, steps, model
        model.decoder.mtp.requires_grad_(False)
        for encoder in (model.vision, model.hearing):
            encoder.requires_grad_(train_encoders)
        self._tokenizer = tokenizer
        self._offset = zlib_seed(name)

    def batches(self, first: int) -> Iterator[list[Group]]:
        writer = Writer(self._tokenizer_codes)
        return prefetched(lambda step: make_step(writer, self._offset, step), first, self.steps)

    def loss(self, groups: list[Group]) -> tuple[torch.Tensor, dict[str, float]]:
        total = sum(int(one.learnt.sum()) for group in groups for one in group.conversations)
        losses = []
        right: dict[str, list[float]] = defaultdict(list)
        for group in groups:
            logits, targets, owners = self._predict(group.conversations)
            losses.append(F.cross_entropy(logits, targets, reduction="sum") / total)
            correct = logits.argmax(dim=-1) == targets
            for owner, answer_right in zip(owners, _by_answer(correct, group.conversations), strict=True):
                right[group.families[owner]].append(answer_right)
        numbers = {family: float(np.mean(values)) for family, values in right.items()}
        return torch.stack(losses).sum(), numbers

    def after_step(self) -> None:
        self.module.decoder.balance()

    def _predict(
        self, conversations: Sequence[Conversation]
    ) -> tuple[torch.Tensor, torch.Tensor, list[int]]:
        """Logits and targets of all learnt tokens, and per answer the number of its conversation."""
        hidden = self.module.decoder(self.module.embed(conversations))
        picked = [hidden[row, :-1][_before(one.learnt, hidden.shape[1])] for row, one in enumerate(conversations)]
        targets = torch.cat([one.token_ids[one.learnt] for one in conversations])
        owners = [row for row, one in enumerate(conversations) for _ in one.turns]
        return self.module.decoder.lm_head(torch.cat(picked)), targets, owners

    def _tokenizer_codes(self, mel: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            codes: torch.Tensor = self._tokenizer(mel)
        return codes


def make_step(writer: Writer, offset: int, step: int) -> list[Group]:
    """The conversations of one step: always the same."""
    rng = np.random.default_rng([_SEED, offset, step])
    groups = []
    for families in PLAN:
        conversations, names = [], []
        for family, count, turns in families:
            for _ in range(count):
                conversations.append(writer.write(family.sample(rng, "train", turns=turns), rng))
                names.append(_FAMILIES.get(family, "talk"))
        groups.append(Group(conversations=tuple(conversations), families=tuple(names)))
    return groups


def zlib_seed(name: str) -> int:
    import zlib

    return zlib.crc32(name.encode())


def _before(learnt: torch.Tensor, length: int) -> torch.Tensor:
    """bool [length - 1]: positions whose next token is learnt."""
    return F.pad(learnt[1:], (0, length - len(learnt)))


def _by_answer(correct: torch.Tensor, conversations: Sequence[Conversation]) -> list[float]:
    """1 for each answer whose every token is right, else 0."""
    found, at = [], 0
    for one in conversations:
        for first, end in one.turns:
            found.append(float(correct[at : at + end - first].all()))
            at += end - first
    return found
