"""Makes a MiMo-V2.5-format folder with random weights: something to load, serve and measure.

Names and shapes come from the packages that read them, so a folder made here is what they accept.
"""

from __future__ import annotations

import json
import math
import os
import tempfile
from pathlib import Path

import torch

from llm_core.config import load_config
from llm_core.weights import TensorSpec, decoder_tensors
from mm_pipeline.encoders import AUDIO_TOKENIZER_FOLDER, audio_tokenizer_tensors, encoder_tensors
from serve_apps.checkpoint.initial import initial_tensor
from serve_apps.checkpoint.shards import INDEX_NAME, read_metadata, write_weights
from serve_apps.checkpoint.sizes import Size, audio_tokenizer_config, checkpoint_config
from serve_apps.checkpoint.tokenizer import NUM_TOKENS, TOKEN_IDS, build_tokenizer, write_tokenizer

MAX_SHARD_BYTES = 200_000_000
MADE_BY = {"made_by": "mmserve make-checkpoint"}
_ALLOWED = "give a folder that is new, empty or made by this command"


class NotOurFolderError(ValueError):
    """The target holds something that this command did not make."""


def make_checkpoint(folder: Path, size: Size, seed: int = 0) -> None:
    """Writes config, weights, tokenizer, chat template and model card into `folder`, the audio tokenizer into a
    folder inside it.

    The same (size, seed) gives the same bytes. A folder made earlier by this function is replaced; files of
    other names in it stay. Everything is written next to the folder first, so a stop half way leaves no
    half-made checkpoint.

    Raises:
        NotOurFolderError: `folder` is a file, or holds files and no checkpoint made here.
        ValueError: an unknown size.
    """
    config = checkpoint_config(size)
    _check_target(folder)
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=f".{folder.name}-", dir=folder.resolve().parent) as staging_name:
        staging = Path(staging_name)
        _write_files(staging, config, size, seed)
        (folder / AUDIO_TOKENIZER_FOLDER).mkdir(exist_ok=True)
        for place in (folder, folder / AUDIO_TOKENIZER_FOLDER):
            for old in (*place.glob("*.safetensors"), place / INDEX_NAME):
                old.unlink(missing_ok=True)
        made = [path.relative_to(staging) for path in staging.rglob("*") if path.is_file()]
        # config.json goes last: whoever finds it finds the rest.
        for name in sorted(made, key=lambda path: path == Path("config.json")):
            os.replace(staging / name, folder / name)


def checkpoint_tensors(config: dict[str, object]) -> dict[str, TensorSpec]:
    """Every tensor of a checkpoint with this config.json, by hub name: text, MTP, vision, audio."""
    encoders = {
        name: TensorSpec(shape=tuple(shape), dtype=torch.bfloat16)
        for name, shape in encoder_tensors(config).items()
    }
    return decoder_tensors(load_config(config)) | encoders


def tokenizer_tensors(config: dict[str, object]) -> dict[str, TensorSpec]:
    """Every tensor of the audio tokenizer with this config.json, in float32 as they are computed with."""
    return {
        name: TensorSpec(shape=tuple(shape), dtype=torch.float32)
        for name, shape in audio_tokenizer_tensors(config).items()
    }


def _check_target(folder: Path) -> None:
    if not folder.exists():
        return
    if not folder.is_dir():
        raise NotOurFolderError(f"{folder} is a file; {_ALLOWED}")
    ours = any(MADE_BY.items() <= read_metadata(path).items() for path in folder.glob("*.safetensors"))
    if any(folder.iterdir()) and not ours:
        raise NotOurFolderError(f"{folder} holds files that this command did not make; {_ALLOWED}")


def _write_files(folder: Path, config: dict[str, object], size: Size, seed: int) -> None:
    tensors = checkpoint_tensors(config)
    _write_tensors(folder, tensors, seed)
    audio_tokenizer = audio_tokenizer_config(size)
    audio_tensors = tokenizer_tensors(audio_tokenizer)
    audio_folder = folder / AUDIO_TOKENIZER_FOLDER
    audio_folder.mkdir()
    _write_tensors(audio_folder, audio_tensors, seed)
    (audio_folder / "config.json").write_text(json.dumps(audio_tokenizer, indent=1) + "\n")
    write_tokenizer(folder, build_tokenizer())
    generation = {
        "do_sample": True,
        "eos_token_id": TOKEN_IDS["<|im_end|>"],
        "pad_token_id": TOKEN_IDS["<|endoftext|>"],
        "temperature": 1.0,
        "top_p": 0.95,
    }
    (folder / "generation_config.json").write_text(json.dumps(generation, indent=2) + "\n")
    (folder / "config.json").write_text(json.dumps(config, indent=1) + "\n")
    (folder / "README.md").write_text(_model_card(size, seed, [*tensors.values(), *audio_tensors.values()]))


def _write_tensors(folder: Path, tensors: dict[str, TensorSpec], seed: int) -> None:
    write_weights(
        folder,
        tensors,
        lambda name, spec: initial_tensor(name, spec.shape, spec.dtype, seed=seed, num_tokens=NUM_TOKENS),
        max_shard_bytes=MAX_SHARD_BYTES,
        metadata=MADE_BY,
    )


def _model_card(size: Size, seed: int, tensors: list[TensorSpec]) -> str:
    num_parameters = sum(math.prod(spec.shape) for spec in tensors)
    return f"""\
---
license: apache-2.0
---
# Random MiMo-V2.5-format checkpoint ({size})

**The weights are random. Whatever this model says is noise.** It has the file format, tensor names and
architecture of MiMo-V2.5 (hybrid sliding-window text decoder with mixture of experts, multi-token-prediction
layers, vision encoder, audio encoder, audio tokenizer), {num_parameters / 1e6:.1f} million parameters, and a
byte-level tokenizer of {NUM_TOKENS} tokens. It serves to load, run and measure the software, nothing else.

Made by `mmserve make-checkpoint --size {size} --seed {seed}`; the same command makes the same files.
"""
