"""The demo's own promise: it says what failed."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_a_server_that_cannot_start_fails_the_demo_and_shows_why(tmp_path: Path) -> None:
    result = subprocess.run(
        [sys.executable, "-m", "samples.demo", "--checkpoint", str(tmp_path / "nothing")],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert result.returncode == 1
    assert "the server ended with status 2 before it was ready" in result.stderr
    assert "there is no folder" in result.stderr
