"""A trained model to a checkpoint folder in the hub's format, in bfloat16, as any other checkpoint is stored.

    python -m samples.demo_training.export RUN_FOLDER OUT_FOLDER [--stage NAME]

Takes what the last finished stage of the run left; with --stage, what that stage has left so far.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import torch

from llm_core.weights import TensorSpec
from mm_pipeline.encoders import AUDIO_TOKENIZER_FOLDER
from mm_pipeline.encoders.mimo_audio_tokenizer import MimoAudioTokenizer
from samples.demo_training.architecture import tokenizer_config
from samples.demo_training.stages.decoder import Model
from samples.demo_training.train import model_after, stage_of, trained_tokenizer
from samples.demo_training.training import Run
from samples.demo_training.vocabulary import full_config, load_tokenizer
from serve_apps.checkpoint.make import checkpoint_tensors, tokenizer_tensors
from serve_apps.checkpoint.shards import write_weights
from serve_apps.checkpoint.tokenizer import write_tokenizer

STAGES = ("answers", "together", "drafting")
"""Stages that leave a model that answers, in their order."""
HEADS_FOLDER = "training_heads"
"""Folder in the checkpoint with what only training needs; nothing that serves reads it."""

_MAX_SHARD_BYTES = 200_000_000
_METADATA = {"made_by": "samples/demo_training"}


def export(folder: Path, model: Model, tokenizer: MimoAudioTokenizer) -> int:
    """Writes config, weights and tokenizer files into `folder`, which may exist; returns the bytes written."""
    folder.mkdir(parents=True, exist_ok=True)
    config = full_config()
    _write(folder, hub_tensors(model), checkpoint_tensors(config))
    audio_folder = folder / AUDIO_TOKENIZER_FOLDER
    audio_folder.mkdir(exist_ok=True)
    audio = tokenizer_config()
    _write(audio_folder, tokenizer.state_dict(), tokenizer_tensors(audio))
    heads = heads_of(model)
    specs = {name: TensorSpec(shape=tuple(head.shape), dtype=torch.bfloat16) for name, head in heads.items()}
    (folder / HEADS_FOLDER).mkdir(exist_ok=True)
    _write(folder / HEADS_FOLDER, heads, specs)
    write_tokenizer(folder, load_tokenizer())
    ends = {name: config[name] for name in ("eos_token_id", "pad_token_id")}
    generation = {"do_sample": False, **ends}
    for path, content in (
        (audio_folder / "config.json", audio),
        (folder / "generation_config.json", generation),
        (folder / "config.json", config),
    ):
        path.write_text(json.dumps(content, indent=1) + "\n")
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def hub_tensors(model: Model) -> dict[str, torch.Tensor]:
    """The model's tensors under the hub's names, attention projections fused."""
    config = model.decoder.config
    named = {f"visual.{name}": tensor for name, tensor in model.vision.state_dict().items()}
    named |= model.hearing.state_dict()
    decoder = model.decoder.state_dict()
    for name, tensor in decoder.items():
        if name.startswith("lm_head."):
            named[name] = tensor
        elif not any(f".self_attn.{part}_proj." in name for part in "qkv"):
            named[f"model.{name}"] = tensor
    for name in decoder:
        if name.endswith(".q_proj.weight"):
            stem = name.removesuffix("q_proj.weight")
            parts = [decoder[f"{stem}{part}_proj.weight"] for part in "qkv"]
            named[f"model.{stem}qkv_proj.weight"] = fused(parts, config.qkv_chunks)
    return named


def heads_of(model: Model) -> dict[str, torch.Tensor]:
    """The tensors of the heads that only training has."""
    return {name: tensor for name, tensor in model.state_dict().items() if "_heads." in name}


def fused(parts: list[torch.Tensor], chunks: int) -> torch.Tensor:
    """q, k and v rows to the hub's layout: `chunks` times some rows of each."""
    return torch.cat([part.unflatten(0, (chunks, -1)) for part in parts], dim=1).flatten(0, 1)


def _write(folder: Path, tensors: Mapping[str, torch.Tensor], specs: Mapping[str, TensorSpec]) -> None:
    if tensors.keys() != specs.keys():
        raise ValueError(f"these tensors do not fit the config: {sorted(tensors.keys() ^ specs.keys())}")
    # Routers stay in float32, as they are computed in; the audio tokenizer, in float32 too, is stored narrower.
    stored = {
        name: spec if _is_router(name) else replace(spec, dtype=torch.bfloat16)
        for name, spec in specs.items()
    }
    write_weights(
        folder,
        stored,
        lambda name, spec: tensors[name].detach().to(spec.dtype),
        max_shard_bytes=_MAX_SHARD_BYTES,
        metadata=_METADATA,
    )


def _is_router(name: str) -> bool:
    return ".mlp.gate." in name


def last_finished(run: Run) -> str:
    """The last of `STAGES` that is done. Raises ValueError when none is."""
    for name in reversed(STAGES):
        path = run.state_path(name)
        if path.exists():
            step: int = torch.load(path, weights_only=True, mmap=True)["step"]
            if step >= stage_of(name, run).steps:
                return name
    raise ValueError(
        f"no stage of {run.folder} that can answer is finished; train on, or name one with --stage"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("run", type=Path, help="folder of the training run")
    parser.add_argument("out", type=Path, help="folder of the checkpoint; may exist")
    parser.add_argument("--stage", choices=STAGES, help="take this stage, finished or not")
    arguments = parser.parse_args()
    run = Run(folder=arguments.run)
    try:
        stage = arguments.stage or last_finished(run)
        num_bytes = export(arguments.out, model_after(stage, run), trained_tokenizer(run))
    except (OSError, ValueError) as error:
        raise SystemExit(f"export: {error}") from None
    print(f"{arguments.out}: the model after stage {stage}, {num_bytes / 1e6:.1f} MB")


if __name__ == "__main__":
    main()
