"""Chooses one token per sequence.

The order of the filters is that of transformers' generation: repetition penalty, presence and frequency penalties,
temperature, top_k, top_p (over what top_k left), min_p. A draw takes one uniform number of the sequence's own
generator, so that a seeded answer does not depend on what it is batched with.
"""

from __future__ import annotations

import random
from collections.abc import Sequence as Seq
from dataclasses import dataclass, field

import torch
from torch import Tensor

from llm_core.core import SamplingParams, TokenLogprob


@dataclass
class SamplerState:
    """What the sampler remembers of one sequence: its settings, its tokens, and its random numbers."""

    params: SamplingParams
    prompt_ids: tuple[int, ...]
    output_ids: list[int]
    rng: random.Random = field(init=False)

    def __post_init__(self) -> None:
        self.rng = random.Random(self.params.seed)

    @property
    def has_penalties(self) -> bool:
        params = self.params
        return bool(params.repetition_penalty != 1.0 or params.presence_penalty or params.frequency_penalty)


def sample(logits_NV: Tensor, states: Seq[SamplerState]) -> tuple[list[int], list[TokenLogprob | None]]:
    """One token and, where asked for, its log-probabilities per row.

    Args:
        logits_NV: [N, vocab] float32, changed in place.
    """
    logprobs_NV = None
    if any(state.params.num_logprobs is not None for state in states):
        logprobs_NV = logits_NV.log_softmax(dim=-1)
    for row, state in enumerate(states):
        if state.has_penalties:
            _penalize_(logits_NV[row], state)
    tokens = logits_NV.argmax(dim=-1).tolist()
    drawn = [row for row, state in enumerate(states) if state.params.temperature > 0]
    if drawn:
        chosen = _draw(
            logits_NV[drawn] if len(drawn) < len(states) else logits_NV, [states[r] for r in drawn]
        )
        for row, token in zip(drawn, chosen, strict=True):
            tokens[row] = token
    details: list[TokenLogprob | None] = [None] * len(states)
    if logprobs_NV is not None:
        for row, state in enumerate(states):
            if state.params.num_logprobs is not None:
                details[row] = _logprob(logprobs_NV[row], tokens[row], state.params.num_logprobs)
    return tokens, details


def _penalize_(logits_V: Tensor, state: SamplerState) -> None:
    params = state.params
    output = torch.tensor(state.output_ids, dtype=torch.int64, device=logits_V.device)
    if params.repetition_penalty != 1.0:
        prompt = torch.tensor(state.prompt_ids, dtype=torch.int64, device=logits_V.device)
        seen = torch.cat([prompt, output]).unique()
        values = logits_V[seen]
        penalty = params.repetition_penalty
        logits_V[seen] = torch.where(values > 0, values / penalty, values * penalty)
    if len(output) and (params.presence_penalty or params.frequency_penalty):
        seen, counts = output.unique(return_counts=True)
        logits_V[seen] -= params.presence_penalty + params.frequency_penalty * counts


def _draw(logits_NV: Tensor, states: Seq[SamplerState]) -> list[int]:
    """One draw per row; each row's filters are those of its own settings."""
    params = [state.params for state in states]

    def column(values: list[float]) -> Tensor:
        return torch.tensor(values, dtype=torch.float32, device=logits_NV.device).unsqueeze(1)

    logits_NV = logits_NV / column([p.temperature for p in params])
    if any(p.top_k or p.top_p < 1.0 for p in params):
        logits_NV = _keep_top(logits_NV, params)
    probs_NV = logits_NV.softmax(dim=-1)
    if any(p.min_p for p in params):
        floor = probs_NV.amax(dim=-1, keepdim=True) * column([p.min_p for p in params])
        probs_NV = probs_NV.masked_fill(probs_NV < floor, 0.0)
    # float64: the last of a large vocabulary's tokens must not vanish in the running sum.
    cumulative_NV = probs_NV.cumsum(dim=-1, dtype=torch.float64)
    targets = torch.tensor([[state.rng.random()] for state in states], dtype=torch.float64)
    total_N1 = cumulative_NV[:, -1:]
    # Strictly below the total, even when the product rounds up to it.
    targets = (targets.to(logits_NV.device) * total_N1).minimum(
        total_N1.nextafter(torch.zeros_like(total_N1))
    )
    ids = torch.searchsorted(cumulative_NV, targets, right=True).squeeze(1)
    chosen: list[int] = ids.tolist()
    return chosen


def _keep_top(logits_NV: Tensor, params: Seq[SamplingParams]) -> Tensor:
    """-inf outside top_k and top_p. Ties at the border of top_k all stay, as in transformers."""
    vocab = logits_NV.shape[1]
    ordered_NV, index_NV = logits_NV.sort(dim=-1, descending=True, stable=True)
    top_k = torch.tensor([p.top_k or vocab for p in params], device=logits_NV.device).clamp_(max=vocab)
    border = ordered_NV.gather(1, top_k.unsqueeze(1) - 1)
    ordered_NV = ordered_NV.masked_fill(ordered_NV < border, float("-inf"))
    probs_NV = ordered_NV.softmax(dim=-1)
    top_p = torch.tensor([[p.top_p] for p in params], dtype=torch.float64, device=logits_NV.device)
    before_NV = probs_NV.cumsum(dim=-1, dtype=torch.float64) - probs_NV
    beyond = (before_NV >= top_p) & (top_p < 1.0)
    beyond[:, 0] = False
    ordered_NV = ordered_NV.masked_fill(beyond, float("-inf"))
    return torch.empty_like(logits_NV).scatter_(1, index_NV, ordered_NV)


def _logprob(logprobs_V: Tensor, token: int, num_top: int) -> TokenLogprob:
    top: tuple[tuple[int, float], ...] = ()
    if num_top:
        values, ids = logprobs_V.topk(min(num_top, logprobs_V.shape[0]))
        top = tuple(zip(ids.tolist(), values.tolist(), strict=True))
    return TokenLogprob(token, float(logprobs_V[token]), top)
