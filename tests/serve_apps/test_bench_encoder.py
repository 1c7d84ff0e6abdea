"""`mmserve bench encoder`: its keys, its items, and that both contestants encode the same."""

from __future__ import annotations

import argparse

import numpy as np
import pytest
import torch

from mm_pipeline.encoders import BatchedEncoders
from serve_apps.bench import encoder
from serve_apps.checkpoint import make_checkpoint


def arguments(*words: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    encoder.add_arguments(parser)
    return parser.parse_args(words)


def test_a_short_run_has_the_fixed_keys(capsys):
    found = encoder.run(arguments("--clients", "3", "--items", "6", "--rounds", "1"))
    assert set(found) == {
        "batched_over_serial",
        "batched_over_serial_large",
        "single_client_p99_overhead",
        "clients",
    }
    assert found["batched_over_serial"] > 0
    assert "in batches" in capsys.readouterr().out


def test_both_encode_the_same(tmp_path):
    make_checkpoint(tmp_path / "tiny", "tiny")
    image, audio = encoder._encoders(tmp_path / "tiny")
    items = encoder._items(np.random.default_rng(1), 6, (96, 200), with_sounds=True)
    assert sum(item.mel is not None for item in items) == 2
    alone = encoder._one_by_one(image, audio)
    with BatchedEncoders(image, audio) as encoders:
        together = encoder._in_batches(encoders)
        for item in items:
            torch.testing.assert_close(together(0, item), alone(0, item), atol=1e-5, rtol=1e-5)


def test_numbers_under_1_are_an_error():
    with pytest.raises(ValueError, match="rounds 0: each must be at least 1"):
        encoder.run(arguments("--rounds", "0"))
