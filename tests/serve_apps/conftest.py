"""A tiny checkpoint for the tests of this folder."""

from __future__ import annotations

from pathlib import Path

import pytest

from serve_apps.checkpoint import make_checkpoint


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("local") / "tiny"
    make_checkpoint(folder, "tiny")
    return folder
