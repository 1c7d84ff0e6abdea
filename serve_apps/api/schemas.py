"""Pydantic schema of the body of POST /v1/chat/completions.

Every field, list and string is bounded. Fields of OpenAI's API that this server does not serve are listed
with what is supported instead; fields that cannot change the answer are accepted and ignored. Knows nothing
of HTTP: `serve_apps.api.validation` makes a `ChatCompletionRequest` of bytes and `ApiError` of schema errors.
"""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal, TypeAlias

from pydantic import BaseModel, ConfigDict, Discriminator, Field, Tag

from llm_core.core import MAX_LOGPROBS, MAX_STOP_STRING_CHARS, MAX_STOP_STRINGS, MAX_STOP_TOKEN_IDS
from mm_pipeline.options import MediaOptions

MAX_MESSAGES = 1024
MAX_PARTS = 1024
MAX_NAME_CHARS = 256
MAX_UUID_CHARS = 128
MAX_PRIORITY = 100
"""0 goes first: a client can only step back."""

IGNORED_FIELDS = frozenset(
    {
        "metadata",
        "store",
        "user",
        "service_tier",
        "parallel_tool_calls",
        "safety_identifier",
        "prompt_cache_key",
        "prompt_cache_retention",
        "prompt_cache_options",
    }
)
"""Top-level fields that cannot change an answer here."""

UNSUPPORTED_FIELDS = {
    "tools": "tool calls are not supported; leave it out",
    "tool_choice": "tool calls are not supported; leave it out",
    "functions": "function calls are not supported; leave it out",
    "function_call": "function calls are not supported; leave it out",
    "response_format": 'only {"type": "text"} is supported',
    "modalities": 'only ["text"] is supported',
    "audio": "audio output is not supported; leave it out",
    "n": "only n = 1 is supported; send one request per answer",
    "logit_bias": "token biases are not supported; leave it out",
    "prediction": "predicted outputs are not supported; leave it out",
    "reasoning_effort": "reasoning effort is not supported; leave it out",
    "verbosity": "verbosity is not supported; leave it out",
    "web_search_options": "web search is not supported; leave it out",
    "moderation": "moderation is not supported; leave it out",
}
"""Top-level fields of OpenAI's API that are refused, and what to do instead."""

HARMLESS_VALUES: dict[str, tuple[Any, ...]] = {
    "tools": ([],),
    "tool_choice": ("none", "auto"),
    "functions": ([],),
    "function_call": ("none", "auto"),
    "response_format": ({"type": "text"},),
    "modalities": (["text"],),
    "n": (1,),
    "logit_bias": ({},),
}
"""Values of unsupported fields that ask for nothing, so that clients which always send them work."""

UNSUPPORTED_PARTS = {
    "file": "file parts are not supported",
    "refusal": "refusal parts are not supported",
}

EMPTY_MESSAGE_FIELDS = frozenset(
    {"refusal", "annotations", "audio", "function_call", "tool_calls", "reasoning_content", "reasoning"}
)
"""Fields an earlier answer carries when a client sends it back; accepted when empty."""


class _Model(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


class ImageUrl(_Model):
    """Where a picture is: http(s), data: or (where the server allows it) file:."""

    url: str | None = Field(default=None, min_length=1)
    # The model sees every picture at its own resolution, so there is nothing that `detail` could change.
    detail: Literal["auto", "low", "high", "original"] = "auto"


class MediaUrl(_Model):
    """Where a video or a sound is: http(s), data: or (where the server allows it) file:."""

    url: str | None = Field(default=None, min_length=1)


class InputAudio(_Model):
    """A sound inside the request. The bytes decide what it is; `format` only has to be a kind that is read."""

    data: str | None = Field(default=None, min_length=1)
    format: Literal["wav", "mp3", "flac", "ogg", "opus", "aac", "m4a", "mp4", "webm"]


class TextPart(_Model):
    """A piece of text in a message."""

    type: Literal["text"]
    text: str


class _MediaPart(_Model):
    """uuid: the client's own name for the media, which may then be left out when they were sent before."""

    uuid: str | None = Field(default=None, min_length=1, max_length=MAX_UUID_CHARS, pattern="^[!-~]+$")


class ImagePart(_MediaPart):
    """A picture in a message."""

    modality: ClassVar[str] = "image"

    type: Literal["image_url"]
    image_url: ImageUrl | None = None

    @property
    def url(self) -> str | None:
        """Where the bytes are; None where the client left them out."""
        return None if self.image_url is None else self.image_url.url


class VideoPart(_MediaPart):
    """A video in a message, with its sound."""

    modality: ClassVar[str] = "video"

    type: Literal["video_url"]
    video_url: MediaUrl | None = None

    @property
    def url(self) -> str | None:
        """Where the bytes are; None where the client left them out."""
        return None if self.video_url is None else self.video_url.url


class AudioPart(_MediaPart):
    """A sound in a message, by URL."""

    modality: ClassVar[str] = "audio"

    type: Literal["audio_url"]
    audio_url: MediaUrl | None = None

    @property
    def url(self) -> str | None:
        """Where the bytes are; None where the client left them out."""
        return None if self.audio_url is None else self.audio_url.url


class InputAudioPart(_MediaPart):
    """A sound in a message, inside the request."""

    modality: ClassVar[str] = "audio"

    type: Literal["input_audio"]
    input_audio: InputAudio | None = None

    @property
    def url(self) -> str | None:
        """The bytes as a data: URL, or None; some clients write one into `data` themselves."""
        if self.input_audio is None or self.input_audio.data is None:
            return None
        data = self.input_audio.data
        return data if data.startswith("data:") else f"data:audio/{self.input_audio.format};base64,{data}"


MediaPart: TypeAlias = ImagePart | VideoPart | AudioPart | InputAudioPart

PART_TYPES = ("text", "image_url", "video_url", "input_audio", "audio_url")
"""Types of content parts that are served."""


def _part_tag(value: Any) -> str | None:
    kind = value.get("type") if isinstance(value, dict) else getattr(value, "type", None)
    return f"<{kind}>" if kind in PART_TYPES else None


def _content_tag(value: Any) -> str | None:
    if isinstance(value, str):
        return "<string>"
    return "<parts>" if isinstance(value, list) else None


# Tags are written <so> because they become part of an error's location; validation cuts them out again.
ContentPart: TypeAlias = Annotated[
    Annotated[TextPart, Tag("<text>")]
    | Annotated[ImagePart, Tag("<image_url>")]
    | Annotated[VideoPart, Tag("<video_url>")]
    | Annotated[InputAudioPart, Tag("<input_audio>")]
    | Annotated[AudioPart, Tag("<audio_url>")],
    Discriminator(_part_tag),
]
Content: TypeAlias = Annotated[
    Annotated[str, Tag("<string>")]
    | Annotated[list[ContentPart], Field(min_length=1, max_length=MAX_PARTS), Tag("<parts>")],
    Discriminator(_content_tag),
]


class Message(_Model):
    """One message of the conversation. `developer` is rendered as `system`."""

    role: Literal["system", "developer", "user", "assistant"]
    content: Content
    name: str | None = Field(default=None, max_length=MAX_NAME_CHARS)


class StreamOptions(_Model):
    """Options of a streamed answer."""

    include_usage: bool = False
    include_obfuscation: bool = False


class MmProcessorKwargs(_Model):
    """How the media of the request are sampled; see `mm_pipeline.options.MediaOptions`."""

    fps: float | None = Field(default=None, gt=0.0)
    min_frames: int | None = Field(default=None, ge=1, lt=2**31)
    max_frames: int | None = Field(default=None, ge=1, lt=2**31)
    max_pixels: int | None = Field(default=None, ge=1, lt=2**53)
    total_pixels: int | None = Field(default=None, ge=1, lt=2**53)
    start_s: float | None = Field(default=None, ge=0.0)
    end_s: float | None = Field(default=None, gt=0.0)
    use_audio_in_video: bool = True


StopString: TypeAlias = Annotated[str, Field(min_length=1, max_length=MAX_STOP_STRING_CHARS)]
TokenId: TypeAlias = Annotated[int, Field(ge=0, lt=2**31)]


class ChatCompletionRequest(_Model):
    """The body of POST /v1/chat/completions, checked. Absent and null mean the same."""

    model: str = Field(min_length=1, max_length=MAX_NAME_CHARS)
    messages: list[Message] = Field(min_length=1, max_length=MAX_MESSAGES)
    stream: bool = False
    stream_options: StreamOptions | None = None
    max_tokens: int | None = Field(default=None, ge=1, lt=2**31)
    max_completion_tokens: int | None = Field(default=None, ge=1, lt=2**31)
    temperature: float = Field(default=1.0, ge=0.0, le=2.0)
    top_p: float = Field(default=1.0, gt=0.0, le=1.0)
    top_k: int = Field(default=0, ge=-1, lt=2**31)
    min_p: float = Field(default=0.0, ge=0.0, le=1.0)
    repetition_penalty: float = Field(default=1.0, gt=0.0, le=2.0)
    presence_penalty: float = Field(default=0.0, ge=-2.0, le=2.0)
    frequency_penalty: float = Field(default=0.0, ge=-2.0, le=2.0)
    seed: int | None = Field(default=None, ge=-(2**63), lt=2**63)
    logprobs: bool = False
    top_logprobs: int = Field(default=0, ge=0, le=MAX_LOGPROBS)
    stop: list[StopString] = Field(default=[], max_length=MAX_STOP_STRINGS)
    stop_token_ids: list[TokenId] = Field(default=[], max_length=MAX_STOP_TOKEN_IDS)
    ignore_eos: bool = False
    mm_processor_kwargs: MmProcessorKwargs = MmProcessorKwargs()
    timeout_s: float | None = Field(default=None, gt=0.0)
    priority: int = Field(default=0, ge=0, le=MAX_PRIORITY)

    @property
    def media_options(self) -> MediaOptions:
        """The sampling wishes. Raises InvalidMediaError for values that do not go together."""
        return MediaOptions(**dict(self.mm_processor_kwargs))

    @property
    def token_limit(self) -> int | None:
        """The asked number of output tokens, or None where the server chooses."""
        return self.max_tokens if self.max_completion_tokens is None else self.max_completion_tokens

    @property
    def include_usage(self) -> bool:
        """Whether a streamed answer ends with a usage chunk."""
        return self.stream_options is not None and self.stream_options.include_usage
