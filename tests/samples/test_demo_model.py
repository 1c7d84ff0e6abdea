"""The demo model that is shipped: small, honest about itself, and it answers."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from samples.demo import MEDIA
from samples.demo_training.askers import LocalAsker
from samples.demo_training.card import card, num_parameters, summary
from samples.demo_training.cases import Case, MediaFile
from samples.demo_training.evaluate import hold
from samples.demo_training.scenes.base import Turn
from samples.demo_training.score import is_right
from serve_apps.bench.demo import REPORT

FOLDER = Path(__file__).parents[2] / "samples" / "demo_model"
EVALUATION: dict[str, Any] = json.loads((FOLDER / REPORT).read_text())
CONVERSATIONS: list[dict[str, Any]] = json.loads((MEDIA / "questions.json").read_text())
LEAST_RIGHT = 9


async def said(asker: LocalAsker, asked: dict[str, Any]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The model's answers in one conversation of questions.json, and the right ones."""
    turns = tuple(Turn(**turn, task="") for turn in asked["turns"])
    files = tuple(MediaFile(modality=file["modality"], path=MEDIA / file["path"]) for file in asked["files"])
    outcome = await hold(asker, Case(family=asked["family"], task="", number=0, turns=turns, files=files))
    return outcome.answers, tuple(turn.answer for turn in turns)


def test_it_is_small() -> None:
    assert sum(path.stat().st_size for path in FOLDER.rglob("*") if path.is_file()) <= 25_000_000


def test_its_card_says_what_was_measured() -> None:
    text = (FOLDER / "README.md").read_text()
    assert text == card(EVALUATION, num_parameters(FOLDER))
    assert EVALUATION["cases"] == 500
    for family in EVALUATION["families"].values():
        assert family["cases"] == 500
        assert f"{100 * family['accuracy']:.1f}%" in text


def test_it_answers_as_the_demo_shows() -> None:
    """Through the service's own decoding, the whole way; on another CPU a few of the 12 may be off."""

    async def ask() -> int:
        asker = LocalAsker(FOLDER)
        try:
            return sum([sum(map(is_right, *await said(asker, asked))) for asked in CONVERSATIONS])
        finally:
            await asker.close()

    assert asyncio.run(ask()) >= LEAST_RIGHT


def test_a_summary_has_figures_and_no_cases() -> None:
    share = {"accuracy": 0.5, "right": 1, "cases": 2}
    families = {"sound": {**share, "floor": 0.95, "tasks": {"dtmf": share}}}
    broken = {"sound": {**share, "accuracy": 0.25}}
    report = {"cases": 2, "seconds": 3.0, "families": families, "failures": [1]}
    fault = {"families": families, "fault": {"name": "rate", "families": broken}}
    found = summary({**report, "head_agreement": [0.9, 0.8, 0.7]}, [fault])
    assert found.keys() == {"cases", "families", "head_agreement", "faults"}
    text = card(found, 1_250_000)
    assert "1.2 million parameters" in text or "1.3 million parameters" in text
    assert (
        "| sound | dial tones (ITU-T Q.23), Morse code (ITU-R M.1677-1), beeps and sweeps | 50.0% | 95% |"
        in text
    )
    assert "| sound | dtmf 50% |" in text
    assert "90.0%, 80.0%, 70.0%" in text
    assert "| sound at half its rate | sound | 50.0% | 25.0% |" in text


@pytest.mark.parametrize("absent", ["head_agreement", "faults"])
def test_a_card_leaves_out_what_was_not_measured(absent: str) -> None:
    evaluation = {name: value for name, value in EVALUATION.items() if name != absent}
    text = card(evaluation, 1)
    assert ("foretell" in text) == ("head_agreement" in evaluation)
    assert ("on purpose" in text) == ("faults" in evaluation)
