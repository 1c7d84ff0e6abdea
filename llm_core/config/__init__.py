"""A checkpoint's config.json -> `DecoderConfig`. Each model family has a file of its own."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from llm_core.config import mimo_v2
from llm_core.config.base import AttentionSpec, DecoderConfig, Fp8Blocks, LayerKind, LayerSpec, MoeSpec
from llm_core.errors import CheckpointError

__all__ = [
    "AttentionSpec",
    "DecoderConfig",
    "Fp8Blocks",
    "LayerKind",
    "LayerSpec",
    "MoeSpec",
    "load_config",
]


def load_config(source: Path | Mapping[str, Any]) -> DecoderConfig:
    """Decoder configuration of a checkpoint folder or of a parsed config.json.

    Raises:
        CheckpointError: no config.json, an unknown model_type, or a missing or unsupported field.
    """
    if isinstance(source, Path):
        path = source / "config.json"
        if not path.is_file():
            raise CheckpointError(f"{source} has no config.json; give the folder of a checkpoint")
        raw = json.loads(path.read_text())
    else:
        raw = dict(source)
    model_type = raw.get("model_type")
    if model_type not in mimo_v2.MODEL_TYPES:
        raise CheckpointError(
            f"config.json has model_type {model_type!r}; supported: {', '.join(mimo_v2.MODEL_TYPES)}"
        )
    return mimo_v2.read(raw)
