"""The demo model's modules, with gradients, from the configs beside this file. Knows how they are initialised."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from mm_pipeline.encoders.mimo_audio import MimoAudioConfig, MimoAudioEncoder
from mm_pipeline.encoders.mimo_audio_tokenizer import MimoAudioTokenizer, MimoAudioTokenizerConfig
from mm_pipeline.encoders.mimo_vision import MimoVisionConfig, MimoVisionEncoder

HERE = Path(__file__).parent
_BACKEND = "differentiable"
_ADDING = (
    "attn.proj.weight",
    "o_proj.weight",
    "out_proj.weight",
    "down_proj.weight",
    "fc2.weight",
)


def model_config() -> dict[str, Any]:
    """config.json of the demo model, without the token ids that the tokenizer decides."""
    config: dict[str, Any] = json.loads((HERE / "config.json").read_text())
    return config


def tokenizer_config() -> dict[str, Any]:
    """config.json of its audio tokenizer."""
    config: dict[str, Any] = json.loads((HERE / "audio_tokenizer.json").read_text())
    return config


def vision_encoder() -> MimoVisionEncoder:
    module = MimoVisionEncoder(
        MimoVisionConfig.from_dict(model_config()["vision_config"]), attention_backend=_BACKEND
    )
    initialise(module)
    with torch.no_grad():
        filters = module.patch_embed.proj.weight
        filters.copy_(cosine_filters(filters.shape[0], filters.shape[-1]))
    # The sum over the layers begins here, and stays in float32 when they multiply in bfloat16.
    module.patch_embed.register_forward_hook(lambda _module, _args, out: out.float())
    return module


def audio_tokenizer() -> MimoAudioTokenizer:
    config = MimoAudioTokenizerConfig.from_dict(tokenizer_config())
    module = MimoAudioTokenizer(config, attention_backend=_BACKEND)
    initialise(module)
    return module


def audio_encoder() -> MimoAudioEncoder:
    module = MimoAudioEncoder(
        MimoAudioConfig.from_dict(model_config()["audio_config"]), attention_backend=_BACKEND
    )
    initialise(module)
    return module


def initialise(module: nn.Module) -> None:
    """Matrices of variance 1 / fan-in, those that add to a residual 0, gains 1, biases and sinks 0."""
    for name, parameter in module.named_parameters():
        if name.endswith(_ADDING):
            nn.init.zeros_(parameter)
        elif parameter.dim() > 1:
            nn.init.normal_(parameter, std=parameter[0].numel() ** -0.5)
        elif name.endswith("weight") and ("norm" in name or "ln_q" in name):
            nn.init.ones_(parameter)
        else:
            nn.init.zeros_(parameter)


def cosine_filters(filters: int, size: int) -> torch.Tensor:
    """First filters of a picture's patches: [filters, 3, 2, size, size], orthonormal, smooth ones first.

    Half are of brightness, a third of two colour differences, the rest of the change between the two frames; in
    each kind the products of cosines that JPEG uses, from the lowest frequency on.
    """
    waves = torch.cos(math.pi / size * (torch.arange(size) + 0.5) * torch.arange(size)[:, None])
    waves = waves / waves.norm(dim=1, keepdim=True)
    order = sorted(((y, x) for y in range(size) for x in range(size)), key=lambda at: (sum(at), at))
    bright, red_green, yellow_blue = (
        F.normalize(torch.tensor(mix), dim=0) for mix in ([1.0, 1, 1], [1.0, -1, 0], [1.0, 1, -2])
    )
    steady, change = torch.tensor([1.0, 1]) / 2**0.5, torch.tensor([1.0, -1]) / 2**0.5
    kinds = [
        (bright, steady, filters // 2),
        (red_green, steady, filters // 6),
        (yellow_blue, steady, filters // 6),
    ]
    kinds.append((bright, change, filters - sum(count for _, _, count in kinds)))
    return torch.stack(
        [
            torch.einsum("c,t,y,x->ctyx", colour, time, waves[y], waves[x])
            for colour, time, count in kinds
            for y, x in order[:count]
        ]
    )
