"""Trains the demo model stage by stage; stopped, it goes on where it was.

    python -m samples.demo_training.train RUN_FOLDER [--minutes 30] [--stages vision,ear,...]

Stages: vision and ear learn from dense labels; codebooks are fitted; hearing reads the codes; language, answers
and together teach the decoder, first without pictures, then with everything, then with the encoders; drafting
teaches the multi-token-prediction layers.
"""

from __future__ import annotations

import argparse
import math
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from mm_pipeline.encoders.mimo_audio_tokenizer import MimoAudioTokenizer
from samples.demo_training.architecture import audio_encoder, audio_tokenizer, vision_encoder
from samples.demo_training.stages.decoder import WITHOUT_EYES, DecoderStage, Model
from samples.demo_training.stages.drafting import DraftingStage
from samples.demo_training.stages.sound import EmbeddingStage, FeatureStage, fit_codebooks
from samples.demo_training.stages.vision import VisionStage
from samples.demo_training.training import Run, Stage, train

_SEED = 4_000_000
_CODEBOOK_SOUNDS = 1600


def stage_of(name: str, run: Run) -> Stage:
    """The stage, on what the stages before it left in the run's folder."""
    if name == "vision":
        return VisionStage(5000)
    if name == "ear":
        return FeatureStage(900)
    if name == "hearing":
        return EmbeddingStage(700, trained_tokenizer(run))
    if name == "language":
        return DecoderStage(
            name, 800, first_model(run), trained_tokenizer(run), plan=WITHOUT_EYES, learning_rate=2e-3
        )
    if name == "answers":
        return DecoderStage(name, 3000, model_after("language", run), trained_tokenizer(run))
    if name == "together":
        return DecoderStage(
            name,
            1000,
            model_after("answers", run),
            trained_tokenizer(run),
            learning_rate=5e-4,
            train_encoders=True,
        )
    if name == "drafting":
        return DraftingStage(500, model_after("together", run), trained_tokenizer(run))
    raise ValueError(f"there is no stage {name!r}; there are {', '.join(STAGES)}")


STAGES = ("vision", "ear", "codebooks", "hearing", "language", "answers", "together", "drafting")


def trained_tokenizer(run: Run) -> MimoAudioTokenizer:
    """With its codebooks."""
    tokenizer = audio_tokenizer()
    tokenizer.load_state_dict(torch.load(run.state_path("codebooks"), weights_only=True)["module"])
    tokenizer.requires_grad_(False)
    return tokenizer


def first_model(run: Run) -> Model:
    """A new decoder; the encoders as far as they are trained."""
    torch.manual_seed(_SEED)
    model = Model(vision_encoder(), audio_encoder())
    if run.state_path("vision").exists():
        model.vision.load_state_dict(_encoder_of(run, "vision"))
    model.hearing.load_state_dict(_encoder_of(run, "hearing"))
    return model


def model_after(stage: str, run: Run) -> Model:
    """What the stage left; before "together", the vision encoder of its own stage."""
    model = first_model(run)
    state = torch.load(run.state_path(stage), weights_only=True)["module"]
    if stage == "language":
        state = {name: tensor for name, tensor in state.items() if not name.startswith("vision.")}
        model.load_state_dict(state, strict=False)
    else:
        model.load_state_dict(state)
    return model


def _encoder_of(run: Run, stage: str) -> Mapping[str, Any]:
    state = torch.load(run.state_path(stage), weights_only=True)["module"]
    return {
        name.removeprefix("encoder."): tensor for name, tensor in state.items() if name.startswith("encoder.")
    }


def _fit(run: Run) -> None:
    path = run.state_path("codebooks")
    if path.exists():
        return
    tokenizer = audio_tokenizer()
    state = torch.load(run.state_path("ear"), weights_only=True)["module"]
    prefix = "tokenizer."
    tokenizer.load_state_dict(
        {name.removeprefix(prefix): tensor for name, tensor in state.items() if name.startswith(prefix)}
    )
    begun = time.monotonic()
    left = fit_codebooks(tokenizer, _CODEBOOK_SOUNDS)
    seconds = time.monotonic() - begun
    run.log({"stage": "codebooks", "seconds": round(seconds, 1), "left": [round(share, 4) for share in left]})
    torch.save({"module": tokenizer.state_dict(), "step": 1, "seconds": seconds}, path)
    print(f"codebooks: share of the variance left after each: {', '.join(f'{share:.3f}' for share in left)}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path, help="where states and the log are kept")
    parser.add_argument("--minutes", type=float, default=math.inf, help="save and stop after this long")
    parser.add_argument("--stages", default=",".join(STAGES), help="which, in order (default: all)")
    parser.add_argument("--threads", type=int, default=2)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    arguments.folder.mkdir(parents=True, exist_ok=True)
    run = Run(folder=arguments.folder, deadline=time.monotonic() + 60 * arguments.minutes)
    for name in arguments.stages.split(","):
        if name == "codebooks":
            _fit(run)
        elif not train(stage_of(name, run), run):
            print(f"stopped in stage {name}; the same command goes on")
            return
    print("every stage asked for is done")


if __name__ == "__main__":
    main()
