"""The evaluation of the demo model: what is asked, what counts as right, and that broken preprocessing shows."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from mm_pipeline.audio.decode import decode_audio
from mm_pipeline.image import decode_image
from mm_pipeline.limits import MediaLimits
from samples.demo_training import cases, evaluate, faults
from samples.demo_training.askers import Answer, Message
from samples.demo_training.cases import FAMILIES, Case, make_case
from samples.demo_training.scenes import refusals, talk
from samples.demo_training.scenes.base import Clip, Picture, Sample, Sound, Split, Turn
from samples.demo_training.scenes.outside import TEMPLATES
from samples.demo_training.scenes.outside_words import WORDS
from samples.demo_training.score import is_right
from serve_apps.bench import demo
from serve_apps.bench.server import RunningServer
from serve_apps.checkpoint import make_checkpoint

SPLITS: tuple[Split, ...] = ("train", "test")


def samples(module, split: Split, count: int, **arguments) -> list[Sample]:
    return [module.sample(np.random.default_rng(seed), split, **arguments) for seed in range(count)]


def turn(question: str, answer: str, task: str = "colour") -> Turn:
    return Turn(question=question, answer=answer, task=task)


@pytest.mark.parametrize(
    ("answer", "expected", "right"),
    [
        ("It says STOP.", " it  says stop", True),
        ("415#", "4 1 5 #", True),
        ("3.", "3", True),
        ("3", "4", False),
        ("A red circle.", "A red circle and a blue star.", False),
        ("loud, soft", "loud soft", False),
        ("", "3.", False),
    ],
)
def test_an_answer_is_right_word_by_word(answer: str, expected: str, right: bool) -> None:
    assert is_right(answer, expected) is right


def test_outside_questions_of_the_test_split_are_never_trained() -> None:
    for about, templates in TEMPLATES["train"].items():
        assert not set(templates) & set(TEMPLATES["test"][about])
    own = {"colour", "shape"}
    for slot, words in WORDS["train"].items():
        assert slot in own or not set(words) & set(WORDS["test"][slot])
    asked = [{x.turns[0].question for x in samples(refusals, split, 150, task="outside")} for split in SPLITS]
    assert len(asked[0]) > 120
    assert len(asked[1]) > 90
    assert not asked[0] & asked[1]


@pytest.mark.parametrize("split", SPLITS)
def test_every_template_can_be_filled(split: Split) -> None:
    rng = np.random.default_rng(0)
    for about, templates in TEMPLATES[split].items():
        for template in templates:
            assert set(refusals.SLOT.findall(template)) <= {*WORDS[split], "number"}, template
        for _ in range(100):
            task = "outside" if about == "text" else "outside_with_media"
            question = refusals.refusal(rng, split, task, about).question
            assert "{" not in question
            assert not re.search(r"\ba [aeiou]", question)


@pytest.mark.parametrize("split", SPLITS)
def test_media_that_were_not_sent_are_said_to_be_missing(split: Split) -> None:
    kinds = {
        "no_picture": ((Picture, Clip), refusals.NO_PICTURE),
        "no_sound": ((Sound, Clip), refusals.NO_SOUND),
        "no_video": ((Clip,), refusals.NO_VIDEO),
    }
    for task, (kind, answer) in kinds.items():
        found = samples(refusals, split, 15, task=task)
        for sample in found:
            assert not any(isinstance(medium, kind) for medium in sample.media)
            assert [turn.answer for turn in sample.turns] == [answer]
        assert any(sample.media for sample in found)
        assert not all(sample.media for sample in found)


def test_about_half_of_the_refusals_come_with_media() -> None:
    found = samples(refusals, "test", 80)
    assert 0.4 < sum(bool(sample.media) for sample in found) / 80 < 0.75
    assert {turn.task for sample in found for turn in sample.turns} == set(refusals.TASKS)
    with pytest.raises(ValueError, match="no refusal task 'weather'"):
        refusals.sample(np.random.default_rng(0), "test", task="weather")


def test_refusals_stand_between_true_answers_in_training() -> None:
    found = samples(refusals, "train", 30, turns=4)
    assert all(len(sample.turns) >= 4 for sample in found)
    mixed = [sample for sample in found if {turn.task for turn in sample.turns} - set(refusals.TASKS)]
    assert len(mixed) > 5


@pytest.mark.parametrize("split", SPLITS)
def test_sums_are_right_and_stay_within_twenty(split: Split) -> None:
    answers = [sample.turns[0].answer for sample in samples(talk, split, 200, task="sum")]
    for answer in answers:
        first, sign, second, result = re.fullmatch(r"(\d+) ([+-]) (\d+) = (\d+)\.", answer).groups()
        assert int(first) + (1 if sign == "+" else -1) * int(second) == int(result)
        assert max(int(first), int(second), int(result)) <= talk.MOST
    assert {sign for answer in answers for sign in "+-" if sign in answer} == {"+", "-"}


def test_an_interrupted_dialogue_keeps_its_true_turns_in_order() -> None:
    true = (
        turn("Is there a star?", "Yes.", "dialogue"),
        turn("Where is it?", "In the middle.", "dialogue"),
        turn("How many shapes are there?", "1.", "count"),
    )
    other = turn("Hello", "Hello!", "greeting")
    for seed in range(30):
        turns = refusals.interrupted(np.random.default_rng(seed), true, [other, other])
        assert tuple(said for said in turns if said is not other) == true
        assert turns.index(true[1]) == turns.index(true[0]) + 1
    for sample in samples(talk, "train", 20, task="interrupted", turns=3):
        assert sample.media
        assert any(turn.task in {*talk.TASKS, *refusals.TASKS} for turn in sample.turns)


def test_the_same_case_twice_is_the_same(tmp_path: Path) -> None:
    for family in FAMILIES:
        first = make_case(family, 3, tmp_path)
        contents = [file.path.read_bytes() for file in first.files]
        second = make_case(family, 3, tmp_path)
        assert second == first
        assert [file.path.read_bytes() for file in second.files] == contents


def test_cases_use_every_format_and_every_task(tmp_path: Path) -> None:
    found = [make_case("pictures", number, tmp_path) for number in range(40)]
    assert {file.path.suffix for case in found for file in case.files} == {".jpg", ".png", ".webp"}
    assert set(Counter(case.task for case in found)) == set(FAMILIES["pictures"].tasks)
    turned = set()
    for path in tmp_path.glob("*.jpg"):
        with Image.open(path) as image:
            turned.add(image.getexif().get(0x0112, 1))
    assert len(turned) > 3


class Oracle:
    """Knows all answers, but for those to the questions in `wrong`."""

    def __init__(self, wrong: Sequence[str] = ()) -> None:
        self.answers: dict[str, str] = {}
        self.wrong = wrong
        self.heard: list[list[Message]] = []

    async def ask(self, messages: Sequence[Message]) -> Answer:
        self.heard.append(list(messages))
        question = messages[-1]["content"][-1]["text"]
        text = "Nonsense." if question in self.wrong else self.answers[question]
        return Answer(text=text, timings={"encode_ms": 2.0})

    async def close(self) -> None: ...


async def asked(monkeypatch, folder: Path, oracle: Oracle, turns: Sequence[tuple[Turn, ...]]) -> dict:
    def make(family: str, number: int, folder: Path) -> Case:
        oracle.answers |= {turn.question: turn.answer for turn in turns[number]}
        return Case(family=family, task=turns[number][-1].task, number=number, turns=turns[number], files=())

    monkeypatch.setattr(evaluate, "make_case", make)
    outcomes = await evaluate.evaluate(oracle, ["pictures"], len(turns), folder, at_once=4)
    return evaluate.report(outcomes)


async def test_right_answers_score_and_wrong_ones_are_listed(monkeypatch, tmp_path: Path) -> None:
    turns = [(turn(f"Question {number}?", f"Answer {number}."),) for number in range(10)]
    whole = await asked(monkeypatch, tmp_path, Oracle(), turns)
    assert whole["families"]["pictures"]["accuracy"] == 1
    assert evaluate.is_good_enough(whole["families"])
    assert whole["failures"] == []
    assert whole["mean_ms"]["encode"] == 2

    found = await asked(monkeypatch, tmp_path, Oracle(wrong=["Question 7?"]), turns)
    assert found["families"]["pictures"]["tasks"] == {"colour": {"accuracy": 0.9, "right": 9, "cases": 10}}
    assert not evaluate.is_good_enough(found["families"]), "the floor of pictures is 92 %"
    (failure,) = found["failures"]
    assert failure["case"] == "pictures-7"
    assert failure["turns"] == [{"question": "Question 7?", "expected": "Answer 7.", "answer": "Nonsense."}]
    table = evaluate.table(whole["families"], found["families"]).splitlines()
    assert table[1].split() == ["pictures", "10", "100.0", "92", "90.0", "10.0"]
    assert table[2].split() == ["colour", "10", "100.0", "90.0", "10.0"]


async def test_a_dialogue_is_right_as_a_whole_and_reads_its_own_answers(monkeypatch, tmp_path: Path) -> None:
    turns = [(turn("How many?", "3."), turn("And red ones?", "2.", "dialogue"))]
    oracle = Oracle(wrong=["How many?"])
    found = await asked(monkeypatch, tmp_path, oracle, turns)
    assert found["families"]["pictures"]["tasks"] == {"dialogue": {"accuracy": 0, "right": 0, "cases": 1}}
    assert [message["role"] for message in oracle.heard[-1]] == ["user", "assistant", "user"]
    assert oracle.heard[-1][1]["content"] == "Nonsense."


def test_a_checkpoint_is_asked_the_whole_way(tmp_path: Path, capsys) -> None:
    make_checkpoint(tmp_path / "tiny", "tiny")
    out = tmp_path / "report.json"
    arguments = [str(tmp_path / "tiny"), "--cases", "1", "--out", str(out), "--show", "1"]
    assert evaluate.main([*arguments, "--keep", str(tmp_path / "media"), "--check"]) == 1
    found = json.loads(out.read_text())
    assert list(found["families"]) == list(FAMILIES)
    assert len(found["failures"]) == len(FAMILIES), "the weights are random"
    assert found["mean_ms"]["prefill"] > 0
    shown = capsys.readouterr().out
    assert "answered" in shown
    assert len(list((tmp_path / "media").iterdir())) >= 4


def test_evaluation_refuses_what_it_cannot_do(capsys) -> None:
    for arguments in (
        [],
        ["folder", "--url", "u"],
        ["--url", "u", "--fault", "rgb"],
        ["folder", "--cases", "0"],
    ):
        with pytest.raises(SystemExit):
            evaluate.main(arguments)
    assert "give either a checkpoint folder or --url" in capsys.readouterr().err


def red_above_blue() -> Picture:
    pixels = np.zeros((60, 40, 3), np.uint8)
    pixels[:30, :, 0] = pixels[30:, :, 2] = 255
    return Picture(pixels=pixels)


def test_fault_rgb_swaps_red_and_blue(tmp_path: Path) -> None:
    path = tmp_path / "picture.png"
    cases.write_picture(path, red_above_blue())

    def top() -> list[int]:
        return decode_image(path.read_bytes(), MediaLimits())[:, 5, 5].tolist()

    with faults.FAULTS["rgb"].applied():
        assert top() == [0, 0, 255]
    assert top() == [255, 0, 0]


def test_fault_exif_leaves_pictures_on_their_side(tmp_path: Path) -> None:
    path = tmp_path / "picture.jpg"
    cases.write_picture(path, red_above_blue(), exif_orientation=6)

    def shape() -> tuple[int, ...]:
        return tuple(decode_image(path.read_bytes(), MediaLimits()).shape)

    with faults.FAULTS["exif"].applied():
        assert shape() == (3, 40, 60)
    assert shape() == (3, 60, 40)


def test_fault_rate_halves_the_samples(tmp_path: Path) -> None:
    path = tmp_path / "sound.wav"
    cases.write_sound(path, Sound(samples=np.zeros(24_000, np.float32)), sample_rate=48_000)

    def num_samples() -> int:
        return sum(len(block) for block in decode_audio(path.read_bytes(), sample_rate=24_000))

    with faults.FAULTS["rate"].applied():
        assert num_samples() == 12_000
    assert num_samples() == 24_000


def bench_arguments(*arguments: str):
    import argparse

    parser = argparse.ArgumentParser()
    demo.add_arguments(parser)
    return parser.parse_args(arguments)


def test_bench_demo_reports_under_its_fixed_keys(monkeypatch, tmp_path: Path, capsys) -> None:
    @contextmanager
    def server(checkpoint: Path, log: Path) -> Iterator[RunningServer]:
        yield RunningServer(url="http://127.0.0.1:1", ready_s=12.344)

    found = {
        "latency": {"picture": [0.5, 9.0, 0.4], "video": [2.0, 3.0, 1.0]},
        "evaluate": {"families": {"pictures": {"accuracy": 0.95}}},
    }
    monkeypatch.setattr(demo, "running_server", server)
    monkeypatch.setattr(demo, "_from_tree", lambda module, scratch, *arguments: found[module])
    (tmp_path / "config.json").write_text("{}")
    result = demo.run(bench_arguments("--checkpoint", str(tmp_path), "--cases", "20"))
    assert result == {
        "accuracy": {"pictures": 0.95},
        "cases": 20,
        "ready_s": 12.34,
        "picture_s": 0.5,
        "video_s": 2.0,
        "accept_length": None,
        "speedup": None,
        "head_agreement": None,
    }
    assert "accept_length, speedup: null;" in capsys.readouterr().out
    (tmp_path / demo.REPORT).write_text(json.dumps({"head_agreement": [0.9, 0.8, 0.7]}))
    assert demo.run(bench_arguments("--checkpoint", str(tmp_path)))["head_agreement"] == [0.9, 0.8, 0.7]


def test_bench_demo_says_what_is_missing(monkeypatch, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="holds no checkpoint"):
        demo.run(bench_arguments("--checkpoint", str(tmp_path)))
    monkeypatch.setattr(demo, "_TREE", tmp_path)
    with pytest.raises(ValueError, match="is no source tree"):
        demo.run(bench_arguments())


TREE_SCRIPT = """
import json, sys
if "--url" not in sys.argv:
    sys.exit(2)
print("a table")
open(sys.argv[sys.argv.index("--out") + 1], "w").write(json.dumps(sys.argv[1:3]))
"""


def test_bench_demo_runs_the_source_tree(monkeypatch, tmp_path: Path) -> None:
    folder = tmp_path / "samples" / "demo_training"
    folder.mkdir(parents=True)
    (folder / "latency.py").write_text(TREE_SCRIPT)
    monkeypatch.setattr(demo, "_TREE", tmp_path)
    assert demo._from_tree("latency", tmp_path, "--url", "u") == ["--url", "u"]
    with pytest.raises(ValueError, match=r"demo_training\.latency ended with status 2"):
        demo._from_tree("latency", tmp_path)
