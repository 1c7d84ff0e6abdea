"""The five example scripts: short, documented, and they start."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

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


def test_the_demo_asks_about_every_sample_and_every_modality() -> None:
    folder = ROOT / "samples"
    files = {
        str(path.relative_to(folder)) for name in ("pictures", "clips") for path in (folder / name).iterdir()
    }
    assert {name for _, name, _ in demo.QUESTIONS} == files
    assert {modality for modality, _, _ in demo.QUESTIONS} == {"image", "audio", "video"}


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
