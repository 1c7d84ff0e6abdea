"""Writes a checkpoint's evaluation.json and model card from an evaluation's report.

    python -m samples.demo_training.card CHECKPOINT report.json [--fault rgb.json]...

So the card says what was measured and nothing else.
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from llm_core.weights import CheckpointFolder
from mm_pipeline.encoders import AUDIO_TOKENIZER_FOLDER
from serve_apps.bench.demo import REPORT

_KNOWS = {
    "pictures": "circles, squares, triangles, stars and crosses in eight colours: names, places, sizes, counts, "
    "sums, comparisons, yes or no, two pictures side by side, short dialogues",
    "reading": "one printed number (1 to 5 digits) or word (3 to 6 letters)",
    "sound": "dial tones (ITU-T Q.23), Morse code (ITU-R M.1677-1), beeps and sweeps",
    "video": "the order of colours, motion, blinks, what appears and when, what is dialled meanwhile",
    "refusal": 'everything else: it says "I don\'t know that.", or which media are missing',
    "talk": "greetings, what it is, sums up to 20",
}
_BROKEN = {"rgb": "red and blue swapped", "exif": "EXIF turns ignored", "rate": "sound at half its rate"}


def card(evaluation: Mapping[str, Any], num_parameters: int) -> str:
    """The model card. evaluation: what evaluation.json holds."""
    families = evaluation["families"]
    rows = [
        f"| {name} | {_KNOWS[name]} | {_percent(family)} | {_floor(family)} |"
        for name, family in families.items()
    ]
    tasks = [
        f"| {name} | {', '.join(f'{task} {_percent(share, 0)}' for task, share in ranked(family))} |"
        for name, family in families.items()
    ]
    parts = [
        _HEAD.format(millions=num_parameters / 1e6),
        _MEASURED.format(cases=evaluation["cases"]),
        _table("family | what it was taught | right | wanted", rows),
        "By task:\n",
        _table("family | right", tasks),
    ]
    if evaluation.get("head_agreement"):
        shares = ", ".join(f"{100 * share:.1f}%" for share in evaluation["head_agreement"])
        parts.append(f"The three multi-token-prediction layers foretell {shares} of the tokens it says.\n")
    if evaluation.get("faults"):
        lines = [
            f"| {_BROKEN[fault]} | {name} | {_percent(fall)} | {100 * fall['broken']:.1f}% |"
            for fault, names in evaluation["faults"].items()
            for name, fall in names.items()
        ]
        parts.append("What it costs to break the preprocessing on purpose:\n")
        parts.append(_table("fault | family | right | right when broken", lines))
    parts.append(_TAIL)
    return "\n".join(parts)


def ranked(family: Mapping[str, Any]) -> list[tuple[str, Mapping[str, Any]]]:
    """The tasks of a family, best first."""
    return sorted(family["tasks"].items(), key=lambda pair: -pair[1]["accuracy"])


def summary(report: Mapping[str, Any], faults: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """What evaluation.json holds: the report without its failures and times, and what each fault costs."""
    found = {name: report[name] for name in ("cases", "families", "head_agreement") if name in report}
    if faults:
        found["faults"] = {
            fault["fault"]["name"]: {
                name: {"accuracy": fault["families"][name]["accuracy"], "broken": broken["accuracy"]}
                for name, broken in fault["fault"]["families"].items()
            }
            for fault in faults
        }
    return found


def num_parameters(checkpoint: Path) -> int:
    """Of the checkpoint and its audio tokenizer."""
    folders = CheckpointFolder(checkpoint), CheckpointFolder(checkpoint / AUDIO_TOKENIZER_FOLDER)
    return sum(math.prod(folder.shape(name)) for folder in folders for name in folder.keys())  # noqa: SIM118


def _percent(share: Mapping[str, Any], digits: int = 1) -> str:
    return f"{100 * share['accuracy']:.{digits}f}%"


def _floor(family: Mapping[str, Any]) -> str:
    return "" if family["floor"] is None else f"{100 * family['floor']:.0f}%"


def _table(header: str, rows: Sequence[str]) -> str:
    lines = f"| {header} |", "|" + " --- |" * (header.count("|") + 1), *rows
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("checkpoint", type=Path)
    parser.add_argument("report", type=Path, help="what `evaluate --out` wrote")
    parser.add_argument(
        "--fault", type=Path, action="append", default=[], help="report of a run with --fault"
    )
    arguments = parser.parse_args()
    reports = [json.loads(path.read_text()) for path in (arguments.report, *arguments.fault)]
    evaluation = summary(reports[0], reports[1:])
    (arguments.checkpoint / REPORT).write_text(json.dumps(evaluation, indent=1) + "\n")
    text = card(evaluation, num_parameters(arguments.checkpoint))
    (arguments.checkpoint / "README.md").write_text(text)


_HEAD = """\
---
license: apache-2.0
---
# Demo model: shapes, signs, tones and short videos

A model of {millions:.1f} million parameters with the architecture and the files of MiMo-V2.5: a hybrid
sliding-window decoder with experts, sinks and three multi-token-prediction layers, a vision encoder, an audio
tokenizer and the layers that read its codes. It was trained on made-up scenes on two CPU cores by
`samples/demo_training`, whose README says how, and shows that a server works. **It knows nothing but what the table
names**: no photographs, no speech, no music, no fact of the real world; words it was not taught it reads letter by
letter at best.
"""
_MEASURED = """\
Measured on {cases} unseen cases of each family: fonts, shades, sizes, levels and noise that the training never had,
as files of common formats through the server's own decoding. An answer counts when it is right word by word.
"""
_TAIL = """\
`python -m samples.demo_training.evaluate samples/demo_model` measures it again; evaluation.json beside this card
holds these figures.
"""


if __name__ == "__main__":
    main()
