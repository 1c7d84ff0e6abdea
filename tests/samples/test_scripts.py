"""The five example scripts: short, documented, and they start."""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from samples import demo

ROOT = Path(__file__).parents[2]
SCRIPTS = [
    "ask_picture.py",
    "ask_with_plain_http.py",
    "batch_folder.py",
    "compare_two_pictures.py",
    "describe_local.py",
]


@pytest.mark.parametrize("name", SCRIPTS)
def test_at_most_50_lines_and_says_how_to_run_it(name: str) -> None:
    source = (ROOT / "samples" / name).read_text()
    assert len(source.splitlines()) <= 50
    assert f"python samples/{name}" in (ast.get_docstring(ast.parse(source)) or "")


def test_the_demo_asks_about_every_file_and_modality_it_has() -> None:
    conversations = json.loads((demo.MEDIA / "questions.json").read_text())
    files = [file for conversation in conversations for file in conversation["files"]]
    asked = {(demo.MEDIA / file["path"]).resolve() for file in files}
    assert asked >= {path for path in demo.MEDIA.resolve().iterdir() if path.name != "questions.json"}
    assert all(path.is_file() for path in asked)
    assert {file["modality"] for file in files} == {"image", "audio", "video"}
    assert all(turn["question"] and turn["answer"] for each in conversations for turn in each["turns"])


def test_the_demo_says_what_is_right(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    replies = iter(["a red circle", "Blue."])
    seen: list[int] = []

    def answer(url: str, model: str, messages: list[dict[str, Any]]) -> dict[str, Any]:
        seen.append(len(messages))
        details = {f"{name}_tokens": 0 for name in demo.MODALITIES}
        usage = {"prompt_tokens": 1, "completion_tokens": 1, "prompt_tokens_details": details}
        message = {"content": next(replies)}
        return {"choices": [{"message": message}], "usage": usage, "timings": {"total_ms": 1.0}}

    monkeypatch.setattr(demo, "ask", answer)
    turns = [{"question": "What is it?", "answer": "A red circle."}, {"question": "And?", "answer": "Red."}]
    assert demo.hold("", "", {"files": [], "turns": turns}) == [True, False]
    assert seen == [1, 3]
    shown = capsys.readouterr().out
    assert "a red circle  (right)" in shown
    assert "Blue.  (WRONG, it is 'Red.')" in shown


def test_all_start() -> None:
    """In one process: importing what they use takes seconds."""
    code = (
        "import runpy, sys\n"
        "for script in sys.argv[1:]:\n"
        "    sys.argv = [script, '--help']\n"
        "    try:\n"
        "        runpy.run_path(script, run_name='__main__')\n"
        "    except SystemExit as end:\n"
        "        print(script, 'ended with', end.code)\n"
    )
    paths = [f"samples/{name}" for name in SCRIPTS]
    result = subprocess.run(
        [sys.executable, "-c", code, *paths], cwd=ROOT, capture_output=True, text=True, timeout=120
    )
    assert result.returncode == 0, result.stderr
    for name in SCRIPTS:
        assert f"usage: {name}" in result.stdout
        assert f"samples/{name} ended with 0" in result.stdout
