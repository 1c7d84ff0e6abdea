"""Trains the demo model stage by stage; stopped, it goes on where it was.

    python -m samples.demo_training.train RUN_FOLDER [--minutes 30] [--stages vision,ear,...]

Stages: vision and ear learn from dense labels; codebooks are fitted; hearing reads the codes; answers and together
teach the decoder, first while the encoders stand still, then with them; drafting teaches the multi-token-prediction
layers.
"""

from __future__ import annotations

import argparse
import math
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
import torch.distributed
from torch.multiprocessing.spawn import spawn

from mm_pipeline.encoders.mimo_audio_tokenizer import MimoAudioTokenizer
from samples.demo_training.architecture import audio_encoder, audio_tokenizer, vision_encoder
from samples.demo_training.processes import Shard
from samples.demo_training.stages.decoder import DecoderStage, Model
from samples.demo_training.stages.drafting import DraftingStage
from samples.demo_training.stages.sound import EmbeddingStage, FeatureStage, fit_codebooks
from samples.demo_training.stages.vision import VisionStage
from samples.demo_training.training import Rates, Run, Stage, train

_SEED = 4_000_000
_CODEBOOK_SOUNDS = 1600
# At the full rate the encoders forgot: after 150 steps their labels were twice as far off.
_GENTLY = {"vision": 0.2, "hearing": 0.2, "picture_heads": 0.2}


STEPS = {"vision": 4400, "ear": 900, "hearing": 700, "answers": 3000, "together": 300, "drafting": 300}


def stage_of(name: str, run: Run) -> Stage:
    """The stage, on what the stages before it left in the run's folder."""
    steps = STEPS.get(name, 0)
    if name == "vision":
        return VisionStage(steps)
    if name == "ear":
        return FeatureStage(steps)
    if name == "hearing":
        return EmbeddingStage(steps, trained_tokenizer(run))
    if name == "answers":
        return DecoderStage(name, steps, first_model(run), trained_tokenizer(run))
    if name == "together":
        return DecoderStage(
            name,
            steps,
            model_after("answers", run),
            trained_tokenizer(run),
            rates=Rates(adamw=1e-3, muon=1e-3, weight_decay=0.03, shares=_GENTLY),
            train_encoders=True,
        )
    if name == "drafting":
        before = "together" if run.state_path("together").exists() else "answers"
        return DraftingStage(steps, model_after(before, run), trained_tokenizer(run))
    raise ValueError(f"there is no stage {name!r}; there are {', '.join(STAGES)}")


STAGES = ("vision", "ear", "codebooks", "hearing", "answers", "together", "drafting")


def trained_tokenizer(run: Run) -> MimoAudioTokenizer:
    """With its codebooks."""
    tokenizer = audio_tokenizer()
    tokenizer.load_state_dict(torch.load(run.state_path("codebooks"), weights_only=True)["module"])
    tokenizer.requires_grad_(False)
    return tokenizer


def first_model(run: Run) -> Model:
    """A new decoder; the encoders as their own stages left them."""
    torch.manual_seed(_SEED)
    model = Model(vision_encoder(), audio_encoder())
    model.vision.load_state_dict(_part_of(run, "vision", "encoder."))
    model.hearing.load_state_dict(_part_of(run, "hearing", "encoder."))
    model.picture_heads.load_state_dict(
        {
            name: tensor
            for name, tensor in _part_of(run, "vision", "").items()
            if not name.startswith("encoder.")
        }
    )
    return model


def model_after(stage: str, run: Run) -> Model:
    """What the stage left."""
    model = Model(vision_encoder(), audio_encoder())
    model.load_state_dict(torch.load(run.state_path(stage), weights_only=True)["module"])
    return model


def _part_of(run: Run, stage: str, prefix: str) -> Mapping[str, Any]:
    state = torch.load(run.state_path(stage), weights_only=True)["module"]
    return {name.removeprefix(prefix): tensor for name, tensor in state.items() if name.startswith(prefix)}


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


def run_stages(names: Sequence[str], run: Run) -> None:
    for name in names:
        if name == "codebooks":
            if run.shard.index == 0:
                _fit(run)
            if run.shard.count > 1:
                torch.distributed.barrier()
        elif not train(stage_of(name, run), run):
            if run.shard.index == 0:
                print(f"stopped in stage {name}; the same command goes on")
            return
    if run.shard.index == 0:
        print("every stage asked for is done")


def _take_part(index: int, store: str, arguments: argparse.Namespace) -> None:
    """One of several processes. store: a file's URL, where they meet."""
    count = arguments.processes
    torch.set_num_threads(arguments.threads)
    if count > 1:
        torch.distributed.init_process_group("gloo", init_method=store, rank=index, world_size=count)
    run = Run(
        folder=arguments.folder,
        deadline=time.monotonic() + 60 * arguments.minutes,
        shard=Shard(index, count),
        bf16=arguments.bf16,
    )
    run_stages(arguments.stages, run)
    if count > 1:
        torch.distributed.destroy_process_group()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path, help="where states and the log are kept")
    parser.add_argument("--minutes", type=float, default=math.inf, help="save and stop after this long")
    parser.add_argument(
        "--stages", default=STAGES, type=lambda text: text.split(","), help="which, in order (default: all)"
    )
    parser.add_argument("--processes", type=int, default=2, help="that share the work, one per core")
    parser.add_argument("--threads", type=int, default=1, help="of each process")
    parser.add_argument(
        "--bf16", action="store_true", help="multiply in bfloat16: on CPUs with instructions for it"
    )
    arguments = parser.parse_args()
    arguments.folder.mkdir(parents=True, exist_ok=True)
    # The first process is this one, so that whoever stops it stops all after the same step.
    with tempfile.TemporaryDirectory() as folder:
        store = f"file://{folder}/store"
        others = spawn(_follow, (store, arguments), nprocs=arguments.processes - 1, join=False)
        _take_part(0, store, arguments)
        while arguments.processes > 1 and not others.join():
            pass


def _follow(number: int, store: str, arguments: argparse.Namespace) -> None:
    _take_part(number + 1, store, arguments)


if __name__ == "__main__":
    main()
