"""Runs a vision module on preprocessed items, in packed batches under a patch budget. Knows no weights format."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from mm_pipeline.image import ImageInput

# One forward of the real 729M encoder over this many patches needs about 1 GB of activations in bf16.
MAX_PATCHES = 16_384

VisionForward = Callable[[torch.Tensor, list[tuple[int, int, int]]], torch.Tensor]


class PackedImageEncoder:
    """`forward` maps packed patches and their grids to packed embeddings; see `MimoVisionEncoder.forward`."""

    def __init__(
        self,
        forward: VisionForward,
        *,
        identity: str,
        hidden_size: int,
        device: torch.device,
        max_patches: int = MAX_PATCHES,
    ) -> None:
        self._forward = forward
        self._device = device
        self._max_patches = max_patches
        self.identity = identity
        self.hidden_size = hidden_size

    def encode(self, items: Sequence[ImageInput]) -> list[torch.Tensor]:
        """One [num_tokens, hidden_size] tensor per item, on the encoder's device.

        Never more than `max_patches` patches go through at once, except for a single item that is larger alone.
        """
        encoded: list[torch.Tensor] = []
        for batch in split_by_patches(items, self._max_patches):
            patches = torch.cat([item.patches for item in batch]) if len(batch) > 1 else batch[0].patches
            with torch.no_grad():
                merged = self._forward(patches.to(self._device), [item.grid_thw for item in batch])
            parts = merged.split([item.num_tokens for item in batch])
            # A view would keep the whole batch alive for as long as one item is cached.
            encoded += [part.clone() for part in parts] if len(batch) > 1 else list(parts)
        return encoded


def split_by_patches(items: Sequence[ImageInput], max_patches: int) -> list[list[ImageInput]]:
    """Consecutive batches of at most `max_patches` patches; an item over the budget is alone in its batch."""
    batches: list[list[ImageInput]] = []
    room = 0
    for item in items:
        size = item.patches.shape[0]
        if not batches or size > room:
            batches.append([])
            room = max_patches
        batches[-1].append(item)
        room -= size
    return batches
