"""The multi-token-prediction layers learn what the decoder will say next; nothing else changes any more."""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Sequence

import torch
import torch.nn.functional as F

from mm_pipeline.encoders.mimo_audio_tokenizer import MimoAudioTokenizer
from samples.demo_training.conversations import Conversation, Writer
from samples.demo_training.processes import WHOLE, Shard
from samples.demo_training.stages.decoder import EVERYTHING, Conversations, Model, make_step
from samples.demo_training.training import Rates, prefetched


class DraftingStage:
    """See `Stage`. Layer k reads the decoder's state at t and the embedding at t + 1 + k, and learns t + 2 + k."""

    name = "drafting"
    rates = Rates(adamw=2e-3, muon=6e-3)

    def __init__(self, steps: int, model: Model, tokenizer: MimoAudioTokenizer) -> None:
        self.steps, self.module = steps, model
        model.requires_grad_(False)
        model.decoder.mtp.requires_grad_(True)
        # The routers' loads are counted in training mode only.
        model.decoder.eval()
        self._tokenizer = tokenizer

    def batches(self, first: int, shard: Shard = WHOLE) -> Iterator[Conversations]:
        def codes(mel: torch.Tensor) -> torch.Tensor:
            with torch.no_grad():
                found: torch.Tensor = self._tokenizer(mel)
            return found

        writer, offset = Writer(codes), zlib.crc32(self.name.encode())
        return prefetched(lambda step: make_step(writer, EVERYTHING, offset, step, shard), first, self.steps)

    def loss(self, batch: Conversations) -> tuple[torch.Tensor, dict[str, float]]:
        losses, numbers = [], {}
        for layer, (logits, targets) in enumerate(drafts(self.module, batch.conversations)):
            losses.append(F.cross_entropy(logits, targets))
            numbers[f"head_{layer + 1}"] = (logits.argmax(dim=-1) == targets).float().mean().item()
        return torch.stack(losses).sum(), numbers

    def after_step(self) -> None:
        """Nothing."""


def drafts(
    model: Model, conversations: Sequence[Conversation]
) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Per layer its logits, and the decoder's own choice, wherever both stand for a token of an answer."""
    lengths = [len(one.token_ids) for one in conversations]
    learnt = torch.cat([one.learnt for one in conversations])
    with torch.no_grad():
        embedded = model.embed(conversations)
        hidden, _ = model.decoder(embedded, lengths)
        chosen = model.decoder.lm_head(hidden).argmax(dim=-1)
    number = torch.repeat_interleave(torch.arange(len(lengths)), torch.tensor(lengths))
    for layer in range(model.decoder.config.num_mtp_layers):
        ahead = 1 + layer
        # Behind the end of all conversations there is nothing to read: the last positions wrap and are not asked.
        drafted = model.decoder.draft(layer, embedded.roll(-ahead, dims=0), hidden, lengths)
        same = number == number.roll(-ahead - 1)
        same[-ahead - 1 :] = False
        asked = same & learnt.roll(-1) & learnt.roll(-ahead - 1)
        yield model.decoder.lm_head(drafted[asked]), chosen.roll(-ahead)[asked]
