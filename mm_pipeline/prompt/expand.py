"""Puts encoded media into a prompt: each slot becomes its placeholder tokens. Knows counts, not embeddings."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from mm_pipeline.prompt.chat import MediaSlot, Prompt

if TYPE_CHECKING:
    from mm_pipeline.pipeline import EncodedMedia
    from mm_pipeline.prompt.special_tokens import SpecialTokens


@dataclass(frozen=True, kw_only=True)
class MediaSpan:
    """Prompt positions [start, start + length) take the embeddings of media item `media_index`, in order."""

    start: int
    length: int
    media_index: int


@dataclass(frozen=True, kw_only=True)
class ExpandedPrompt:
    """Token ids with placeholders, and where media embeddings replace them."""

    token_ids: tuple[int, ...]
    spans: tuple[MediaSpan, ...]


def expand(prompt: Prompt, media: Sequence[EncodedMedia], tokens: SpecialTokens) -> ExpandedPrompt:
    """An image becomes vision_start, one image_pad per embedding, vision_end; the pads are its span.

    media: in the order of the slots' indices. Raises ValueError when slots and media do not match.
    """
    slots = [piece for piece in prompt if isinstance(piece, MediaSlot)]
    if sorted(slot.index for slot in slots) != list(range(len(media))):
        raise ValueError(f"the prompt has {len(slots)} media slots, but {len(media)} media items came")
    token_ids: list[int] = []
    spans: list[MediaSpan] = []
    for piece in prompt:
        if not isinstance(piece, MediaSlot):
            token_ids += piece
            continue
        item = media[piece.index]
        if item.modality != piece.modality:
            raise ValueError(
                f"media item {piece.index} is {item.modality}; its place in the prompt is for {piece.modality}"
            )
        if item.modality != "image":
            raise ValueError(
                f"media item {piece.index} is {item.modality}; only images can be placed in a prompt"
            )
        token_ids.append(tokens.vision_start)
        spans.append(MediaSpan(start=len(token_ids), length=item.num_tokens, media_index=piece.index))
        token_ids += [tokens.image_pad] * item.num_tokens
        token_ids.append(tokens.vision_end)
    return ExpandedPrompt(token_ids=tuple(token_ids), spans=tuple(spans))
