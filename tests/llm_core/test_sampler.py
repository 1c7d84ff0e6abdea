"""The sampler against transformers' logits processors, its draws against the distribution, and its own rules."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from llm_core.core import SamplingParams
from llm_core.sampling.sampler import SamplerState, _draw, sample

VOCAB = 50


def state(prompt=(), output=(), **params) -> SamplerState:
    return SamplerState(SamplingParams(**params), tuple(prompt), list(output))


class Fixed:
    """A generator that gives one number for ever."""

    def __init__(self, value: float) -> None:
        self.value = value

    def random(self) -> float:
        return self.value


def support_and_order(logits: torch.Tensor, **params) -> dict[int, float]:
    """Token -> probability, read off by walking the uniform number through (0, 1)."""
    steps = 4000
    counts: dict[int, int] = {}
    states = []
    for i in range(steps):
        entry = state(**params)
        entry.rng = Fixed((i + 0.5) / steps)
        states.append(entry)
    for token in _draw(logits.expand(steps, -1), states):
        counts[token] = counts.get(token, 0) + 1
    return {token: count / steps for token, count in counts.items()}


@given(
    seed=st.integers(0, 1000),
    temperature=st.sampled_from([0.3, 1.0, 1.7]),
    top_k=st.sampled_from([0, 1, 5, 100]),
    top_p=st.sampled_from([0.2, 0.75, 1.0]),
    min_p=st.sampled_from([0.0, 0.1, 0.9]),
)
@settings(max_examples=25, deadline=None)
def test_filters_are_those_of_transformers(seed, temperature, top_k, top_p, min_p) -> None:
    from transformers import (
        LogitsProcessorList,
        MinPLogitsWarper,
        TemperatureLogitsWarper,
        TopKLogitsWarper,
        TopPLogitsWarper,
    )

    logits = torch.randn(1, VOCAB, generator=torch.Generator().manual_seed(seed)) * 3
    warpers = LogitsProcessorList([TemperatureLogitsWarper(temperature)])
    if top_k:
        warpers.append(TopKLogitsWarper(top_k))
    if top_p < 1:
        warpers.append(TopPLogitsWarper(top_p))
    if min_p:
        warpers.append(MinPLogitsWarper(min_p))
    expected = warpers(torch.zeros(1, 1, dtype=torch.long), logits.clone()).softmax(-1)[0]
    seen = support_and_order(logits, temperature=temperature, top_k=top_k, top_p=top_p, min_p=min_p)
    for token in range(VOCAB):
        assert seen.get(token, 0.0) == pytest.approx(float(expected[token]), abs=1e-3)


def test_repetition_penalty_is_that_of_transformers() -> None:
    from transformers import RepetitionPenaltyLogitsProcessor

    logits = torch.randn(1, VOCAB)
    ids = [3, 9, 9, 40]
    expected = RepetitionPenaltyLogitsProcessor(1.7)(torch.tensor([ids]), logits.clone())
    ours = logits.clone()
    sample(ours, [state(ids[:2], ids[2:], temperature=0, repetition_penalty=1.7)])
    torch.testing.assert_close(ours, expected)


def test_presence_and_frequency_count_the_answer_only() -> None:
    logits = torch.zeros(1, VOCAB)
    sample(logits, [state([7], [3, 3, 4], temperature=0, presence_penalty=0.5, frequency_penalty=0.25)])
    assert logits[0, 3] == -1.0
    assert logits[0, 4] == -0.75
    assert logits[0, 7] == 0


def test_rows_keep_their_own_settings() -> None:
    logits = torch.randn(3, VOCAB)
    best = logits.argmax(-1).tolist()
    states = [
        state(temperature=0),
        state(temperature=2.0, top_k=1),
        state(temperature=0, repetition_penalty=2.0, output=[best[2]], num_logprobs=2),
    ]
    original = logits.clone()
    tokens, details = sample(logits, states)
    assert tokens[:2] == best[:2]
    assert details[:2] == [None, None]
    # Log-probabilities are of the model's own distribution, whatever the penalties.
    expected = original[2].log_softmax(-1)
    assert details[2].top[0] == (best[2], pytest.approx(float(expected[best[2]])))
    assert details[2].logprob == pytest.approx(float(expected[tokens[2]]))


def test_draws_follow_the_distribution() -> None:
    logits = torch.tensor([[0.0, 1.0, 2.0]])
    entry = state(seed=1)
    counts = torch.zeros(3)
    for _ in range(4000):
        (token,), _ = sample(logits.clone(), [entry])
        counts[token] += 1
    torch.testing.assert_close(counts / 4000, logits[0].softmax(-1), atol=0.03, rtol=0)


def test_a_draw_never_takes_a_token_without_probability() -> None:
    logits = torch.full((1, VOCAB), float("-inf"))
    logits[0, 17] = 0.0
    for value in (0.0, 0.5, 1 - 2**-53):
        entry = state()
        entry.rng = Fixed(value)
        assert sample(logits.clone(), [entry])[0] == [17]


@pytest.mark.parametrize(
    ("params", "message"),
    [
        ({"temperature": 2.5}, r"temperature is 2.5; it must be in \[0, 2\]"),
        ({"temperature": float("nan")}, "temperature is nan"),
        ({"top_p": 0.0}, "top_p is 0.0"),
        ({"top_k": -1}, "top_k is -1"),
        ({"min_p": 1.1}, "min_p is 1.1"),
        ({"repetition_penalty": 0.0}, "repetition_penalty is 0.0"),
        ({"presence_penalty": 3.0}, "presence_penalty is 3.0"),
        ({"frequency_penalty": -3.0}, "frequency_penalty is -3.0"),
        ({"max_tokens": 0}, "max_tokens is 0"),
        ({"seed": 2**64}, "must fit 64 bits"),
        ({"stop": ("a",) * 17}, "17 stop strings; at most 16"),
        ({"stop": ("",)}, "a stop string has 0 characters"),
        ({"stop_token_ids": (1,) * 65}, "65 stop token ids"),
        ({"num_logprobs": 21}, "21 log-probabilities"),
    ],
)
def test_settings_outside_their_range_are_refused(params, message) -> None:
    with pytest.raises(ValueError, match=message):
        SamplingParams(**params)
