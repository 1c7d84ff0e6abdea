"""The made folders: complete, readable, reproducible, and never written over somebody's files."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
import torch
from safetensors import safe_open

from llm_core.config import load_config
from llm_core.weights import CheckpointFolder, TensorSpec, decoder_tensors
from serve_apps.checkpoint import Size, checkpoint_config, make_checkpoint, text_config
from serve_apps.checkpoint.initial import initial_tensor
from serve_apps.checkpoint.make import NotOurFolderError, checkpoint_tensors, tokenizer_tensors
from serve_apps.checkpoint.shards import write_weights
from serve_apps.checkpoint.sizes import AUDIO_EMPTY_CODE, audio_tokenizer_config
from serve_apps.checkpoint.tokenizer import NUM_TOKENS, TOKEN_IDS


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def specs(file: Path) -> dict[str, TensorSpec]:
    with safe_open(file, framework="pt") as opened:
        tensors = {name: opened.get_tensor(name) for name in opened.keys()}  # noqa: SIM118
    return {name: TensorSpec(shape=tuple(t.shape), dtype=t.dtype) for name, t in tensors.items()}


def test_tiny_is_complete_and_small(tiny: Path) -> None:
    assert sum(len(data) for data in contents(tiny).values()) < 10_000_000
    stored = specs(tiny / "model.safetensors")
    assert stored == checkpoint_tensors(checkpoint_config("tiny"))
    audio = specs(tiny / "audio_tokenizer" / "model.safetensors")
    assert audio == tokenizer_tensors(audio_tokenizer_config("tiny"))
    assert json.loads((tiny / "audio_tokenizer" / "config.json").read_text()) == audio_tokenizer_config(
        "tiny"
    )
    for start in (
        "model.layers.7.",
        "model.mtp.layers.2.",
        "visual.blocks.5.",
        "audio_encoder.",
        "speech_embeddings.19.",
    ):
        assert any(name.startswith(start) for name in stored), start


def test_every_stored_value_is_finite(tiny: Path) -> None:
    for checkpoint in (CheckpointFolder(tiny), CheckpointFolder(tiny / "audio_tokenizer")):
        for name in checkpoint.keys():  # noqa: SIM118
            assert checkpoint.get_tensor(name).isfinite().all(), name


def test_config_names_the_tokenizers_ids(tiny: Path) -> None:
    config = json.loads((tiny / "config.json").read_text())
    assert config["vocab_size"] >= NUM_TOKENS
    assert config["eos_token_id"] == TOKEN_IDS["<|im_end|>"]
    assert (
        config["image_token_id"] == config["processor_config"]["image_token_id"] == TOKEN_IDS["<|image_pad|>"]
    )
    assert config["processor_config"]["audio_token_id"] == TOKEN_IDS["<|audio_pad|>"]
    assert "quantization_config" not in config


def test_model_card_says_that_the_weights_are_random(tiny: Path) -> None:
    assert "The weights are random" in (tiny / "README.md").read_text()


def test_same_seed_same_bytes_other_seed_other_weights(tiny: Path, tmp_path: Path) -> None:
    make_checkpoint(tmp_path / "again", "tiny")
    assert contents(tmp_path / "again") == contents(tiny)
    make_checkpoint(tmp_path / "again", "tiny", seed=1)
    for name in ("model.safetensors", "audio_tokenizer/model.safetensors"):
        assert contents(tmp_path / "again")[name] != contents(tiny)[name]


def test_replaces_its_own_folder_and_keeps_other_files(tmp_path: Path) -> None:
    folder = tmp_path / "c"
    make_checkpoint(folder, "tiny")
    (folder / "notes.txt").write_text("mine")
    left_over = [place / "model-00001-of-00002.safetensors" for place in (folder, folder / "audio_tokenizer")]
    for file in left_over:
        file.write_bytes(b"left over from a larger size")
    make_checkpoint(folder, "tiny")
    assert (folder / "notes.txt").read_text() == "mine"
    assert not any(file.exists() for file in left_over)
    assert [path.name for path in tmp_path.iterdir()] == ["c"]


@pytest.mark.parametrize("name", ["notes.txt", "model.safetensors", "config.json"])
def test_refuses_a_folder_that_it_did_not_make(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_text("{}")
    with pytest.raises(NotOurFolderError, match="did not make"):
        make_checkpoint(tmp_path, "tiny")
    assert contents(tmp_path) == {name: b"{}"}


def test_refuses_a_file_and_an_unknown_size(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    with pytest.raises(NotOurFolderError, match="is a file"):
        make_checkpoint(tmp_path / "file", "tiny")
    with pytest.raises(ValueError, match="'huge' is unknown; choose one of tiny, small"):
        make_checkpoint(tmp_path / "huge", "huge")  # type: ignore[arg-type]


def test_small_has_about_200_million_text_parameters() -> None:
    config = load_config(text_config("small"))
    assert [index for index, layer in enumerate(config.layers) if layer.kind == "full"] == [0, 6, 12, 18]
    num_parameters = sum(math.prod(spec.shape) for spec in decoder_tensors(config).values())
    assert 180e6 < num_parameters < 260e6


@pytest.mark.parametrize("size", ["tiny", "small"])
def test_encoders_write_into_the_decoders_width(size: Size) -> None:
    config = checkpoint_config(size)
    width = config["hidden_size"]
    assert config["vision_config"]["out_hidden_size"] == config["audio_config"]["out_hidden_size"] == width
    window_kinds = set(config["vision_config"]["vit_window_attn_types"])
    assert window_kinds == {-1, 0, 1}
    audio = config["audio_config"]
    assert audio["input_local_attn_heads"] * audio["input_local_head_dim"] == audio["input_local_dim"]
    tokenizer, processor = audio_tokenizer_config(size), config["processor_config"]
    assert tokenizer["num_quantizers"] == audio["audio_channels"] == processor["audio_channels"]
    assert max(tokenizer["codebook_size"]) <= AUDIO_EMPTY_CODE < int(audio["speech_vocab_size"])
    for name in ("n_mels", "nfft", "hop_length", "window_size", "sampling_rate", "stride_size", "avg_pooler"):
        assert tokenizer[name] == processor[f"audio_{name}"]


def test_shards_hold_everything_once_and_the_index_finds_it(tmp_path: Path) -> None:
    tensors = {
        f"t{index}": TensorSpec(shape=(3, index + 1), dtype=torch.float32 if index % 2 else torch.bfloat16)
        for index in range(9)
    }
    made: list[str] = []

    def values(name: str, spec: TensorSpec) -> torch.Tensor:
        made.append(name)
        return torch.full(spec.shape, float(name[1:]), dtype=spec.dtype)

    write_weights(tmp_path, tensors, values, max_shard_bytes=120, metadata={"a": "b"})
    assert sorted(made) == sorted(tensors)
    shards = sorted(tmp_path.glob("*.safetensors"))
    assert len(shards) > 1
    weight_map = json.loads((tmp_path / "model.safetensors.index.json").read_text())["weight_map"]
    for name, spec in tensors.items():
        with safe_open(tmp_path / weight_map[name], framework="pt") as file:
            assert file.metadata() == {"format": "pt", "a": "b"}
            torch.testing.assert_close(
                file.get_tensor(name),
                torch.full(spec.shape, float(name[1:]), dtype=spec.dtype),
                rtol=0,
                atol=0,
            )


def initial(name: str, *shape: int) -> torch.Tensor:
    return initial_tensor(name, shape, torch.float32, seed=0, num_tokens=NUM_TOKENS)


def test_values_keep_activations_at_their_size() -> None:
    assert (initial("model.layers.0.input_layernorm.weight", 64) == 1).all()
    assert (initial("visual.merger.ln_q.weight", 64) == 1).all()
    hidden = initial("model.embed_tokens.weight", 256, 128)
    assert hidden.std() == pytest.approx(0.5, rel=0.05)
    normed = hidden / hidden.std()
    projected = normed @ initial("model.layers.0.mlp.up_proj.weight", 96, 128).T
    assert projected.std() == pytest.approx(1.0, rel=0.1)
    added = normed @ initial("model.layers.0.self_attn.o_proj.weight", 128, 128).T
    assert added.std() == pytest.approx(0.5, rel=0.1)
    assert initial("model.layers.1.mlp.gate.e_score_correction_bias", 256).abs().max() < 0.1
    assert initial("model.layers.1.self_attn.attention_sink_bias", 1024).std() == pytest.approx(1.0, rel=0.1)


def test_padding_ids_are_never_the_best_answer() -> None:
    head = initial("lm_head.weight", 2 * NUM_TOKENS, 64)
    assert (head[NUM_TOKENS:] == 0).all()
    logits = torch.randn(100, 64, generator=torch.Generator().manual_seed(0)) @ head.T
    assert (logits.argmax(dim=1) < NUM_TOKENS).all()
