"""Where the golden fixtures are and how they are read. Knows their file form, nothing of what they test."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file


def golden_dir() -> Path:
    """MM_GOLDEN_DIR when it is set, else the trimmed copies next to the tests."""
    override = os.environ.get("MM_GOLDEN_DIR")
    return Path(override) if override else Path(__file__).parent / "data" / "golden"


def load_golden(*names: str) -> dict[str, torch.Tensor]:
    """Tensors of the first of `names` that exists, given without the suffix."""
    for name in names:
        path = golden_dir() / f"{name}.safetensors"
        if path.exists():
            return load_file(path)
    raise FileNotFoundError(
        f"none of {', '.join(names)} in the golden folder; set MM_GOLDEN_DIR to a folder with it"
    )


def load_golden_json(name: str) -> Any:
    """A JSON file of the golden folder, by its name without the suffix."""
    return json.loads((golden_dir() / f"{name}.json").read_text())
