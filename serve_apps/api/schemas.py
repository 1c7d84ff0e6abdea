"""Pydantic schema of the body of POST /v1/chat/completions.

Every field, list and string is bounded. Fields of OpenAI's API that this server does not serve are listed
with what is supported instead; fields that cannot change the answer are accepted and ignored. Knows nothing
of HTTP: `serve_apps.api.validation` makes a `ChatCompletionRequest` of bytes and `ApiError` of schema errors.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal, TypeAlias

from pydantic import BaseModel, ConfigDict, Discriminator, Field, Tag

from llm_core.core import MAX_LOGPROBS, MAX_STOP_STRING_CHARS, MAX_STOP_STRINGS, MAX_STOP_TOKEN_IDS

MAX_MESSAGES = 1024
MAX_PARTS = 1024
MAX_NAME_CHARS = 256

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
    "input_audio": "audio parts are not supported",
    "audio_url": "audio parts are not supported",
    "video_url": "video parts are not supported",
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

    url: str = Field(min_length=1)
    # The model sees every picture at its own resolution, so there is nothing that `detail` could change.
    detail: Literal["auto", "low", "high", "original"] = "auto"


class TextPart(_Model):
    """A piece of text in a message."""

    type: Literal["text"]
    text: str


class ImagePart(_Model):
    """A picture in a message."""

    type: Literal["image_url"]
    image_url: ImageUrl


def _part_tag(value: Any) -> str | None:
    kind = value.get("type") if isinstance(value, dict) else getattr(value, "type", None)
    return {"text": "<text>", "image_url": "<image_url>"}.get(kind) if isinstance(kind, str) else None


def _content_tag(value: Any) -> str | None:
    if isinstance(value, str):
        return "<string>"
    return "<parts>" if isinstance(value, list) else None


# Tags are written <so> because they become part of an error's location; validation cuts them out again.
ContentPart: TypeAlias = Annotated[
    Annotated[TextPart, Tag("<text>")] | Annotated[ImagePart, Tag("<image_url>")], Discriminator(_part_tag)
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

    @property
    def token_limit(self) -> int | None:
        """The asked number of output tokens, or None where the server chooses."""
        return self.max_tokens if self.max_completion_tokens is None else self.max_completion_tokens

    @property
    def include_usage(self) -> bool:
        """Whether a streamed answer ends with a usage chunk."""
        return self.stream_options is not None and self.stream_options.include_usage
