"""Makes what `make demo` asks about: `python -m samples.make_demo_media [folder]` (default: samples/demo_media).

Scenes of samples/demo_training that neither the training nor the evaluation has, one for each thing the demo model
learnt, as files of common formats, and questions.json: what is asked about which files, and the right answers.
Needs the extra "training".
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from samples.demo_training.cases import FAMILIES, make_case

# The evaluation asks a family's cases from 0 on.
_FIRST = 100_000
TASKS = (
    ("pictures", "describe"),
    ("pictures", "count"),
    ("pictures", "relation"),
    ("pictures", "more"),
    ("pictures", "dialogue"),
    ("reading", "number"),
    ("reading", "word"),
    ("sound", "dtmf"),
    ("sound", "morse"),
    ("sound", "direction"),
    ("video", "colours"),
    ("video", "when"),
    ("video", "dialled"),
    ("talk", "sum"),
    ("refusal", "outside"),
)
# Files that the training's generator did not make, with what a person sees or hears in them.
_OTHERS = (
    ("pictures", "../pictures/shapes.webp", "image", (("How many red circles are there?", "3."),)),
    ("sound", "../clips/phone_number.wav", "audio", (("Which keys were dialled?", "4072"),)),
)


def make_all(folder: Path) -> None:
    """Writes the media and questions.json, under a megabyte together."""
    folder.mkdir(parents=True, exist_ok=True)
    asked = [
        {
            "family": family,
            "files": [{"modality": modality, "path": path}],
            "turns": [{"question": question, "answer": answer} for question, answer in turns],
        }
        for family, path, modality, turns in _OTHERS
    ]
    for family, task in TASKS:
        tasks = FAMILIES[family].tasks
        case = make_case(family, _FIRST * len(tasks) + tasks.index(task), folder)
        files = []
        for number, file in enumerate(case.files):
            path = file.path.rename(folder / f"{family}_{task}_{number + 1}{file.path.suffix}")
            files.append({"modality": file.modality, "path": path.name})
        turns = [{"question": turn.question, "answer": turn.answer} for turn in case.turns]
        asked.append({"family": family, "files": files, "turns": turns})
    text = json.dumps(asked, indent=1) + "\n"
    (folder / "questions.json").write_text(text)


if __name__ == "__main__":
    make_all(Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).with_name("demo_media"))
