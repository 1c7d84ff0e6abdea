"""Random values for a tensor, by its hub name and shape alone.

Scaled so that activations keep their size through the layers: a linear map's rows have norm about 1, half of it
where the result is added to the residual stream, and logits spread enough that greedy answers vary. Knows name
endings, not models.
"""

from __future__ import annotations

import hashlib
import math

import torch

RESIDUAL_SCALE = 0.5
"""For the maps whose output is added to the residual stream."""

EMBEDDING_STD = 0.5
QKV_SCALE = 1.5
"""Above 1, so that attention picks among keys instead of averaging them: answers depend on the whole prompt."""

LOGIT_STD = 3.0
ROUTER_BIAS_STD = 0.01
BIAS_STD = 0.02

CODEBOOK_STD = 0.7
"""Entries about as long as what is left to code, so that all stages of the audio tokenizer choose among many."""

_RESIDUAL_ENDINGS = ("o_proj.weight", "down_proj.weight", "attn.proj.weight", "out_proj.weight", "fc2.weight")
_EMBEDDINGS = ("embed_tokens.weight", "speech_embeddings.")
_SINK_ENDINGS = (".attention_sink_bias", ".sinks")


def initial_tensor(
    name: str, shape: tuple[int, ...], dtype: torch.dtype, *, seed: int, num_tokens: int
) -> torch.Tensor:
    """Values of one tensor, the same for the same (seed, name, shape) whatever else is made.

    Args:
        num_tokens: ids the tokenizer knows. Output rows of the ids above it are zero, so that padding ids are
            not what a greedy answer is made of.

    Returns: tensor of `shape` and `dtype` on the CPU.
    """
    if len(shape) == 1 and name.endswith(".weight"):
        return torch.ones(shape, dtype=dtype)
    digest = hashlib.blake2b(f"{seed}/{name}".encode(), digest_size=8).digest()
    generator = torch.Generator().manual_seed(int.from_bytes(digest, "little") >> 1)
    values = torch.randn(shape, generator=generator) * _std(name, shape)
    if name == "lm_head.weight":
        values[num_tokens:] = 0.0
    return values.to(dtype)


def _std(name: str, shape: tuple[int, ...]) -> float:
    if name.endswith(_SINK_ENDINGS):
        return 1.0
    if name.endswith("e_score_correction_bias"):
        return ROUTER_BIAS_STD
    if name.endswith(".bias"):
        return BIAS_STD
    if any(part in name for part in _EMBEDDINGS):
        return EMBEDDING_STD
    if name.endswith("_codebook.embed"):
        return CODEBOOK_STD
    fan_in = math.prod(shape[1:])
    gain = 1.0
    if name == "lm_head.weight":
        gain = LOGIT_STD
    elif name.endswith("qkv_proj.weight"):
        gain = QKV_SCALE
    elif name.endswith(_RESIDUAL_ENDINGS):
        gain = RESIDUAL_SCALE
    return gain / math.sqrt(fan_in)
