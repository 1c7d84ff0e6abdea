"""First stage: the vision encoder learns what is where, from dense labels. Its heads are thrown away afterwards."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

from mm_pipeline.encoders.mimo_vision import MimoVisionConfig, MimoVisionEncoder
from mm_pipeline.image.preprocess import ImageInput, preprocess_image
from mm_pipeline.image.settings import ImageSettings
from mm_pipeline.limits import MediaLimits
from mm_pipeline.video.patches import video_patches
from mm_pipeline.video.settings import VideoSettings
from samples.demo_training.architecture import model_config, vision_encoder
from samples.demo_training.labels import (
    COLOURS,
    GLYPHS,
    IGNORED,
    NUM_PLACES,
    SHAPES,
    PictureLabels,
    concatenated,
    picture_labels,
)
from samples.demo_training.processes import WHOLE, Shard
from samples.demo_training.scenes import lettering, pictures
from samples.demo_training.scenes.base import Medium, Picture, Split
from samples.demo_training.scenes.sheets import sheet
from samples.demo_training.training import Rates, prefetched

# There are many letters and one sign has few, so half of a batch are sheets of them, the rest signs and shapes.
PICTURES_PER_BATCH = 16
_SEED = 1_000_000
_SETTINGS = ImageSettings.from_config(model_config())
_VIDEO = VideoSettings.from_config(model_config())
_LIMITS = MediaLimits()
# Of the pictures with large shapes only, how many are shown as frames of a video.
_SHARE_FRAMES, _LEAST_SIZE = 0.5, 0.2
# Most tokens hold nothing: what is something weighs more.
_NOTHING_WEIGHT = 0.2
_NO_GLYPH_WEIGHT = 0.03
# A step of no training run, whose pictures set the gains of the filters; noise is not raised to the height of ink.
_GAIN_STEP, _LEAST_SPREAD = 1 << 40, 0.3


@dataclass(frozen=True, kw_only=True)
class Batch:
    """patches: float32 [P, values]. grids: one per picture, equal ones side by side."""

    patches: torch.Tensor
    grids: list[tuple[int, int, int]]
    labels: PictureLabels


class PictureHeads(nn.Module):
    """Linear heads on the encoder's embeddings and on its last patches, which say what is where."""

    def __init__(self, config: MimoVisionConfig) -> None:
        super().__init__()
        size, patch_size = config.out_hidden_size, config.hidden_size
        self.shape_head = nn.Linear(size, 1 + len(SHAPES))
        self.colour_head = nn.Linear(size, len(COLOURS))
        self.glyph_head = nn.Linear(size, NUM_PLACES * (1 + len(GLYPHS)))
        self.place_head = nn.Linear(size, 3)
        self.patch_head = nn.Linear(patch_size, 2 + len(SHAPES) + len(GLYPHS))

    def lost(
        self, embeddings: torch.Tensor, patches: torch.Tensor, labels: PictureLabels
    ) -> tuple[torch.Tensor, dict[str, float]]:
        """The loss, and shares that are right. embeddings: [T, size]. patches: [P, patch size]."""
        glyphs = self.glyph_head(embeddings).unflatten(-1, (NUM_PLACES, -1)).flatten(0, 1)
        shapes, colours = self.shape_head(embeddings), self.colour_head(embeddings)
        place = self.place_head(embeddings)
        patch_shapes, patch_glyphs = self.patch_head(patches).split(
            [1 + len(SHAPES), 1 + len(GLYPHS)], dim=-1
        )
        sized = ~labels.size.isnan()
        losses = {
            "shape": _weighted(shapes, labels.shape),
            "colour": F.cross_entropy(colours, labels.colour, ignore_index=IGNORED),
            "glyph": _weighted(glyphs, labels.glyph.flatten(), _NO_GLYPH_WEIGHT),
            "place": F.mse_loss(place[:, :2], labels.place),
            "size": 10 * F.mse_loss(place[sized, 2], labels.size[sized]),
            "patch_shape": 0.5 * _weighted(patch_shapes, labels.patch_shape),
            "patch_glyph": 1.5 * _weighted(patch_glyphs, labels.patch_glyph),
        }
        found = {
            "shape_right": _right(shapes, labels.shape),
            "colour_right": _right(colours, labels.colour + 1, 1),
            "glyph_right": _right(glyphs, labels.glyph.flatten()),
            "place": losses["place"].item(),
            "patch_shape_right": _right(patch_shapes, labels.patch_shape),
            "patch_glyph_right": _right(patch_glyphs, labels.patch_glyph),
        }
        numbers = {name: value for name, value in found.items() if value is not None}
        return torch.stack(list(losses.values())).sum(), numbers


class VisionWithHeads(PictureHeads):
    """The encoder and its heads."""

    def __init__(self) -> None:
        encoder = vision_encoder()
        super().__init__(encoder.config)
        self.encoder = encoder

    def forward(
        self, patches: torch.Tensor, grids: list[tuple[int, int, int]]
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Embeddings [T, size] and the patches before merging [P, patch size]."""
        return with_patches(self.encoder, patches, grids)


def with_patches(
    encoder: MimoVisionEncoder, patches: torch.Tensor, grids: list[tuple[int, int, int]]
) -> tuple[torch.Tensor, torch.Tensor]:
    """The encoder's embeddings [T, size] and the patches before it merges them [P, patch size]."""
    kept: list[torch.Tensor] = []
    hook = encoder.merger.ln_q.register_forward_hook(lambda _module, _args, out: kept.append(out))
    try:
        embeddings: torch.Tensor = encoder(patches, grids)
    finally:
        hook.remove()
    return embeddings, kept[0]


class VisionStage:
    """See `Stage`. One batch is half sheets of letters, the rest signs and shapes."""

    name = "vision"
    rates = Rates(adamw=2e-3, muon=6e-3)

    def __init__(self, steps: int) -> None:
        self.steps = steps
        torch.manual_seed(_SEED)
        self.module = VisionWithHeads()
        filters = self.module.encoder.patch_embed.proj.weight
        # The filters stay as they are but for their gains: pictures have most of their variance in few of them.
        filters.requires_grad_(False)
        with torch.no_grad():
            seen = self.module.encoder.patch_embed(make_batch(_GAIN_STEP).patches).std(dim=0)
            filters.div_(seen.add(_LEAST_SPREAD).view(-1, 1, 1, 1, 1))

    def batches(self, first: int, shard: Shard = WHOLE) -> Iterator[Batch]:
        return prefetched(lambda step: make_batch(step, shard=shard), first, self.steps)

    def loss(self, batch: Batch) -> tuple[torch.Tensor, dict[str, float]]:
        embeddings, patches = self.module(batch.patches, batch.grids)
        return self.module.lost(embeddings, patches, batch.labels)

    def after_step(self) -> None:
        """Nothing."""


def make_batch(
    step: int, split: Split = "train", shard: Shard = WHOLE, count: int = PICTURES_PER_BATCH
) -> Batch:
    """The batch of one step, or a shard of it: always the same. count: a multiple of four."""
    items = []
    for index in range(count):
        if index not in shard:
            continue
        rng = np.random.default_rng([_SEED if split == "train" else _SEED + 1, step, index])
        if index < count // 2:
            seen: tuple[Medium, ...] = (sheet(rng, split),)
        else:
            # In pairs, so that each of two processes has both kinds.
            seen = (lettering if index // 2 % 2 else pictures).sample(rng, split, turns=1).media
        for medium in seen:
            assert isinstance(medium, Picture)
            as_frames = _is_large(medium) and rng.random() < _SHARE_FRAMES
            items.append((unit_of(medium) if as_frames else patches_of(medium), medium))
    items = sorted(items, key=lambda item: item[0].grid_thw)
    return Batch(
        patches=torch.cat([image.patches for image, _ in items]),
        grids=[image.grid_thw for image, _ in items],
        labels=concatenated([picture_labels(picture, image.grid_thw) for image, picture in items]),
    )


def patches_of(picture: Picture) -> ImageInput:
    """The picture as the server would prepare it."""
    return preprocess_image(torch.from_numpy(picture.pixels.copy()).permute(2, 0, 1), _SETTINGS, _LIMITS)


def unit_of(picture: Picture) -> ImageInput:
    """The picture as two frames of a video."""
    frame = torch.from_numpy(picture.pixels.copy()).permute(2, 0, 1)
    return video_patches(torch.stack([frame, frame]), _VIDEO)


def _is_large(picture: Picture) -> bool:
    """Whether all shapes have the size that they have in videos, whose frames are small."""
    height, width = picture.pixels.shape[:2]
    sizes = [
        max((right - left) / width, (bottom - top) / height)
        for left, top, right, bottom in (mark.box for mark in picture.marks if mark.kind == "shape")
    ]
    return bool(sizes) and min(sizes) >= _LEAST_SIZE


def _weighted(
    logits: torch.Tensor, classes: torch.Tensor, nothing_weight: float = _NOTHING_WEIGHT
) -> torch.Tensor:
    weight = torch.ones(logits.shape[-1])
    weight[0] = nothing_weight
    return F.cross_entropy(logits, classes, weight=weight)


def _right(logits: torch.Tensor, classes: torch.Tensor, offset: int = 0) -> float | None:
    """Share of the tokens with something in them that are named right; None where all are empty."""
    asked = classes > 0
    if not asked.any():
        return None
    return (logits[asked].argmax(dim=-1) + offset == classes[asked]).float().mean().item()
