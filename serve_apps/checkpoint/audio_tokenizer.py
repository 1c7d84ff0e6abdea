"""The audio tokenizer of a checkpoint folder: a folder inside it, with a config.json and safetensors of its own.

Knows where it is; knows nothing of what it holds.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from llm_core.errors import CheckpointError
from llm_core.weights import CheckpointFolder
from mm_pipeline.encoders import AUDIO_TOKENIZER_FOLDER


def open_audio_tokenizer(folder: Path) -> tuple[dict[str, Any], CheckpointFolder]:
    """Config and tensors of the audio tokenizer in a checkpoint folder.

    Raises:
        CheckpointError: it is not there, or a file of it is damaged.
    """
    place = folder / AUDIO_TOKENIZER_FOLDER
    if not (place / "config.json").is_file():
        raise CheckpointError(
            f"the checkpoint has no {AUDIO_TOKENIZER_FOLDER}/config.json; sound needs the audio tokenizer's "
            f"config.json and model.safetensors in the folder {AUDIO_TOKENIZER_FOLDER}"
        )
    try:
        config: dict[str, Any] = json.loads((place / "config.json").read_text())
    except ValueError as error:
        raise CheckpointError(f"{AUDIO_TOKENIZER_FOLDER}/config.json is not JSON: {error}") from error
    return config, CheckpointFolder(place)
