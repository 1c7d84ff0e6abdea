"""What the chat service says while it answers, and the numbers at the end. Plain data, no heavy imports."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

FinishReason: TypeAlias = Literal["stop", "length"]


@dataclass(frozen=True, kw_only=True)
class TokenText:
    """A token as people read it. `data` is the exact bytes; in `text` parts of a character show as U+FFFD."""

    text: str
    data: bytes


@dataclass(frozen=True, kw_only=True)
class LogprobEntry:
    """Natural-log probability of a chosen token, and of the most likely ones, best first."""

    token: TokenText
    logprob: float
    top: tuple[tuple[TokenText, float], ...] = ()


@dataclass(frozen=True, kw_only=True)
class Usage:
    """Token counts of one request. All but `completion_tokens` are parts of `prompt_tokens`.

    The sound of a video counts as audio; the timestamps between its frames are text.
    """

    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int = 0
    image_tokens: int = 0
    video_tokens: int = 0
    audio_tokens: int = 0


@dataclass(frozen=True, kw_only=True)
class MediaNote:
    """Damage to a media item that the answer was given in spite of. `param` names the part of the request."""

    param: str
    modality: str
    note: str


@dataclass(frozen=True, kw_only=True)
class Accepted:
    """The engine has taken the request: from here on errors arrive inside the stream.

    timings: of the stages that have ended by now, as in `Finished`.
    """

    timings: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Delta:
    """New text. `logprobs` has one entry per new token when they were asked for."""

    text: str
    logprobs: tuple[LogprobEntry, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Finished:
    """The end of the answer. `timings` maps stage names such as `fetch_ms` to milliseconds."""

    finish_reason: FinishReason
    usage: Usage
    timings: Mapping[str, float]
    notes: tuple[MediaNote, ...] = ()


ChatEvent: TypeAlias = Accepted | Delta | Finished
