"""Trains the demo model stage by stage; stopped, it goes on where it was.

    python -m samples.demo_training.train RUN_FOLDER [--minutes 30] [--stages vision,sound,...]
"""

from __future__ import annotations

import argparse
import math
import time
from collections.abc import Callable
from pathlib import Path

import torch

from samples.demo_training.stages.sound import FeatureStage
from samples.demo_training.stages.vision import VisionStage
from samples.demo_training.training import Run, Stage, train

STAGES: dict[str, Callable[[], Stage]] = {
    "vision": lambda: VisionStage(5000),
    "ear": lambda: FeatureStage(1500),
}


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
        if not train(STAGES[name](), run):
            print(f"stopped in stage {name}; the same command goes on")
            return
    print("every stage is done")


if __name__ == "__main__":
    main()
