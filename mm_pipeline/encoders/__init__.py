"""Encoders: preprocessed media to language-model embeddings, and their weights by hub name.

A checkpoint folder holds the vision encoder and the audio codes' encoder among its own tensors, and the audio
tokenizer in a folder inside it, `AUDIO_TOKENIZER_FOLDER`, with a config.json and a model.safetensors of its own.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

import torch
from blake3 import blake3

from mm_pipeline.encoders.audio_encoder import EmbeddingStream, SegmentedAudioEncoder
from mm_pipeline.encoders.base import Encoder, SoundEncoder, SoundStream, TensorSource
from mm_pipeline.encoders.batched import BatchedEncoders, BatchedImages, BatchedSounds, BatchSettings, Caller
from mm_pipeline.encoders.image_encoder import PackedImageEncoder
from mm_pipeline.encoders.mimo_audio import MimoAudioConfig, MimoAudioEncoder
from mm_pipeline.encoders.mimo_audio_tokenizer import MimoAudioTokenizer, MimoAudioTokenizerConfig
from mm_pipeline.encoders.mimo_vision import MimoVisionConfig, MimoVisionEncoder
from mm_pipeline.encoders.weights import load_module

__all__ = [
    "AUDIO_TOKENIZER_FOLDER",
    "BatchSettings",
    "BatchedEncoders",
    "BatchedImages",
    "BatchedSounds",
    "Caller",
    "EmbeddingStream",
    "Encoder",
    "SegmentedAudioEncoder",
    "SoundEncoder",
    "SoundStream",
    "TensorSource",
    "audio_tokenizer_tensors",
    "create_audio_encoder",
    "create_image_encoder",
    "encoder_tensors",
]

AUDIO_TOKENIZER_FOLDER = "audio_tokenizer"

_VISION_PREFIX = "visual."
_AUDIO_PREFIXES = ("speech_embeddings.", "audio_encoder.")
# The tokenizer's checkpoint has its decoder too, and what training kept beside each codebook.
_TOKENIZER_PREFIX = "encoder."
_TRAINING_ENDINGS = ("._codebook.cluster_size", "._codebook.embed_avg", "._codebook.inited")
# Part of the identity: raise it when the same weights start to give other embeddings.
_VISION_VERSION = 1
_AUDIO_VERSION = 1


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
    digest = load_module(
        module,
        source,
        is_ours=lambda name: name.startswith(_VISION_PREFIX),
        prefix=_VISION_PREFIX,
        what="the checkpoint's visual.* tensors",
        dtype=dtype,
        device=torch.device(device),
    )
    return PackedImageEncoder(
        module,
        identity=_identity(f"mimo_vision/v{_VISION_VERSION}", dtype, [digest], [vision]),
        hidden_size=vision.out_hidden_size,
        device=torch.device(device),
    )


def create_audio_encoder(
    config: Mapping[str, Any],
    source: TensorSource,
    tokenizer_config: Mapping[str, Any],
    tokenizer_source: TensorSource,
    dtype: torch.dtype,
    device: torch.device | str,
) -> SegmentedAudioEncoder:
    """The audio encoder of a checkpoint: its tokenizer, which always computes in float32, and what reads the codes.

    config: `config.json` as a dict. source: its tensors under hub names; only `speech_embeddings.*` and
    `audio_encoder.*` are read. tokenizer_config, tokenizer_source: the same of the folder
    `AUDIO_TOKENIZER_FOLDER`; only what makes codes is read. dtype: of everything after the codes.
    Raises ValueError for a missing or unexpected tensor among these, a wrong shape, or configs that do not fit
    together.
    """
    audio = MimoAudioConfig.from_dict(config["audio_config"])
    tokenizing = MimoAudioTokenizerConfig.from_dict(tokenizer_config)
    if (
        len(tokenizing.codebook_sizes) != audio.num_channels
        or max(tokenizing.codebook_sizes) > audio.vocab_size
    ):
        raise ValueError(
            f"the audio tokenizer makes {len(tokenizing.codebook_sizes)} codes a row, up to "
            f"{max(tokenizing.codebook_sizes)} different ones; audio_config takes {audio.num_channels} of "
            f"{audio.vocab_size}"
        )
    with torch.device("meta"):
        encoder, tokenizer = MimoAudioEncoder(audio), MimoAudioTokenizer(tokenizing)
    digest = load_module(
        encoder,
        source,
        is_ours=lambda name: name.startswith(_AUDIO_PREFIXES),
        what="the checkpoint's speech_embeddings.* and audio_encoder.* tensors",
        dtype=dtype,
        device=torch.device(device),
    )
    tokenizer_digest = load_module(
        tokenizer,
        tokenizer_source,
        is_ours=lambda name: name.startswith(_TOKENIZER_PREFIX) and not name.endswith(_TRAINING_ENDINGS),
        what=f"the tensors in {AUDIO_TOKENIZER_FOLDER}",
        dtype=torch.float32,
        device=torch.device(device),
    )
    return SegmentedAudioEncoder(
        tokenizer,
        encoder,
        identity=_identity(
            f"mimo_audio/v{_AUDIO_VERSION}", dtype, [digest, tokenizer_digest], [audio, tokenizing]
        ),
        max_segment_frames=config["audio_config"]["audio_segment_size"],
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


def audio_tokenizer_tensors(tokenizer_config: Mapping[str, Any]) -> dict[str, tuple[int, ...]]:
    """Shapes of the tensors that `AUDIO_TOKENIZER_FOLDER` must hold, by hub name."""
    with torch.device("meta"):
        module = MimoAudioTokenizer(MimoAudioTokenizerConfig.from_dict(tokenizer_config))
    return {name: tuple(tensor.shape) for name, tensor in module.state_dict().items()}


def _identity(name: str, dtype: torch.dtype, digests: Sequence[str], configs: Sequence[Any]) -> str:
    # Windows and rotary bases change embeddings, and no weight.
    settings = json.dumps([asdict(config) for config in configs], sort_keys=True, default=sorted)
    digest = blake3("\n".join([*digests, settings]).encode()).hexdigest()
    return f"{name}/{str(dtype).removeprefix('torch.')}/{digest}"
