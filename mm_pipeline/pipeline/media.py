"""What encoding one media item yields."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch

from mm_pipeline.prompt.layout import VideoLayout


@dataclass(frozen=True, kw_only=True)
class EncodedMedia:
    """embeddings: [num_tokens, hidden_size]. layout: of a video's embeddings. timings: stage names ending in _ms to
    milliseconds. notes: what was wrong with the item, in words for whoever sent it.
    """

    embeddings: torch.Tensor
    num_tokens: int
    modality: str
    content_key: str
    layout: VideoLayout | None = None
    timings: dict[str, float] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
