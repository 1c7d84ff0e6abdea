"""The decoder learns to answer, first from encoders that stand still, then together with them."""

from __future__ import annotations

import zlib
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

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
from samples.demo_training.facts import FACTS
from samples.demo_training.labels import IGNORED, MOST_SIGNS, SIGNS
from samples.demo_training.looks import LookKind
from samples.demo_training.processes import WHOLE, Shard
from samples.demo_training.scenes import clips, lettering, pictures, refusals, sounds, talk
from samples.demo_training.stages.vision import Batch as LabelledPictures
from samples.demo_training.stages.vision import PictureHeads, make_batch, with_patches
from samples.demo_training.training import Rates, prefetched
from samples.demo_training.vocabulary import full_config

_SEED = 3_000_000
# Layers behind which the decoder is asked what it heard so far, and those where it is asked for facts: full layers
# are 0, 4 and 8.
_SIGN_TAPS, _FACT_TAPS = (3, 7), (4, 7)
_SIGNS_WEIGHT, _FACTS_WEIGHT, _LOOKS_WEIGHT = 0.5, 0.1, 0.5
# Beside the conversations of a step, while the encoders learn; the first is none that the vision stage had.
_LABELLED_PICTURES, _FRESH = 8, 1 << 30
# Which heads of which full layers learn to look where.
_LOOKING: tuple[tuple[LookKind, int, tuple[int, ...]], ...] = (
    ("word", 0, (4, 6)),
    ("phrase", 4, (0, 5)),
    ("next", 4, (2, 6)),
    ("next", 8, (2, 5)),
)
# At twice the rates (five times Muon's) the loss stood still after 250 steps; lowered, it fell by a third in 150.
ANSWERING = Rates(adamw=1.25e-3, muon=1.5e-3, weight_decay=0.03)
_FACT_SIZES = [len(values) for values in FACTS.values()]
_NAMES = {pictures: "pictures", lettering: "reading", sounds: "sound", clips: "video", refusals: "refusal"}


@dataclass(frozen=True, kw_only=True)
class Share:
    """`count` conversations of one step about `turns` questions each. tasks: only these; all when empty."""

    scenes: Any
    count: int
    turns: int
    tasks: tuple[str, ...] = ()


Plan: TypeAlias = tuple[Share, ...]
"""The conversations of one step."""

# What has to be read off one by one takes longest to learn.
_IN_ORDER = ("dtmf", "keys", "morse", "morse", "morse", "count", "loudness", "pitch")
EVERYTHING: Plan = (
    Share(scenes=pictures, count=4, turns=8),
    Share(scenes=lettering, count=3, turns=6),
    Share(scenes=refusals, count=1, turns=4),
    Share(scenes=sounds, count=2, turns=3, tasks=_IN_ORDER),
    Share(scenes=sounds, count=1, turns=5),
    Share(scenes=talk, count=1, turns=6, tasks=("sum",)),
    Share(scenes=talk, count=1, turns=4),
    Share(scenes=clips, count=3, turns=8),
)


@dataclass(frozen=True, kw_only=True)
class Conversations:
    """The conversations of one step, and the family of each. labelled: pictures that nobody talks about."""

    conversations: tuple[Conversation, ...]
    families: tuple[str, ...]
    labelled: LabelledPictures | None = None


class Model(nn.Module):
    """Everything a checkpoint holds but the audio tokenizer."""

    def __init__(self, vision: MimoVisionEncoder, hearing: MimoAudioEncoder) -> None:
        super().__init__()
        self.vision = vision
        self.hearing = hearing
        self.decoder = Decoder(load_config(full_config()))
        # Not part of a checkpoint.
        size = self.decoder.config.hidden_size
        self.sign_heads = nn.ModuleList(nn.Linear(size, 1 + MOST_SIGNS + len(SIGNS)) for _ in _SIGN_TAPS)
        self.picture_heads = PictureHeads(vision.config)
        self.fact_heads = nn.ModuleList(nn.Linear(size, sum(_FACT_SIZES)) for _ in _FACT_TAPS)

    def embed(self, conversations: Sequence[Conversation]) -> torch.Tensor:
        """[N, H], the conversations back to back."""
        pieces = []
        media = self._media(conversations)
        for one in conversations:
            text = self.decoder.embed_tokens(one.token_ids)
            at = 0
            items = [next(media) for _ in one.seen]
            for span in one.spans:
                pieces.append(text[at : span.start])
                pieces.append(items[span.media_index][span.offset : span.offset + span.length])
                at = span.start + span.length
            pieces.append(text[at:])
        return torch.cat(pieces)

    def _media(self, conversations: Sequence[Conversation]) -> Iterator[torch.Tensor]:
        """Embeddings per item, a video's units before its sound, each kind in one packed pass."""
        items = [pair for one in conversations for pair in zip(one.seen, one.heard, strict=True)]
        images = [image for image, _ in items if image is not None]
        sounds_ = [
            group_codes(codes, self.hearing.config.group_size) for _, codes in items if codes is not None
        ]
        seen: list[torch.Tensor] = []
        if images:
            # Equal grids side by side are fastest.
            order = sorted(range(len(images)), key=lambda index: images[index].grid_thw[1:])
            embedded = self.vision(
                torch.cat([images[index].patches for index in order]),
                [images[index].grid_thw for index in order],
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

    def __init__(
        self,
        name: str,
        steps: int,
        model: Model,
        tokenizer: MimoAudioTokenizer,
        *,
        plan: Plan = EVERYTHING,
        rates: Rates = ANSWERING,
        train_encoders: bool = False,
    ) -> None:
        self.name, self.steps, self.module, self.rates = name, steps, model, rates
        self._plan = plan
        model.decoder.mtp.requires_grad_(False)
        for module in (model.vision, model.hearing, model.picture_heads):
            module.requires_grad_(train_encoders)
        self._num_labelled = _LABELLED_PICTURES if train_encoders else 0
        self._tokenizer = tokenizer
        self._offset = zlib.crc32(name.encode())

    def batches(self, first: int, shard: Shard = WHOLE) -> Iterator[Conversations]:
        writer = Writer(self._tokenizer_codes)

        def make(step: int) -> Conversations:
            found = make_step(writer, self._plan, self._offset, step, shard)
            if not self._num_labelled:
                return found
            pictures_ = make_batch(_FRESH + step, shard=shard, count=self._num_labelled)
            return replace(found, labelled=pictures_)

        return prefetched(make, first, self.steps)

    def loss(self, batch: Conversations) -> tuple[torch.Tensor, dict[str, float]]:
        right: dict[str, list[float]] = defaultdict(list)
        logits, targets, owners, others = self._predict(batch.conversations)
        if batch.labelled:
            shown = batch.labelled
            seen = with_patches(self.module.vision, shown.patches, shown.grids)
            others["pictures_lost"] = self.module.picture_heads.lost(*seen, shown.labels)[0]
        loss = torch.stack([F.cross_entropy(logits, targets), *others.values()]).sum()
        correct = logits.argmax(dim=-1) == targets
        for owner, answer_right in zip(owners, _by_answer(correct, batch.conversations), strict=True):
            right[batch.families[owner]].append(answer_right)
        lost = {name: other.item() for name, other in others.items()}
        return loss, {family: float(np.mean(values)) for family, values in right.items()} | lost

    def after_step(self) -> None:
        self.module.decoder.balance()

    def _predict(
        self, conversations: Sequence[Conversation]
    ) -> tuple[torch.Tensor, torch.Tensor, list[int], dict[str, torch.Tensor]]:
        """Logits and targets of all learnt tokens, per answer the number of its conversation, and what is lost
        between the layers."""
        lengths = [len(one.token_ids) for one in conversations]
        hidden, between = self.module.decoder(
            self.module.embed(conversations), lengths, range(-1, len(self.module.decoder.layers))
        )
        token_ids = torch.cat([one.token_ids for one in conversations])
        # A conversation begins with what is not learnt, so no position is asked about its neighbour's first token.
        learnt = torch.cat([one.learnt for one in conversations])
        logits = self.module.decoder.lm_head(hidden[:-1][learnt[1:]])
        owners = [row for row, one in enumerate(conversations) for _ in one.turns]
        signs, facts = (
            torch.cat(parts) for parts in zip(*((one.signs, one.facts) for one in conversations), strict=True)
        )
        found = {
            "signs_lost": self._signs_lost([between[1 + tap] for tap in _SIGN_TAPS], signs),
            "facts_lost": self._facts_lost([between[1 + tap] for tap in _FACT_TAPS], facts),
            "looks_lost": self._looks_lost(between, conversations),
        }
        others = {name: lost for name, lost in found.items() if lost is not None}
        return logits, token_ids[learnt], owners, others

    def _signs_lost(self, between: Sequence[torch.Tensor], signs: torch.Tensor) -> torch.Tensor | None:
        """How far the states between are from telling how many signs were heard and which was the last; None where
        no sound is.

        It shows the decoder that sounds are to be read in order (measured: README.md).
        """
        asked = signs[:, 0] != IGNORED
        if not asked.any():
            return None
        number, last = signs[asked].unbind(dim=-1)
        losses = []
        for head, state in zip(self.module.sign_heads, between, strict=True):
            numbers, names = head(state[asked]).split([1 + MOST_SIGNS, len(SIGNS)], dim=-1)
            losses.append(F.cross_entropy(numbers, number))
            if (last != IGNORED).any():
                losses.append(F.cross_entropy(names, last, ignore_index=IGNORED))
        return _SIGNS_WEIGHT * torch.stack(losses).mean()

    def _facts_lost(self, between: Sequence[torch.Tensor], facts: torch.Tensor) -> torch.Tensor | None:
        """How far they are from telling the facts, summed over those of a position; None where none is asked.

        It shows the decoder which part of a picture a word is about (measured: README.md).
        """
        asked = (facts != IGNORED).any(dim=1)
        if not asked.any():
            return None
        wanted = facts[asked].unbind(dim=1)
        losses = []
        for head, state in zip(self.module.fact_heads, between, strict=True):
            told = head(state[asked]).split(_FACT_SIZES, dim=-1)
            losses += [
                F.cross_entropy(logits, value, ignore_index=IGNORED, reduction="sum")
                for logits, value in zip(told, wanted, strict=True)
            ]
        return _FACTS_WEIGHT * torch.stack(losses).sum() / (asked.sum() * len(between))

    def _looks_lost(
        self, into: Sequence[torch.Tensor], conversations: Sequence[Conversation]
    ) -> torch.Tensor | None:
        """How far some heads are from looking where the words point; None where none does. into: of each layer.

        Left alone, no head of the first two full layers found the circles at the word "circle" after 1,500 steps.
        """
        lengths = [len(one.token_ids) for one in conversations]
        firsts = [sum(lengths[:number]) for number in range(len(lengths))]
        losses = []
        for kind, layer, heads in _LOOKING:
            looks = [
                (first + look.position, [first + place for place in look.at])
                for first, one in zip(firsts, conversations, strict=True)
                for look in one.looks
                if look.kind == kind
            ]
            if not looks:
                continue
            rows = torch.tensor([row for row, _ in looks])
            logarithms = self.module.decoder.looks(layer, into[layer], rows, heads, lengths)
            wanted = torch.zeros(len(looks), 1, logarithms.shape[2], dtype=torch.bool)
            for number, (_, places) in enumerate(looks):
                wanted[number, 0, places] = True
            losses.append(-logarithms.masked_fill(~wanted, float("-inf")).logsumexp(dim=-1).mean())
        return _LOOKS_WEIGHT * torch.stack(losses).mean() if losses else None

    def _tokenizer_codes(self, mel: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            codes: torch.Tensor = self._tokenizer(mel)
        return codes


def make_step(writer: Writer, plan: Plan, offset: int, step: int, shard: Shard = WHOLE) -> Conversations:
    """The conversations of one step, or a shard of them: always the same."""
    conversations, families = [], []
    shares = [share for share in plan for _ in range(share.count)]
    for number, share in enumerate(shares):
        if number in shard:
            rng = np.random.default_rng([_SEED, offset, step, number])
            task = str(rng.choice(share.tasks)) if share.tasks else None
            sample = share.scenes.sample(rng, "train", turns=share.turns, task=task)
            conversations.append(writer.write(sample, rng))
            families.append(_NAMES.get(share.scenes, "talk"))
    return Conversations(conversations=tuple(conversations), families=tuple(families))


def _by_answer(correct: torch.Tensor, conversations: Sequence[Conversation]) -> list[float]:
    """1 for each answer whose every token is right, else 0."""
    found, at = [], 0
    for one in conversations:
        for first, end in one.turns:
            found.append(float(correct[at : at + end - first].all()))
            at += end - first
    return found
