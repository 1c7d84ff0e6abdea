"""What the chat service needs from others, as protocols. Ray handles, local objects and fakes all fit."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from llm_core.core import GenerateRequest, OutputDelta
from mm_pipeline.options import MediaOptions
from serve_apps.chat.events import TokenText


@dataclass(frozen=True, kw_only=True)
class ModelInfo:
    """What the engine says about the model it has loaded. `max_context` counts prompt and answer tokens."""

    max_context: int


@dataclass(frozen=True, kw_only=True)
class EncodedItem:
    """Encoded media.

    Attributes:
        embeddings: a tensor [num_tokens, hidden] or a reference to one; only `Backend.generate` looks inside.
        timings: the encoder's stages, names such as `decode_ms` to milliseconds; only what was done for this call.
            Those of `mm_pipeline.metrics.STAGES` are recorded.
        layout: where a video's rows belong in time; only `Prompter.expand` looks inside.
        notes: what was wrong with the item and did not stop it, in words for whoever sent it.
    """

    embeddings: Any = field(repr=False, compare=False)
    num_tokens: int
    modality: str
    content_key: str
    timings: Mapping[str, float] = field(default_factory=dict)
    layout: Any = field(default=None, repr=False)
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class EmbeddingRows:
    """Rows [begin, begin + length) of an item's embeddings: what the spans given to `Backend.generate` carry."""

    item: Any = field(repr=False, compare=False)
    begin: int
    length: int


def take_rows(rows: EmbeddingRows) -> Any:
    """The rows themselves, [length, hidden], where the item is a tensor. Shares its memory."""
    return rows.item[rows.begin : rows.begin + rows.length]


@dataclass(frozen=True, kw_only=True)
class PlacedMedia:
    """Prompt positions [start, start + length) take rows [offset, offset + length) of media item `media_index`.

    modality: what these rows are; the rows of a video's sound are "audio".
    """

    start: int
    length: int
    media_index: int
    offset: int = 0
    modality: str


@dataclass(frozen=True, kw_only=True)
class FinalPrompt:
    """The token ids of a prompt with its placeholders expanded, and where each media item sits in them.

    notes: what of the media is not in the prompt, in words for whoever sent them.
    """

    token_ids: tuple[int, ...] = field(repr=False)
    spans: tuple[PlacedMedia, ...] = ()
    notes: tuple[str, ...] = ()


class Prompter(Protocol):
    """The chat template. Both methods may take long and are called on a thread."""

    def render(self, messages: list[dict[str, Any]]) -> Any:
        """A prompt with one open slot per media part. Raises ValueError for what it cannot render."""
        ...

    def expand(self, prompt: Any, media: Sequence[EncodedItem]) -> FinalPrompt:
        """Fill the slots; media are in order of appearance."""
        ...


class Media(Protocol):
    """Bytes fetched from a URL."""

    @property
    def data(self) -> bytes: ...


class Fetcher(Protocol):
    """Gets media bytes under the server's limits; raises mm_pipeline's MediaError."""

    async def fetch(self, url: str, *, modality: str) -> Media: ...


class Backend(Protocol):
    """Encoder and decoder, wherever they run. Raises ApiError, MediaError, RequestError or EngineError."""

    async def find(self, uuid_key: str, modality: str, options: MediaOptions) -> EncodedItem | None:
        """What was encoded with this uuid key before, by the same options, and is still kept."""
        ...

    async def encode(
        self,
        data: bytes,
        modality: str,
        options: MediaOptions,
        *,
        owner: str,
        uuid_key: str | None = None,
        deadline: float | None = None,
    ) -> EncodedItem:
        """Encode one media item. owner: the request it belongs to; requests share the encoder fairly.

        uuid_key: `find` finds the item under it from now on (`mm_pipeline.store.key_for_uuid`).
        deadline: on the clock of `time.monotonic`; what is not encoded by then is dropped and fails with a 504.
        Cancelling the call drops an item that has not begun, and stops the decoding of a video or a sound.
        """
        ...

    def generate(self, request: GenerateRequest) -> AsyncGenerator[Sequence[OutputDelta], None]:
        """Batches of deltas: an empty one when the engine has taken the request, then those that piled up.

        The spans' embeddings are `EmbeddingRows` of items that `encode` returned.
        Closing or cancelling the generator aborts the request in the engine.
        """
        ...

    async def model_info(self) -> ModelInfo:
        """What is loaded; waits until it is."""
        ...


class TokenTexts(Protocol):
    """Token ids to text, for log-probabilities."""

    def token(self, token_id: int) -> TokenText: ...
