"""The ear, in three stages: features from dense labels, codebooks on the features, embeddings from the codes.

Its heads are thrown away afterwards.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

from mm_pipeline.audio.mel import log_mel
from mm_pipeline.audio.settings import AudioSettings
from mm_pipeline.encoders.mimo_audio import group_codes
from mm_pipeline.encoders.mimo_audio_tokenizer import MimoAudioTokenizer
from samples.demo_training.architecture import audio_encoder, audio_tokenizer, model_config
from samples.demo_training.labels import IGNORED, SoundLabels, concatenated, sound_labels
from samples.demo_training.processes import WHOLE, Shard
from samples.demo_training.scenes import sounds
from samples.demo_training.scenes.base import Sound
from samples.demo_training.scenes.tones import KEYS
from samples.demo_training.training import Rates, prefetched

SOUNDS_PER_BATCH = 16
FRAMES_PER_ROW = 4
# Of a batch, at least: keys are the hardest to tell apart.
_DIALLED, _MORSE = 6, 3
_SEED = 2_000_000
_SETTINGS = AudioSettings.from_config(model_config())
# key, rise, then heard, starts, ends, pitch, level.
_SPLIT = [1 + len(KEYS), 4, 5]


@dataclass(frozen=True, kw_only=True)
class Batch:
    """mels: float32 [frames, mels] each. labels: of all their rows, one sound after another."""

    mels: list[torch.Tensor]
    labels: SoundLabels


class FeaturesWithHeads(nn.Module):
    """The audio tokenizer up to its features, and one linear map to all labels."""

    def __init__(self) -> None:
        super().__init__()
        self.tokenizer = audio_tokenizer()
        # The codebooks are fitted later, not trained.
        self.tokenizer.encoder.quantizer.requires_grad_(False)
        self.label_head = nn.Linear(self.tokenizer.config.dim, sum(_SPLIT))


class FeatureStage:
    """See `Stage`."""

    name = "ear"
    rates = Rates(adamw=3e-3, muon=9e-3)

    def __init__(self, steps: int) -> None:
        self.steps = steps
        torch.manual_seed(_SEED)
        self.module = FeaturesWithHeads()

    def batches(self, first: int, shard: Shard = WHOLE) -> Iterator[Batch]:
        return prefetched(lambda step: make_batch(step, shard), first, self.steps)

    def loss(self, batch: Batch) -> tuple[torch.Tensor, dict[str, float]]:
        features = torch.cat([self.module.tokenizer.encoder(mel) for mel in batch.mels])
        return label_loss(self.module.label_head(features), batch.labels)

    def after_step(self) -> None:
        """Nothing."""


class EmbeddingsWithHeads(nn.Module):
    """What reads the codes, and one linear map from an embedding to the labels of its rows."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder = audio_encoder()
        self.label_head = nn.Linear(
            self.encoder.config.out_hidden_size, self.encoder.config.group_size * sum(_SPLIT)
        )


class EmbeddingStage:
    """See `Stage`. tokenizer: trained, with its codebooks."""

    name = "hearing"
    rates = Rates(adamw=3e-3, muon=9e-3)

    def __init__(self, steps: int, tokenizer: MimoAudioTokenizer) -> None:
        self.steps = steps
        torch.manual_seed(_SEED + 2)
        self.module = EmbeddingsWithHeads()
        self._tokenizer = tokenizer

    def batches(self, first: int, shard: Shard = WHOLE) -> Iterator[Batch]:
        return prefetched(lambda step: make_batch(step + 500_000, shard), first, self.steps)

    def loss(self, batch: Batch) -> tuple[torch.Tensor, dict[str, float]]:
        size = self.module.encoder.config.group_size
        with torch.no_grad():
            codes = [self._tokenizer(mel) for mel in batch.mels]
        embeddings = self.module.encoder(torch.cat([group_codes(part, size) for part in codes]))
        predicted = self.module.label_head(embeddings).unflatten(-1, (size, -1)).flatten(0, 1)
        rows, kept = 0, []
        for part in codes:
            kept.append(predicted[rows : rows + len(part)])
            rows += -(-len(part) // size) * size
        return label_loss(torch.cat(kept), batch.labels)

    def after_step(self) -> None:
        """Nothing."""


def label_loss(predicted: torch.Tensor, labels: SoundLabels) -> tuple[torch.Tensor, dict[str, float]]:
    """predicted: [rows, numbers]. The loss, and how much of it is right."""
    keys, rises, numbers = predicted.split(_SPLIT, dim=-1)
    pitched, loud = ~labels.pitch.isnan(), ~labels.level.isnan()
    starts = 2 * F.mse_loss(numbers[:, 1], labels.starts) + 2 * F.mse_loss(numbers[:, 2], labels.ends)
    losses = [
        F.cross_entropy(keys, labels.key, ignore_index=IGNORED),
        F.mse_loss(numbers[:, 0], labels.heard),
        starts,
    ]
    if pitched.any():
        losses.append(F.cross_entropy(rises, labels.rise, ignore_index=IGNORED))
        losses.append(F.smooth_l1_loss(numbers[pitched, 3], labels.pitch[pitched], beta=0.1))
    if loud.any():
        losses.append(F.mse_loss(numbers[loud, 4], labels.level[loud]))
    dialled = labels.key > 0
    steady = labels.rise > 0
    logged = {
        "key_right": (keys[dialled].argmax(-1) == labels.key[dialled]).float().mean().item(),
        "rise_right": (rises[steady].argmax(-1) == labels.rise[steady]).float().mean().item(),
        "heard_right": ((numbers[:, 0] > 0.5) == (labels.heard > 0.5)).float().mean().item(),
        "starts": starts.item(),
    }
    return torch.stack(losses).sum(), logged


def fit_codebooks(tokenizer: MimoAudioTokenizer, num_sounds: int, *, rounds: int = 20) -> list[float]:
    """Sets the codebooks by residual k-means on the features of `num_sounds` sounds.

    Returns the share of the features' variance that is left after each codebook.
    """
    with torch.no_grad():
        batches = (make_batch(900_000 + step) for step in range(num_sounds // SOUNDS_PER_BATCH))
        features = torch.cat([tokenizer.encoder(mel) for batch in batches for mel in batch.mels])
        residual = features - features.mean(dim=0)
        total = residual.square().sum().item()
        residual = features.clone()
        left = []
        torch.manual_seed(_SEED)
        stages = tokenizer.encoder.quantizer.vq["layers"]
        assert isinstance(stages, nn.ModuleList)
        for stage in stages:
            entries = stage.get_parameter("_codebook.embed")
            entries.copy_(_k_means(residual, len(entries), rounds))
            residual -= entries[_nearest(residual, entries)]
            left.append(residual.square().sum().item() / total)
    return left


def _k_means(points: torch.Tensor, count: int, rounds: int) -> torch.Tensor:
    """Lloyd's iteration from random points; a centre that loses all its points takes a random one."""
    centres = points[torch.randperm(len(points))[:count]].clone()
    for _ in range(rounds):
        nearest = _nearest(points, centres)
        sums = torch.zeros_like(centres).index_add_(0, nearest, points)
        members = nearest.bincount(minlength=count)
        centres = sums / members.clamp(min=1).unsqueeze(1)
        empty = members == 0
        centres[empty] = points[torch.randint(len(points), (int(empty.sum()),))]
    return centres


def _nearest(points: torch.Tensor, centres: torch.Tensor) -> torch.Tensor:
    return (centres.square().sum(dim=1) - 2 * points @ centres.t()).argmin(dim=1)


def make_batch(step: int, shard: Shard = WHOLE) -> Batch:
    """The batch of one step, or a shard of it: always the same."""
    mels, labels = [], []
    for index in range(SOUNDS_PER_BATCH):
        if index not in shard:
            continue
        rng = np.random.default_rng([_SEED, step, index])
        task = "dtmf" if index < _DIALLED else "morse" if index < _DIALLED + _MORSE else None
        (sound,) = sounds.sample(rng, "train", turns=1, task=task).media
        assert isinstance(sound, Sound)
        mels.append(mel_of(sound))
        labels.append(sound_labels(sound, num_rows(len(mels[-1]))))
    return Batch(mels=mels, labels=concatenated(labels))


def mel_of(sound: Sound) -> torch.Tensor:
    """float32 [frames, mels], as the server would prepare it."""
    return torch.from_numpy(log_mel(sound.samples, _SETTINGS))


def num_rows(frames: int) -> int:
    """Code rows of so many mel frames."""
    return -(-((frames - 1) // 2 + 1) // 2)
