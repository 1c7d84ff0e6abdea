"""The data types that pass between the engine and its callers.

They hold integers, strings and opaque embeddings; this module does not know torch.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

FinishReason = Literal["stop", "length", "abort", "error"]

MAX_LOGPROBS = 20
MAX_STOP_STRINGS = 16
MAX_STOP_STRING_CHARS = 256
MAX_STOP_TOKEN_IDS = 64


def _require(ok: bool, message: str) -> None:
    if not ok:
        raise ValueError(message)


@dataclass(frozen=True, kw_only=True)
class SamplingParams:
    """How tokens are chosen and when the answer ends.

    Attributes:
        temperature: 0 takes the most likely token; at most 2.
        top_p: keep the smallest set of tokens whose probabilities sum to at least this, in (0, 1].
        top_k: keep this many tokens; 0 keeps all.
        min_p: drop tokens less likely than this share of the most likely one, in [0, 1].
        repetition_penalty: divides positive and multiplies negative logits of every token already in the
            prompt or the answer (Keskar et al. 2019, CTRL); 1 is off, in (0, 2].
        presence_penalty: subtracted once from the logit of each token already in the answer, in [-2, 2].
        frequency_penalty: subtracted per occurrence in the answer, in [-2, 2].
        seed: makes this request's draws repeatable whatever it is batched with.
        max_tokens: upper bound of generated tokens.
        stop: strings that end the answer and are not part of it.
        stop_token_ids: token ids that end the answer.
        ignore_eos: go on past the model's end-of-sequence tokens.
        num_logprobs: None for none; n for the chosen token's log-probability and those of the n best.

    Raises:
        ValueError: a value outside its range; the message shows the value and the range.
    """

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    seed: int | None = None
    max_tokens: int = 256
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False
    num_logprobs: int | None = None

    def __post_init__(self) -> None:
        _require(0.0 <= self.temperature <= 2.0, f"temperature is {self.temperature}; it must be in [0, 2]")
        _require(0.0 < self.top_p <= 1.0, f"top_p is {self.top_p}; it must be in (0, 1]")
        _require(self.top_k >= 0, f"top_k is {self.top_k}; it must be 0 (off) or more")
        _require(0.0 <= self.min_p <= 1.0, f"min_p is {self.min_p}; it must be in [0, 1]")
        _require(
            0.0 < self.repetition_penalty <= 2.0,
            f"repetition_penalty is {self.repetition_penalty}; it must be in (0, 2]",
        )
        for name in ("presence_penalty", "frequency_penalty"):
            value = getattr(self, name)
            _require(-2.0 <= value <= 2.0, f"{name} is {value}; it must be in [-2, 2]")
        _require(
            self.seed is None or -(2**63) <= self.seed < 2**63,
            f"seed is {self.seed}; it must fit 64 bits",
        )
        _require(self.max_tokens >= 1, f"max_tokens is {self.max_tokens}; it must be at least 1")
        _require(
            len(self.stop) <= MAX_STOP_STRINGS,
            f"{len(self.stop)} stop strings; at most {MAX_STOP_STRINGS} are allowed",
        )
        for text in self.stop:
            _require(
                0 < len(text) <= MAX_STOP_STRING_CHARS,
                f"a stop string has {len(text)} characters; it must have 1 to {MAX_STOP_STRING_CHARS}",
            )
        _require(
            len(self.stop_token_ids) <= MAX_STOP_TOKEN_IDS,
            f"{len(self.stop_token_ids)} stop token ids; at most {MAX_STOP_TOKEN_IDS} are allowed",
        )
        _require(
            self.num_logprobs is None or 0 <= self.num_logprobs <= MAX_LOGPROBS,
            f"{self.num_logprobs} log-probabilities asked for; 0 to {MAX_LOGPROBS} are allowed",
        )


@dataclass(frozen=True, kw_only=True)
class EmbedSpan:
    """Prompt positions [start, start + length) whose embeddings replace those of the token ids.

    Attributes:
        content_key: digest of the media the vectors come from; it names these positions in any prefix match.
        embeddings: tensor [length, hidden].
    """

    start: int
    length: int
    content_key: str
    embeddings: Any = field(repr=False, compare=False)


@dataclass(frozen=True, kw_only=True)
class GenerateRequest:
    """One prompt to continue. Spans are sorted, disjoint and inside the prompt.

    Attributes:
        user: requests of one user take turns with those of others; "" is a user of its own.
        priority: 0 goes before 1, 1 before 2 and so on, unless it has waited long.
        timeout_s: seconds from submission after which the request ends with an error, whatever it has got.
    """

    request_id: str
    token_ids: tuple[int, ...] = field(repr=False)
    spans: tuple[EmbedSpan, ...] = ()
    sampling: SamplingParams = SamplingParams()
    user: str = ""
    priority: int = 0
    timeout_s: float | None = None


@dataclass(frozen=True)
class TokenLogprob:
    """Natural-log probability of a chosen token, and of the most likely ones, best first.

    Taken from the model's own distribution, before temperature, penalties and filters.
    """

    token_id: int
    logprob: float
    top: tuple[tuple[int, float], ...] = ()


@dataclass(frozen=True, kw_only=True)
class OutputDelta:
    """What one request gained since its previous delta.

    Attributes:
        text: new text, already cut at stop strings; text that may yet become a stop string is held back.
        finish_reason: set on the last delta only.
        error: one sentence for the caller when finish_reason is "error".
        num_output_tokens: running total.
        queue_ms: time from submission to the first scheduled chunk.
        prefill_ms: time from the first scheduled chunk to the first token.
    """

    request_id: str
    token_ids: tuple[int, ...] = ()
    text: str = ""
    logprobs: tuple[TokenLogprob, ...] = ()
    finish_reason: FinishReason | None = None
    error: str | None = None
    num_prompt_tokens: int = 0
    num_cached_tokens: int = 0
    num_output_tokens: int = 0
    queue_ms: float = 0.0
    prefill_ms: float = 0.0
