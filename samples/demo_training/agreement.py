"""How often the multi-token-prediction layers foretell what the model then says, on the evaluation's cases.

    python -m samples.demo_training.agreement RUN_FOLDER REPORT [--cases 100]

REPORT is what `evaluate --out` wrote: the conversations are those it held, with the model's own answers. The shares
are added to it as "head_agreement", one for each layer.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from samples.demo_training.cases import FAMILIES, case_rng, sample_of
from samples.demo_training.conversations import Conversation, Writer
from samples.demo_training.scenes.base import Sample
from samples.demo_training.stages.decoder import Model
from samples.demo_training.stages.drafting import drafts
from samples.demo_training.train import model_after, trained_tokenizer
from samples.demo_training.training import Run

_AT_ONCE = 8


def said(report: Mapping[str, Any], num_cases: int) -> Iterator[tuple[Sample, str, int]]:
    """The samples of the first cases of each family with the answers that the model gave, family and number.

    Raises ValueError where the report has fewer cases.
    """
    if report["cases"] < num_cases:
        raise ValueError(f"the report has {report['cases']} cases of each family, not {num_cases}")
    failures = {failure["case"]: failure["turns"] for failure in report["failures"]}
    for family in FAMILIES:
        for number in range(num_cases):
            sample = sample_of(family, number, case_rng(family, number))
            wrong = failures.get(f"{family}-{number}")
            if wrong is not None:
                turns = [
                    replace(turn, answer=other["answer"])
                    for turn, other in zip(sample.turns, wrong, strict=True)
                ]
                sample = replace(sample, turns=tuple(turns))
            yield sample, family, number


def agreement(model: Model, conversations: Sequence[Conversation]) -> list[float]:
    """Per layer, the share of tokens of answers at which its choice is the decoder's own."""
    num_layers = model.decoder.config.num_mtp_layers
    right, asked = [0] * num_layers, [0] * num_layers
    for first in range(0, len(conversations), _AT_ONCE):
        with torch.no_grad():
            for layer, (logits, targets) in enumerate(drafts(model, conversations[first : first + _AT_ONCE])):
                right[layer] += int((logits.argmax(dim=-1) == targets).sum())
                asked[layer] += len(targets)
    return [round(got / of, 4) for got, of in zip(right, asked, strict=True)]


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("run", type=Path, help="folder of the training run")
    parser.add_argument("report", type=Path, help="what evaluate wrote")
    parser.add_argument("--cases", type=int, default=100, help="of each family (default: %(default)s)")
    arguments = parser.parse_args()
    run = Run(folder=arguments.run)
    report = json.loads(arguments.report.read_text())
    model, tokenizer = model_after("drafting", run).eval(), trained_tokenizer(run)

    def codes(mel: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            found: torch.Tensor = tokenizer(mel)
        return found

    writer = Writer(codes)
    try:
        conversations = [
            writer.write(sample, case_rng(family, number))
            for sample, family, number in said(report, arguments.cases)
        ]
    except ValueError as error:
        raise SystemExit(f"agreement: {error}") from None
    report["head_agreement"] = agreement(model, conversations)
    arguments.report.write_text(json.dumps(report, indent=1) + "\n")
    print(f"layers agree with the decoder's own answers at {report['head_agreement']} of the positions")


if __name__ == "__main__":
    main()
