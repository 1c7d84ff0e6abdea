"""`mmserve make-checkpoint` as a person meets it."""

from __future__ import annotations

import argparse
from pathlib import Path

import pytest

from serve_apps.checkpoint import add_arguments, run


def call(*arguments: str) -> int:
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    return run(parser.parse_args(arguments))


def test_says_what_it_wrote(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "deep" / "tiny"
    assert call(str(folder)) == 0
    assert capsys.readouterr().out.startswith(f"wrote {folder}: tiny, random weights, ")
    assert (folder / "config.json").is_file()


def test_says_why_it_refuses(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "thesis.tex").write_text("x")
    assert call(str(tmp_path), "--size", "small") == 2
    assert "give a folder that is new, empty or made by this command" in capsys.readouterr().err
