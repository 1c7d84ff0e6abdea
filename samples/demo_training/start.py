"""An exported checkpoint back to a run's folder, to train it on.

    python -m samples.demo_training.start CHECKPOINT RUN_FOLDER
    python -m samples.demo_training.train RUN_FOLDER --stages together,drafting

The stage "answers" and the codebooks are then as if trained there, to the precision that the checkpoint has.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch

from llm_core.weights import CheckpointFolder
from llm_core.weights.mimo_v2 import split_chunks
from mm_pipeline.encoders import AUDIO_TOKENIZER_FOLDER
from mm_pipeline.encoders.mimo_audio_tokenizer import MimoAudioTokenizer
from samples.demo_training.architecture import audio_encoder, audio_tokenizer, vision_encoder
from samples.demo_training.decoder import Attention
from samples.demo_training.export import HEADS_FOLDER
from samples.demo_training.stages.decoder import Model
from samples.demo_training.train import STEPS
from samples.demo_training.training import Run


def load(checkpoint: Path) -> tuple[Model, MimoAudioTokenizer]:
    """What `export` wrote. Raises CheckpointError for another folder, RuntimeError for another shape."""
    model, tokenizer = Model(vision_encoder(), audio_encoder()), audio_tokenizer()
    stored, heads = CheckpointFolder(checkpoint), CheckpointFolder(checkpoint / HEADS_FOLDER)
    model.load_state_dict(
        {
            name: heads.get_tensor(name) if "_heads." in name else _stored(stored, model, name)
            for name in model.state_dict()
        }
    )
    codes = CheckpointFolder(checkpoint / AUDIO_TOKENIZER_FOLDER)
    tokenizer.load_state_dict({name: codes.get_tensor(name) for name in tokenizer.state_dict()})
    return model, tokenizer


def _stored(folder: CheckpointFolder, model: Model, name: str) -> torch.Tensor:
    """A parameter of the model by its name here."""
    part, _, rest = name.partition(".")
    if part == "vision":
        return folder.get_tensor(f"visual.{rest}")
    if part == "hearing":
        return folder.get_tensor(rest)
    if rest.startswith("lm_head."):
        return folder.get_tensor(rest)
    stem, _, kind = rest.removesuffix("_proj.weight").rpartition(".")
    if not stem.endswith(".self_attn") or kind not in ("q", "k", "v"):
        return folder.get_tensor(f"model.{rest}")
    attention = model.decoder.get_submodule(stem)
    assert isinstance(attention, Attention)
    spec = attention.spec
    fused = folder.get_tensor(f"model.{stem}.qkv_proj.weight")
    rows = split_chunks(fused, spec, model.decoder.config.qkv_chunks)
    found: torch.Tensor = rows.split([spec.q_size, spec.k_size, spec.v_size])["qkv".index(kind)]
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("checkpoint", type=Path, help="folder that `export` wrote")
    parser.add_argument("run", type=Path, help="folder of a run that has not begun")
    arguments = parser.parse_args()
    run = Run(folder=arguments.run)
    run.folder.mkdir(parents=True, exist_ok=True)
    begun = [run.state_path(name) for name in ("answers", "codebooks") if run.state_path(name).exists()]
    if begun:
        raise SystemExit(f"start: {begun[0]} is there already; give the folder of a run that has not begun")
    try:
        model, tokenizer = load(arguments.checkpoint)
    except (OSError, ValueError, RuntimeError) as error:
        raise SystemExit(f"start: {error}") from None
    for name, module, steps in (
        ("answers", model, STEPS["answers"]),
        ("codebooks", tokenizer, 1),
    ):
        state = {"module": module.state_dict(), "optimisers": [], "step": steps, "seconds": 0.0}
        torch.save(state, run.state_path(name))
    print(f"{run.folder}: go on with `train {run.folder} --stages together,drafting`")


if __name__ == "__main__":
    main()
