"""The decoder against the golden text fixture: hidden states, logits and experts, whole and in chunks."""

from __future__ import annotations

import dataclasses

import pytest
import torch

from llm_core.config import load_config
from llm_core.core import EmbedSpan, GenerateRequest
from llm_core.engine import Engine, EngineSettings
from llm_core.scheduler import Sequence
from llm_core.weights import load_decoder
from tests.golden import load_golden, load_golden_json
from tests.llm_core.support import DictSource, LetterDecoder

ATOL = 1e-4
WEIGHT_PREFIXES = ("model.", "lm_head.")


@pytest.fixture(scope="module")
def golden() -> dict[str, torch.Tensor]:
    return load_golden("golden_text")


@pytest.fixture(scope="module")
def config():
    return load_config(load_golden_json("config_text"))


def load(golden, config, backend: str):
    weights = {name: tensor for name, tensor in golden.items() if name.startswith(WEIGHT_PREFIXES)}
    return load_decoder(config, DictSource(weights), dtype=torch.float32, backend=backend)


def spans_of(golden) -> tuple[EmbedSpan, ...]:
    """One span per run of neighbouring placeholder positions."""
    spans, begin = [], 0
    positions = golden["mm.positions"].tolist()
    for end in range(1, len(positions) + 1):
        if end == len(positions) or positions[end] != positions[end - 1] + 1:
            vectors = golden["mm.vectors"][begin:end]
            spans.append(
                EmbedSpan(start=positions[begin], length=end - begin, content_key="k", embeddings=vectors)
            )
            begin = end
    return tuple(spans)


def hidden_states(model, golden, key: str, *, chunk: int, page_size: int) -> torch.Tensor:
    """[T, hidden] of a prompt that runs through scheduler, pools and runner, chunk by chunk."""
    settings = EngineSettings(page_size=page_size, prefill_chunk_tokens=chunk, kv_memory_bytes=1 << 26)
    engine = Engine(model, LetterDecoder(), settings)
    spans = spans_of(golden) if key == "mm" else ()
    token_ids = tuple(golden[f"{key}.input_ids"].flatten().tolist())
    sequence = Sequence(GenerateRequest(request_id="r", token_ids=token_ids, spans=spans))
    engine._scheduler.add(sequence)
    parts = []
    while sequence.num_computed < len(token_ids):
        step = engine._scheduler.next_step()
        parts.append(engine._runner.hidden_states(step))
        engine._scheduler.complete(step)
    return torch.cat(parts)


@pytest.mark.parametrize("backend", ["reference", "cpu"])
@pytest.mark.parametrize("key", ["io", "mm"])
@pytest.mark.parametrize(("chunk", "page_size"), [(512, 16), (7, 4), (1, 1)])
def test_hidden_states_and_logits(golden, config, backend, key, chunk, page_size) -> None:
    model = load(golden, config, backend)
    hidden = hidden_states(model, golden, key, chunk=chunk, page_size=page_size)
    torch.testing.assert_close(hidden, golden[f"{key}.hidden_final"].flatten(0, 1), atol=ATOL, rtol=0)
    torch.testing.assert_close(model.logits(hidden), golden[f"{key}.logits"].flatten(0, 1), atol=ATOL, rtol=0)


def test_one_key_less_gives_the_other_window_convention(golden, config) -> None:
    shorter = dataclasses.replace(config.swa, window_keys=config.swa.window_keys - 1)
    model = load(golden, dataclasses.replace(config, swa=shorter), "cpu")
    logits = model.logits(hidden_states(model, golden, "io", chunk=512, page_size=16))
    torch.testing.assert_close(logits, golden["altwindow.logits"].flatten(0, 1), atol=ATOL, rtol=0)
    assert (logits - golden["io.logits"].flatten(0, 1)).abs().max() > 0.1


def test_routers_choose_the_golden_experts(golden, config) -> None:
    model = load(golden, config, "cpu")
    seen: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}
    for index, layer in enumerate(model.layers):
        if config.layers[index].is_moe:
            layer.mlp.gate.register_forward_hook(
                lambda _module, _inputs, output, index=index: seen.__setitem__(index, output)
            )
    hidden_states(model, golden, "io", chunk=512, page_size=16)
    assert seen
    for index, (weights, ids) in seen.items():
        ids, order = ids.sort(dim=-1)
        assert torch.equal(ids, golden[f"io.router_topk_index.{index}"].long())
        expected = golden[f"io.router_topk_weight.{index}"]
        torch.testing.assert_close(weights.gather(1, order), expected, atol=ATOL, rtol=0)
