"""Draws a training run: loss and shares of right answers of each stage, from the run's log.

python -m samples.demo_training.plot RUN_FOLDER out.png
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

# Numbers that are logged but are no shares of right answers: parts of the loss.
_NOT_SHARES = ("stage", "step", "seconds", "loss", "place", "starts")


@dataclass(frozen=True, kw_only=True)
class Curves:
    """What one stage logged. steps: ascending. minutes: at the last step. loss, shares: a value per step, NaN where
    there is none.
    """

    stage: str
    steps: list[int]
    minutes: float
    loss: list[float]
    shares: dict[str, list[float]]


def read_curves(log: Path) -> list[Curves]:
    """Stages in the order of their first entries. Raises ValueError when nothing can be drawn."""
    stages: dict[str, dict[int, dict[str, Any]]] = {}
    for line in log.read_text().splitlines():
        entry = json.loads(line)
        if "step" in entry:
            entries = stages.setdefault(entry["stage"], {})
            # A stage that was begun anew, or went on from an earlier state, replaces what it had done after that.
            for later in [step for step in entries if step >= entry["step"]]:
                del entries[later]
            entries[entry["step"]] = entry
    if not stages:
        raise ValueError(f"{log} has no steps; train for a while first")
    return [_curves(stage, list(entries.values())) for stage, entries in stages.items()]


def _curves(stage: str, entries: Sequence[dict[str, Any]]) -> Curves:
    def values(name: str) -> list[float]:
        return [float(entry.get(name, math.nan)) for entry in entries]

    names = dict.fromkeys(name for entry in entries for name in entry if name not in _NOT_SHARES)
    return Curves(
        stage=stage,
        steps=[entry["step"] for entry in entries],
        minutes=entries[-1]["seconds"] / 60,
        loss=values("loss"),
        shares={name: values(name) for name in names},
    )


def draw(curves: Sequence[Curves]) -> Figure:
    """Two panels per stage, loss above and shares below."""
    figure = Figure(figsize=(4.2 * len(curves), 6.4), layout="constrained")
    axes = figure.subplots(2, len(curves), squeeze=False)
    for column, stage in enumerate(curves):
        above, below = axes[0][column], axes[1][column]
        above.set_title(f"{stage.stage}: {stage.steps[-1]} steps, {stage.minutes:.0f} min")
        above.plot(stage.steps, stage.loss, color="black", linewidth=1.2)
        _scale(above, "loss" if column == 0 else "")
        if min(stage.loss) > 0:
            above.set_yscale("log")
        for name, values in stage.shares.items():
            below.plot(stage.steps, values, linewidth=1.2, label=name.removesuffix("_right"))
        _scale(below, "share right" if column == 0 else "")
        below.set_ylim(0, 1.02)
        below.set_xlabel("step")
        if stage.shares:
            below.legend(fontsize="small", loc="lower right")
    return figure


def _scale(axes: Axes, label: str) -> None:
    axes.set_ylabel(label)
    axes.grid(visible=True, which="both", alpha=0.25)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("run", type=Path, help="folder of the training run")
    parser.add_argument("picture", type=Path, help="where to write it; .png or .svg")
    arguments = parser.parse_args()
    try:
        curves = read_curves(arguments.run / "log.jsonl")
    except (OSError, ValueError) as error:
        raise SystemExit(f"plot: {error}") from None
    draw(curves).savefig(arguments.picture, dpi=110)
    last = curves[-1]
    print(f"{arguments.picture}: {len(curves)} stages, the last one {last.stage} at step {last.steps[-1]}")


if __name__ == "__main__":
    main()
