"""A demo model that nobody has trained, and its checkpoint folder."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from torch import nn

from mm_pipeline.encoders.mimo_audio_tokenizer import MimoAudioTokenizer
from samples.demo_training.architecture import audio_encoder, audio_tokenizer, vision_encoder
from samples.demo_training.export import export
from samples.demo_training.stages.decoder import Model


@dataclass(frozen=True)
class Exported:
    model: Model
    tokenizer: MimoAudioTokenizer
    folder: Path
    num_bytes: int


@pytest.fixture(scope="session")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Exported:
    """Weights as they are stored, so that what reads the folder must compute the same as the model."""
    with torch.random.fork_rng():
        torch.manual_seed(11)
        model, tokenizer = Model(vision_encoder(), audio_encoder()), audio_tokenizer()
        for module in (model, tokenizer):
            disturb(module)
    folder = tmp_path_factory.mktemp("demo") / "model"
    num_bytes = export(folder, model, tokenizer)
    return Exported(model.eval(), tokenizer.eval(), folder, num_bytes)


def disturb(module: nn.Module) -> None:
    """No tensor stays at what it is initialised to: zeros, ones, and biases that choose nothing hide mistakes."""
    with torch.no_grad():
        for name, tensor in module.state_dict().items():
            noise = torch.randn(tensor.shape)
            if ".gate." in name:
                tensor.copy_(noise * (tensor.shape[-1] ** -0.5 if name.endswith(".weight") else 0.1))
                continue
            if name == "decoder.lm_head.weight":
                tensor.copy_(noise * 0.1)
            elif tensor.dim() > 1 and not tensor.any():
                tensor.copy_(noise * 0.5 * tensor[0].numel() ** -0.5)
            elif tensor.dim() == 1:
                tensor.add_(noise, alpha=0.2)
            tensor.copy_(tensor.to(torch.bfloat16))
