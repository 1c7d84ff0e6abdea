"""The made audio encoder hears, and a checkpoint without a tokenizer says so."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import torch

from llm_core.errors import CheckpointError
from llm_core.weights import CheckpointFolder
from mm_pipeline.encoders import SegmentedAudioEncoder, create_audio_encoder
from serve_apps.chat.create import system_fingerprint
from serve_apps.checkpoint.audio_tokenizer import open_audio_tokenizer


def audio_encoder(folder: Path) -> SegmentedAudioEncoder:
    config = json.loads((folder / "config.json").read_text())
    return create_audio_encoder(
        config, CheckpointFolder(folder), *open_audio_tokenizer(folder), torch.float32, "cpu"
    )


def test_different_sounds_become_different_embeddings(tiny: Path) -> None:
    encoder = audio_encoder(tiny)
    noise = torch.randn(200, 128, generator=torch.Generator().manual_seed(0))
    silence = torch.full((200, 128), -16.1)
    codes = encoder.codes(noise)
    assert codes.shape == (50, 20)
    assert all(len(column.unique()) > 10 for column in codes.T)
    heard, nothing = encoder.encode([[noise], [silence]])
    assert heard.shape == nothing.shape == (13, encoder.hidden_size)
    assert 0.2 < heard.std() < 2
    assert (heard - nothing).abs().mean() > 0.2


def test_a_checkpoint_without_a_tokenizer_says_what_is_missing(tiny: Path, tmp_path: Path) -> None:
    folder = tmp_path / "c"
    shutil.copytree(tiny, folder)
    tokenizer = folder / "audio_tokenizer"
    fingerprint = system_fingerprint(folder)
    (tokenizer / "config.json").write_text("{")
    assert system_fingerprint(folder) != fingerprint == system_fingerprint(tiny)
    with pytest.raises(CheckpointError, match=r"audio_tokenizer/config\.json is not JSON"):
        open_audio_tokenizer(folder)
    (tokenizer / "config.json").unlink()
    with pytest.raises(CheckpointError, match=r"has no audio_tokenizer/config\.json; sound needs"):
        open_audio_tokenizer(folder)
