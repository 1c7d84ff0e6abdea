"""A tiny random decoder and what engine tests need around it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch

from llm_core.config import DecoderConfig, load_config
from llm_core.core import GenerateRequest, OutputDelta, SamplingParams
from llm_core.engine import Engine, EngineSettings
from llm_core.model import HybridDecoder
from llm_core.weights import decoder_tensors, load_decoder

TINY: dict[str, Any] = {
    "model_type": "mimo_v2",
    "vocab_size": 97,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 24,
    "v_head_dim": 16,
    "swa_num_key_value_heads": 4,
    "hybrid_layer_pattern": [0, 1, 1, 0],
    "moe_layer_freq": [0, 1, 1, 1],
    "attention_projection_layout": "fused_qkv",
    "n_routed_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 24,
    "sliding_window_size": 8,
    "rope_theta": 10000000,
    "swa_rope_theta": 10000,
    "attention_value_scale": 0.707,
    "max_position_embeddings": 4096,
    "eos_token_id": 96,
    "num_nextn_predict_layers": 1,
}


class DictSource:
    """Tensors in a dictionary, read as a checkpoint."""

    def __init__(self, tensors: dict[str, torch.Tensor]) -> None:
        self.tensors = tensors

    def keys(self) -> Iterable[str]:
        return self.tensors.keys()

    def get_tensor(self, name: str) -> torch.Tensor:
        return self.tensors[name]


def random_tensors(config: DecoderConfig, seed: int = 0, std: float = 0.2) -> dict[str, torch.Tensor]:
    """Random float32 weights under hub names; norms near 1."""
    generator = torch.Generator().manual_seed(seed)
    tensors = {}
    for name, spec in decoder_tensors(config).items():
        noise = torch.randn(spec.shape, generator=generator)
        is_norm = name.endswith("norm.weight")
        tensors[name] = 1 + 0.1 * noise if is_norm else std * noise
    return tensors


class LetterDecoder:
    """Token i is the letter i mod 26."""

    def decode(self, ids: Sequence[int], skip_special_tokens: bool = True) -> str:
        return "".join(chr(97 + i % 26) for i in ids)


def tiny_model(backend: str = "cpu", **changes: Any) -> HybridDecoder:
    config = load_config({**TINY, **changes})
    return load_decoder(config, DictSource(random_tensors(config)), dtype=torch.float32, backend=backend)


def tiny_engine(model: HybridDecoder | None = None, **settings: Any) -> Engine:
    """An engine that is not started, with small pools and its accounting checked after every step."""
    options = {
        "dtype": "float32",
        "page_size": 4,
        "kv_memory_bytes": 1 << 25,
        "check_invariants": True,
        **settings,
    }
    return Engine(model or tiny_model(), LetterDecoder(), EngineSettings(**options))


def request(
    token_ids: Sequence[int], request_id: str = "r", spans: tuple = (), **sampling: Any
) -> GenerateRequest:
    params = {"temperature": 0.0, "max_tokens": 8, "ignore_eos": True, **sampling}
    return GenerateRequest(
        request_id=request_id,
        token_ids=tuple(token_ids),
        spans=spans,
        sampling=SamplingParams(**params),
    )


def run(engine: Engine, item: GenerateRequest) -> list[OutputDelta]:
    return list(engine.generate(item))


def tokens_of(deltas: Iterable[OutputDelta]) -> list[int]:
    return [token for delta in deltas for token in delta.token_ids]
