"""Encoders: preprocessed media to language-model embeddings, and their weights by hub name."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch
from blake3 import blake3

from mm_pipeline.encoders.base import Encoder, TensorSource
from mm_pipeline.encoders.image_encoder import PackedImageEncoder
from mm_pipeline.encoders.mimo_audio import MimoAudioConfig, MimoAudioEncoder
from mm_pipeline.encoders.mimo_vision import MimoVisionConfig, MimoVisionEncoder

if TYPE_CHECKING:
    from torch import nn

__all__ = ["Encoder", "TensorSource", "create_image_encoder", "encoder_tensors"]

_VISION_PREFIX = "visual."
# Part of the identity: raise it when the same weights start to give other embeddings.
_VISION_VERSION = 1


def create_image_encoder(
    config: Mapping[str, Any], source: TensorSource, dtype: torch.dtype, device: torch.device | str
) -> Encoder:
    """The image encoder of a checkpoint.

    config: `config.json` as a dict. source: its tensors under hub names; only `visual.*` are read, one at a time.
    Raises ValueError for a missing or unexpected `visual.*` tensor, for a wrong shape, and for float16: the real
    model's last block reaches 1e5.
    """
    if dtype == torch.float16:
        raise ValueError("the vision encoder overflows in float16; use bfloat16 or float32")
    vision = MimoVisionConfig.from_dict(config["vision_config"])
    with torch.device("meta"):
        module = MimoVisionEncoder(vision)
    digest = _load(module, source, _VISION_PREFIX, dtype, torch.device(device))
    kind = str(dtype).removeprefix("torch.")
    return PackedImageEncoder(
        module.eval(),
        identity=f"mimo_vision/v{_VISION_VERSION}/{kind}/{digest}",
        hidden_size=vision.out_hidden_size,
        device=torch.device(device),
    )


def encoder_tensors(config: Mapping[str, Any]) -> dict[str, tuple[int, ...]]:
    """Shapes of every vision and audio encoder tensor of a checkpoint, by hub name.

    A part whose `vision_config` or `audio_config` is absent contributes nothing.
    """
    shapes: dict[str, tuple[int, ...]] = {}
    with torch.device("meta"):
        if "vision_config" in config:
            vision = MimoVisionEncoder(MimoVisionConfig.from_dict(config["vision_config"]))
            shapes |= {_VISION_PREFIX + name: tuple(t.shape) for name, t in vision.state_dict().items()}
        if "audio_config" in config:
            audio = MimoAudioEncoder(MimoAudioConfig.from_dict(config["audio_config"]))
            shapes |= {name: tuple(t.shape) for name, t in audio.state_dict().items()}
    return shapes


def _load(
    module: nn.Module, source: TensorSource, prefix: str, dtype: torch.dtype, device: torch.device
) -> str:
    """Fills a module built on the meta device, tensor by tensor; returns a digest of names, shapes and bytes."""
    expected = {name: tuple(tensor.shape) for name, tensor in module.state_dict().items()}
    found = {name.removeprefix(prefix) for name in source.keys() if name.startswith(prefix)}  # noqa: SIM118
    missing, unexpected = sorted(expected.keys() - found), sorted(found - expected.keys())
    if missing or unexpected:
        raise ValueError(
            f"the checkpoint's {prefix}* tensors do not fit its config: "
            f"missing {_some(prefix, missing)}; unexpected {_some(prefix, unexpected)}"
        )
    hasher = blake3(max_threads=blake3.AUTO)
    for name, shape in sorted(expected.items()):
        tensor = source.get_tensor(prefix + name)
        if tuple(tensor.shape) != shape:
            raise ValueError(f"{prefix}{name} has shape {tuple(tensor.shape)}; the config needs {shape}")
        hasher.update(f"{name}|{tensor.dtype}|{shape}|".encode())
        hasher.update(tensor.contiguous().flatten().view(torch.uint8).numpy().data)
        module.load_state_dict({name: tensor.to(device=device, dtype=dtype)}, strict=False, assign=True)
    for parameter in module.parameters():
        parameter.requires_grad_(False)
    return hasher.hexdigest()


def _some(prefix: str, names: list[str]) -> str:
    shown = ", ".join(prefix + name for name in names[:8])
    more = f" and {len(names) - 8} more" if len(names) > 8 else ""
    return shown + more if names else "none"
