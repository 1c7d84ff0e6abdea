"""Puts encoded media into a prompt: each slot becomes its placeholder tokens. Knows counts, not embeddings."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple, Protocol, TypeAlias

from mm_pipeline.prompt.chat import MediaSlot, Prompt
from mm_pipeline.prompt.layout import ExpansionSettings, VideoLayout, blocks_of, timestamp

if TYPE_CHECKING:
    from mm_pipeline.prompt.special_tokens import SpecialTokens

_DEFAULTS = ExpansionSettings()

EncodeText: TypeAlias = Callable[[str], list[int]]
"""Plain text to token ids, with nothing added: `ChatPrompter.encode_text`."""


class MediaItem(Protocol):
    """What placing an item needs of it. `num_tokens` counts its embeddings; `layout` is set for a video."""

    @property
    def modality(self) -> str: ...

    @property
    def num_tokens(self) -> int: ...

    @property
    def layout(self) -> VideoLayout | None: ...


@dataclass(frozen=True, kw_only=True)
class MediaShape:
    """A `MediaItem` that is not encoded yet: "image", "video" or "audio" and its number of embeddings."""

    modality: str
    num_tokens: int
    layout: VideoLayout | None = None

    @classmethod
    def of_video(cls, layout: VideoLayout) -> MediaShape:
        return cls(modality="video", num_tokens=layout.num_tokens, layout=layout)


@dataclass(frozen=True, kw_only=True)
class MediaSpan:
    """Prompt positions [start, start + length) take rows [offset, offset + length) of media item `media_index`.

    modality: what the rows are, "image", "video" or "audio"; the sound of a video counts as audio.
    """

    start: int
    length: int
    media_index: int
    offset: int
    modality: str


@dataclass(frozen=True, kw_only=True)
class ExpandedPrompt:
    """Token ids with placeholders, and where media embeddings replace them.

    notes: what of the media is not in the prompt, in words for whoever sent it.
    """

    token_ids: tuple[int, ...]
    spans: tuple[MediaSpan, ...]
    notes: tuple[str, ...] = ()


def expand(
    prompt: Prompt,
    media: Sequence[MediaItem],
    tokens: SpecialTokens,
    encode_text: EncodeText,
    settings: ExpansionSettings = _DEFAULTS,
) -> ExpandedPrompt:
    """Fills the slots of a prompt.

    An image becomes vision_start, one image_pad per embedding, vision_end; a sound audio_start, audio_pads,
    audio_end. A video becomes video_start, then per block its MM:SS, vision_start, video_pads, vision_end for each
    unit and audio_start, audio_pads, audio_end where it has sound, then video_end. The pads are the spans.

    media: in the order of the slots' indices. encode_text: for the timestamps. settings: of videos with sound.
    Raises ValueError when slots and media do not match, or a video's layout and its embeddings.
    """
    slots = [piece for piece in prompt if isinstance(piece, MediaSlot)]
    if sorted(slot.index for slot in slots) != list(range(len(media))):
        raise ValueError(f"the prompt has {len(slots)} media slots, but {len(media)} media items came")
    token_ids: list[int] = []
    spans: list[MediaSpan] = []
    notes: list[str] = []
    for piece in prompt:
        if not isinstance(piece, MediaSlot):
            token_ids += piece
            continue
        item = media[piece.index]
        if item.modality != piece.modality:
            raise ValueError(
                f"media item {piece.index} is {item.modality}; its place in the prompt is for {piece.modality}"
            )
        num_placed = 0
        for part in _parts(item, tokens, settings):
            if isinstance(part, str):
                token_ids += encode_text(part)
            elif isinstance(part, int):
                token_ids.append(part)
            else:
                spans.append(
                    MediaSpan(
                        start=len(token_ids),
                        length=part.length,
                        media_index=piece.index,
                        offset=part.offset,
                        modality=part.modality,
                    )
                )
                token_ids += [part.pad] * part.length
                num_placed += part.length
        if num_placed < item.num_tokens:
            seconds = (item.num_tokens - num_placed) / settings.audio_tokens_per_s
            notes.append(
                f"media item {piece.index}: the last {seconds:.1f} s of its sound come after its last frame and "
                "were left out"
            )
    return ExpandedPrompt(token_ids=tuple(token_ids), spans=tuple(spans), notes=tuple(notes))


def num_prompt_tokens(
    item: MediaItem,
    tokens: SpecialTokens,
    encode_text: EncodeText,
    settings: ExpansionSettings = _DEFAULTS,
) -> int:
    """Tokens that `expand` writes for one item, timestamps and marks included.

    Needs no embeddings: with a `MediaShape`, what does not fit can be refused before anything is encoded. Raises
    ValueError as `expand`.
    """
    total = 0
    for part in _parts(item, tokens, settings):
        total += (
            len(encode_text(part)) if isinstance(part, str) else 1 if isinstance(part, int) else part.length
        )
    return total


class _Rows(NamedTuple):
    """`length` pads for the rows from `offset`."""

    pad: int
    offset: int
    length: int
    modality: str


def _parts(
    item: MediaItem, tokens: SpecialTokens, settings: ExpansionSettings
) -> Iterator[str | int | _Rows]:
    """Text to be tokenised on its own, single token ids and pads."""
    if item.modality == "image":
        yield from _vision(tokens, _Rows(tokens.image_pad, 0, item.num_tokens, "image"))
    elif item.modality == "audio":
        yield from _audio(tokens, _Rows(tokens.audio_pad, 0, item.num_tokens, "audio"))
    elif item.modality == "video":
        if item.layout is None or item.layout.num_tokens != item.num_tokens:
            laid_out = "no layout" if item.layout is None else f"a layout of {item.layout.num_tokens}"
            raise ValueError(f"a video of {item.num_tokens} embeddings has {laid_out}")
        yield from _video(item.layout, tokens, settings)
    else:
        raise ValueError(
            f"media of kind {item.modality!r} have no place in a prompt; use image, video or audio"
        )


def _video(
    layout: VideoLayout, tokens: SpecialTokens, settings: ExpansionSettings
) -> Iterator[str | int | _Rows]:
    size = layout.tokens_per_unit
    yield tokens.video_start
    for block in blocks_of(layout, settings):
        yield timestamp(block.start_s)
        for unit in range(block.first_unit, block.last_unit):
            yield from _vision(tokens, _Rows(tokens.video_pad, unit * size, size, "video"))
        length = block.last_audio - block.first_audio
        if length:
            offset = layout.num_video_tokens + block.first_audio
            yield from _audio(tokens, _Rows(tokens.audio_pad, offset, length, "audio"))
    yield tokens.video_end


def _vision(tokens: SpecialTokens, rows: _Rows) -> Iterator[int | _Rows]:
    yield tokens.vision_start
    yield rows
    yield tokens.vision_end


def _audio(tokens: SpecialTokens, rows: _Rows) -> Iterator[int | _Rows]:
    yield tokens.audio_start
    yield rows
    yield tokens.audio_end
