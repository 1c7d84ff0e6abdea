"""One request's answer as it grows: its text, its end, and the deltas its caller gets."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from llm_core.core import FinishReason, OutputDelta, TokenLogprob
from llm_core.sampling.sampler import SamplerState
from llm_core.sampling.text import Decoder, IncrementalDetokenizer, StopStrings
from llm_core.scheduler import Sequence

OnOutput = Callable[[OutputDelta], None]


def _ms(begin_s: float | None, end_s: float | None) -> float:
    return 0.0 if begin_s is None or end_s is None else (end_s - begin_s) * 1e3


@dataclass(eq=False)
class Answer:
    """Turns chosen tokens into deltas. Owned by the engine thread."""

    sequence: Sequence
    on_output: OnOutput
    decoder: Decoder
    eos_token_ids: frozenset[int]
    sampler: SamplerState = field(init=False)
    is_finished: bool = field(init=False, default=False)

    def __post_init__(self) -> None:
        request = self.sequence.request
        self._params = request.sampling
        self._detokenizer = IncrementalDetokenizer(self.decoder)
        self._stops = StopStrings(self._params.stop)
        self._stop_ids = frozenset(self._params.stop_token_ids)
        self.sampler = SamplerState(self._params, request.token_ids, self.sequence.output_ids)

    def add_token(self, token_id: int, logprob: TokenLogprob | None, now_s: float) -> FinishReason | None:
        """Takes the next token, tells the caller, and says whether the answer has ended."""
        sequence = self.sequence
        sequence.output_ids.append(token_id)
        if sequence.first_token_s is None:
            sequence.first_token_s = now_s
        is_eos = token_id in self.eos_token_ids and not self._params.ignore_eos
        reason: FinishReason | None = None
        text = ""
        if is_eos or token_id in self._stop_ids:
            reason = "stop"
        else:
            text, stop = self._stops.add(self._detokenizer.add(token_id))
            if stop is not None:
                reason = "stop"
        if reason is None and len(sequence.output_ids) >= self._params.max_tokens:
            reason = "length"
        if reason is not None and (is_eos or reason == "length" or token_id in self._stop_ids):
            rest, stop = self._stops.add(self._detokenizer.flush())
            text += rest
            if stop is None:
                text += self._stops.flush()
            else:
                reason = "stop"
        self._tell((token_id,), text, logprob, reason, None)
        return reason

    def end(self, reason: FinishReason, error: str | None = None) -> None:
        """Ends the answer without another token (abort or error)."""
        if not self.is_finished:
            self._tell((), "", None, reason, error)

    def _tell(
        self,
        token_ids: tuple[int, ...],
        text: str,
        logprob: TokenLogprob | None,
        reason: FinishReason | None,
        error: str | None,
    ) -> None:
        sequence = self.sequence
        self.is_finished = reason is not None
        self.on_output(
            OutputDelta(
                request_id=sequence.request_id,
                token_ids=token_ids,
                text=text,
                logprobs=() if logprob is None else (logprob,),
                finish_reason=reason,
                error=error,
                num_prompt_tokens=sequence.num_prompt,
                num_cached_tokens=sequence.num_cached,
                num_output_tokens=len(sequence.output_ids),
                queue_ms=_ms(sequence.submitted_s, sequence.scheduled_s),
                prefill_ms=_ms(sequence.scheduled_s, sequence.first_token_s),
            )
        )
