"""transformers' MiMoV2Flash as the oracle: prefill logits and greedy tokens on random configurations."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from llm_core.config import load_config
from llm_core.engine import Engine
from llm_core.scheduler import Sequence
from llm_core.weights import CheckpointFolder, load_decoder
from tests.llm_core.support import request, run, tiny_engine, tokens_of

NUM_GREEDY = 64

CONFIGS: dict[str, dict[str, Any]] = {
    "wide heads": {
        "hidden_size": 48,
        "num_attention_heads": 4,
        "num_key_value_heads": 1,
        "head_dim": 192,
        "v_head_dim": 128,
        "sliding_window": 6,
        "layers": "fssf",
        "n_routed_experts": 6,
        "num_experts_per_tok": 3,
    },
    "expert groups": {
        "hidden_size": 32,
        "num_attention_heads": 8,
        "num_key_value_heads": 2,
        "head_dim": 24,
        "v_head_dim": 16,
        "sliding_window": 17,
        "layers": "fsssss",
        "n_routed_experts": 8,
        "num_experts_per_tok": 2,
        "n_group": 4,
        "topk_group": 2,
        "routed_scaling_factor": 1.5,
    },
    "all window": {
        "hidden_size": 40,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "head_dim": 32,
        "v_head_dim": 20,
        "sliding_window": 3,
        "layers": "sss",
        "n_routed_experts": 4,
        "num_experts_per_tok": 1,
        "norm_topk_prob": False,
    },
}


def oracle(options: dict[str, Any]):
    from transformers import MiMoV2FlashConfig, MiMoV2FlashForCausalLM

    options = dict(options)
    layers = options.pop("layers")
    config = MiMoV2FlashConfig(
        vocab_size=120,
        intermediate_size=56,
        moe_intermediate_size=28,
        num_hidden_layers=len(layers),
        layer_types=["full_attention" if kind == "f" else "sliding_attention" for kind in layers],
        mlp_layer_types=["dense"] + ["sparse"] * (len(layers) - 1),
        max_position_embeddings=1024,
        **options,
    )
    torch.manual_seed(1)
    model = MiMoV2FlashForCausalLM(config).eval()
    generator = torch.Generator().manual_seed(2)
    for name, tensor in [*model.named_parameters(), *model.named_buffers()]:
        if "norm" not in name and "inv_freq" not in name:
            tensor.data.normal_(std=0.15, generator=generator)
    return model


@pytest.fixture(scope="module", params=CONFIGS, ids=lambda name: name.replace(" ", "_"))
def pair(request, tmp_path_factory):
    """The oracle, and our decoder loaded from the folder the oracle saved."""
    theirs = oracle(CONFIGS[request.param])
    folder = tmp_path_factory.mktemp("oracle")
    theirs.save_pretrained(folder)
    ours = load_decoder(load_config(folder), CheckpointFolder(folder), dtype=torch.float32)
    return theirs, ours


def prompt(length: int) -> list[int]:
    return torch.randint(0, 120, (length,), generator=torch.Generator().manual_seed(length)).tolist()


def prefill(engine: Engine, token_ids: list[int]) -> torch.Tensor:
    sequence = Sequence(request(token_ids))
    engine._scheduler.add(sequence)
    parts = []
    while sequence.num_computed < len(token_ids):
        step = engine._scheduler.next_step()
        parts.append(engine._runner.hidden_states(step))
        engine._scheduler.complete(step)
    return engine.model.logits(torch.cat(parts))


@pytest.mark.parametrize("chunk", [512, 5])
def test_prefill_logits(pair, chunk: int) -> None:
    theirs, ours = pair
    token_ids = prompt(41)
    with torch.inference_mode():
        expected = theirs(torch.tensor([token_ids])).logits[0]
    logits = prefill(tiny_engine(ours, prefill_chunk_tokens=chunk), token_ids)
    torch.testing.assert_close(logits, expected, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("chunk", [512, 5])
def test_greedy_tokens(pair, chunk: int) -> None:
    theirs, ours = pair
    token_ids = prompt(23)
    with torch.inference_mode():
        expected = theirs.generate(
            torch.tensor([token_ids]),
            max_new_tokens=NUM_GREEDY,
            do_sample=False,
            use_cache=True,
            pad_token_id=0,
        )[0, len(token_ids) :].tolist()
    engine = tiny_engine(ours, prefill_chunk_tokens=chunk)
    engine.start()
    try:
        actual = tokens_of(run(engine, request(token_ids, max_tokens=NUM_GREEDY)))
    finally:
        engine.shutdown()
    assert len(expected) == NUM_GREEDY
    assert actual == expected
