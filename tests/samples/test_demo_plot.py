"""The plot of a training run: what of a log is drawn."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
from PIL import Image

from samples.demo_training.plot import main, read_curves


def write_log(folder: Path, *entries: dict) -> Path:
    (folder / "log.jsonl").write_text("".join(json.dumps(entry) + "\n" for entry in entries))
    return folder / "log.jsonl"


def entry(stage: str, step: int, loss: float, **numbers: float) -> dict:
    return {"stage": stage, "step": step, "seconds": 60.0 * step, "loss": loss, **numbers}


def test_stages_keep_their_order_and_what_was_done_again_replaces(tmp_path: Path) -> None:
    log = write_log(
        tmp_path,
        entry("ear", 25, 3.0, key_right=0.1, starts=0.4),
        entry("vision", 25, 9.0),
        entry("ear", 50, 2.0, key_right=0.2),
        {"stage": "codebooks", "seconds": 3.0, "left": [0.5, 0.2]},
        # The run was killed before this was saved, and goes on from step 25.
        entry("ear", 75, 1.5, key_right=0.3),
        entry("ear", 50, 2.1, key_right=0.25, rise_right=0.5),
    )
    ear, vision = read_curves(log)
    assert (ear.stage, ear.steps, ear.loss) == ("ear", [25, 50], [3.0, 2.1])
    assert ear.minutes == 50
    assert ear.shares.keys() == {"key_right", "rise_right"}
    assert ear.shares["key_right"] == [0.1, 0.25]
    assert math.isnan(ear.shares["rise_right"][0])
    assert vision.shares == {}


def test_the_command_writes_a_picture(tmp_path: Path, monkeypatch) -> None:
    write_log(tmp_path, *(entry("answers", step, 1 / step, pictures=step / 100) for step in (25, 50, 75)))
    out = tmp_path / "out.png"
    monkeypatch.setattr("sys.argv", ["plot", str(tmp_path), str(out)])
    main()
    with Image.open(out) as picture:
        assert picture.width > 300
        assert len(picture.convert("RGB").getcolors(1 << 20) or []) > 20
    write_log(tmp_path, {"stage": "codebooks", "seconds": 3.0})
    with pytest.raises(SystemExit, match="has no steps; train for a while first"):
        main()
