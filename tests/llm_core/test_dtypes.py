"""The decoder in every dtype an engine can choose, against float32."""

from __future__ import annotations

import pytest
import torch

from llm_core.config import load_config
from llm_core.engine.memory import Dtypes, resolve_dtypes
from llm_core.engine.settings import EngineSettings
from llm_core.scheduler import Sequence
from llm_core.weights import load_decoder
from tests.llm_core.support import TINY, DictSource, random_tensors, request, run, tiny_engine, tokens_of

BF16, F32 = torch.bfloat16, torch.float32


@pytest.fixture(scope="module")
def tensors():
    """Weights that bfloat16 holds exactly, so that only the arithmetic differs."""
    made = random_tensors(load_config(TINY), std=0.1)
    return {name: tensor.bfloat16().float() for name, tensor in made.items()}


def hidden(tensors, activations: torch.dtype, weights: torch.dtype) -> torch.Tensor:
    """[T, hidden]: a prompt of 30 tokens in two chunks, then two decoded positions."""
    model = load_decoder(load_config(TINY), DictSource(tensors), dtype=activations, weight_dtype=weights)
    assert model.dtype == activations
    engine = tiny_engine(model, prefill_chunk_tokens=20)
    sequence = Sequence(request([(7 * i) % 90 for i in range(30)]))
    engine._scheduler.add(sequence)
    parts = []
    for token in (None, 3, 4):
        if token is not None:
            sequence.output_ids.append(token)
        while sequence.num_computed < sequence.num_tokens:
            step = engine._scheduler.next_step()
            parts.append(engine._runner.hidden_states(step))
            engine._scheduler.complete(step)
    return torch.cat(parts).float()


@pytest.mark.parametrize("activations", [F32, BF16])
def test_hidden_states_stay_near_float32(tensors, activations: torch.dtype) -> None:
    exact = hidden(tensors, F32, F32)
    # Near-ties of the router may send a token elsewhere, so the bulk is compared and not the worst.
    error = (hidden(tensors, activations, BF16) - exact).norm(dim=1) / exact.norm(dim=1)
    assert error.median() < 0.02


@pytest.mark.parametrize("dtypes", [(F32, BF16), (BF16, BF16)])
def test_an_engine_answers_in_every_dtype(tensors, dtypes) -> None:
    model = load_decoder(load_config(TINY), DictSource(tensors), dtype=dtypes[0], weight_dtype=dtypes[1])
    engine = tiny_engine(model)
    engine.start()
    try:
        answers = [tokens_of(run(engine, request([5, 6, 7], max_tokens=6))) for _ in range(2)]
    finally:
        engine.shutdown()
    assert len(answers[0]) == 6
    assert answers[0] == answers[1]


@pytest.mark.parametrize(
    ("setting", "capability", "expected"),
    [
        ("float32", True, Dtypes(activations=F32, weights=F32)),
        ("bfloat16", False, Dtypes(activations=BF16, weights=BF16)),
        ("auto", True, Dtypes(activations=BF16, weights=BF16)),
        ("auto", False, Dtypes(activations=F32, weights=BF16)),
    ],
)
def test_auto_goes_by_the_processor(monkeypatch, setting, capability, expected) -> None:
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: {"amx_bf16": capability})
    assert resolve_dtypes(EngineSettings(dtype=setting)) == expected
