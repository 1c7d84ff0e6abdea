"""Between encoded media and what a store keeps of them. Knows both; stores nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mm_pipeline.store.base import Entry, Lease

if TYPE_CHECKING:
    import torch

    from mm_pipeline.pipeline.media import EncodedMedia


def entry_of(key: str, media: EncodedMedia) -> Entry:
    """Raises ValueError unless the embeddings are [num_tokens, hidden_size]."""
    embeddings = media.embeddings
    if embeddings.dim() != 2 or embeddings.shape[0] != media.num_tokens:
        raise ValueError(
            f"embeddings have shape {tuple(embeddings.shape)}; need [{media.num_tokens}, hidden_size]"
        )
    return Entry(
        key=key,
        num_tokens=media.num_tokens,
        hidden_size=embeddings.shape[1],
        dtype=str(embeddings.dtype),
        num_bytes=embeddings.numel() * embeddings.element_size(),
        modality=media.modality,
        layout=media.layout,
        notes=media.notes,
    )


def media_of(lease: Lease) -> EncodedMedia:
    """The media of a hit: over the lease's memory, and with no timings, for nothing was computed."""
    # Imported here because it brings torch, which whoever holds a lease has and a directory has not.
    from mm_pipeline.pipeline.media import EncodedMedia

    entry = lease.entry
    return EncodedMedia(
        embeddings=lease.embeddings,
        num_tokens=entry.num_tokens,
        modality=entry.modality,
        content_key=entry.key,
        layout=entry.layout,
        notes=entry.notes,
    )


def matches(entry: Entry, embeddings: torch.Tensor) -> bool:
    """Whether these can be the entry's embeddings, by shape and dtype."""
    return (
        tuple(embeddings.shape) == (entry.num_tokens, entry.hidden_size)
        and str(embeddings.dtype) == entry.dtype
    )
