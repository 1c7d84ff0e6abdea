"""Names and shapes of the real checkpoint, loading in every layout, and what a bad checkpoint says."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from llm_core.config import load_config
from llm_core.errors import CheckpointError
from llm_core.model import HybridDecoder
from llm_core.weights import CheckpointFolder, decoder_tensors, load_decoder
from llm_core.weights.mimo_v2 import FOREIGN_PREFIXES, placements, split_chunks
from tests.llm_core.support import TINY, DictSource, random_tensors

REAL = Path(__file__).parents[1] / "data" / "mimo_v2_5"


def real_tensors() -> dict[str, tuple[tuple[int, ...], str]]:
    """Every tensor of the public checkpoint: name -> shape, dtype."""
    tensors = {}
    for line in (REAL / "weights.tsv").read_text().splitlines()[1:]:
        name, shape, dtype = line.split("\t")
        sizes = tuple(int(size) for size in shape.split(","))
        names = [name.replace("*256*", str(e)) for e in range(256)] if "*256*" in name else [name]
        tensors.update(dict.fromkeys(names, (sizes, dtype)))
    return tensors


def test_every_text_tensor_of_the_real_checkpoint_has_its_place_in_the_full_size_model() -> None:
    config = load_config(REAL)
    real = real_tensors()
    assert len(real) == 73_081
    text = {name: spec for name, spec in real.items() if not name.startswith(FOREIGN_PREFIXES)}
    ours = {
        name: (spec.shape, str(spec.dtype).removeprefix("torch."))
        for name, spec in decoder_tensors(config).items()
    }
    assert ours == text
    with torch.device("meta"):
        model = HybridDecoder(config, backend="cpu", with_mtp=True)
    parameters = dict(model.named_parameters())
    filled: dict[str, int] = {}
    for name, place in placements(config).items():
        target = parameters[place.target]
        target = target if place.expert is None else target[place.expert]
        assert tuple(target[place.row : place.row + place.shape[0]].shape) == text[name][0]
        filled[place.target] = filled.get(place.target, 0) + torch.Size(place.shape).numel()
    assert filled == {name: parameter.numel() for name, parameter in parameters.items()}


def test_all_73081_tensors_are_ours_with_the_encoders() -> None:
    from mm_pipeline.encoders import encoder_tensors

    encoders = encoder_tensors(json.loads((REAL / "config.json").read_text()))
    text = {name: spec.shape for name, spec in decoder_tensors(load_config(REAL)).items()}
    assert not encoders.keys() & text.keys()
    ours = text | {name: tuple(shape) for name, shape in encoders.items()}
    assert ours == {name: shape for name, (shape, _dtype) in real_tensors().items()}


def split_qkv(config, fused: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """The same weights as a V2-Flash file holds them: q, k and v apart."""
    split = {}
    for name, tensor in fused.items():
        if not name.endswith("qkv_proj.weight"):
            split[name] = tensor
            continue
        is_mtp = ".mtp." in name
        spec = config.swa if is_mtp else config.attention(config.layers[int(name.split(".")[2])].kind)
        rows = split_chunks(tensor, spec, config.qkv_chunks)
        parts = rows.split([spec.q_size, spec.k_size, spec.v_size])
        for letter, part in zip("qkv", parts, strict=True):
            split[name.replace("qkv_proj", f"{letter}_proj")] = part.contiguous()
    return split


def state(model: HybridDecoder) -> dict[str, torch.Tensor]:
    return dict(model.named_parameters())


@pytest.mark.parametrize("with_mtp", [False, True])
def test_fused_split_single_and_sharded_files_load_the_same(tmp_path, with_mtp: bool) -> None:
    config = load_config(TINY)
    tensors = random_tensors(config)
    options = {"dtype": torch.float32, "with_mtp": with_mtp}
    expected = state(load_decoder(config, DictSource(tensors), **options))
    assert any(name.startswith("mtp.") for name in expected) == with_mtp

    split_config = load_config(
        {**TINY, "attention_projection_layout": "split", "model_type": "mimo_v2_flash"}
    )
    split = state(load_decoder(split_config, DictSource(split_qkv(config, tensors)), **options))
    save_file(tensors, tmp_path / "model.safetensors")
    single = state(load_decoder(config, CheckpointFolder(tmp_path), **options))
    (tmp_path / "model.safetensors").unlink()
    names = sorted(tensors)
    shards = {"a.safetensors": names[::2], "b.safetensors": names[1::2]}
    for file, members in shards.items():
        save_file({name: tensors[name] for name in members}, tmp_path / file)
    index = {"weight_map": {name: file for file, members in shards.items() for name in members}}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    sharded = state(load_decoder(config, CheckpointFolder(tmp_path), **options))
    for loaded in (split, single, sharded):
        assert loaded.keys() == expected.keys()
        assert all(torch.equal(loaded[name], expected[name]) for name in expected)


def test_fp8_blocks_are_expanded_and_bf16_keeps_the_router_in_float32() -> None:
    quantization = {"quant_method": "fp8", "fmt": "e4m3", "weight_block_size": [16, 16]}
    config = load_config({**TINY, "quantization_config": quantization})
    plain = load_config(TINY)
    generator = torch.Generator().manual_seed(3)
    stored, expanded = {}, random_tensors(plain)
    for name, place in placements(config).items():
        if not place.is_quantizable:
            stored[name] = expanded[name]
            continue
        weight = expanded[name].to(torch.float8_e4m3fn)
        grid = decoder_tensors(config)[name + "_scale_inv"].shape
        scale = torch.rand(grid, generator=generator) + 0.5
        stored[name], stored[name + "_scale_inv"] = weight, scale
        chunk_rows, grid_rows = place.shape[0] // place.chunks, grid[0] // place.chunks
        blocks = []
        for chunk in range(place.chunks):
            factors = scale[chunk * grid_rows : (chunk + 1) * grid_rows]
            factors = factors.repeat_interleave(16, 0)[:chunk_rows].repeat_interleave(16, 1)
            blocks.append(factors[:, : place.shape[1]])
        expanded[name] = weight.float() * torch.cat(blocks)
    loaded = state(load_decoder(config, DictSource(stored), dtype=torch.float32))
    expected = state(load_decoder(plain, DictSource(expanded), dtype=torch.float32))
    assert all(torch.equal(loaded[name], expected[name]) for name in expected)

    low = state(load_decoder(config, DictSource(stored), dtype=torch.bfloat16))
    assert {name for name, p in low.items() if p.dtype == torch.float32} == {
        name for name in low if ".gate." in name
    }


def without(name: str):
    return lambda tensors: tensors.pop(name)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            without("model.layers.1.mlp.experts.3.up_proj.weight"),
            "lacks 1 tensors: model.layers.1.mlp.experts.3",
        ),
        (without("model.mtp.layers.0.enorm.weight"), "lacks 1 tensors: model.mtp.layers.0.enorm.weight"),
        (
            lambda t: t.update({"model.layers.9.what": torch.zeros(1)}),
            "1 tensors that its config does not describe: model.layers.9.what",
        ),
        (
            lambda t: t.update({"model.norm.weight_scale_inv": torch.zeros(1)}),
            "does not describe: model.norm.weight_scale_inv",
        ),
        (
            lambda t: t.update({"model.norm.weight": torch.ones(7)}),
            r"model.norm.weight has shape \(7,\); the config asks for \(32,\)",
        ),
        (
            lambda t: t.update({"lm_head.weight": t["lm_head.weight"].to(torch.float8_e4m3fn)}),
            "lm_head.weight is fp8 but the checkpoint has no block scales",
        ),
    ],
)
def test_a_bad_checkpoint_is_an_error_that_names_the_tensor(change, message: str) -> None:
    config = load_config(TINY)
    tensors = random_tensors(config)
    change(tensors)
    with pytest.raises(CheckpointError, match=message):
        load_decoder(config, DictSource(tensors), dtype=torch.float32)


def test_encoders_tensors_are_left_alone_and_mtp_may_be_absent() -> None:
    config = load_config(TINY)
    tensors = {name: t for name, t in random_tensors(config).items() if ".mtp." not in name}
    tensors["visual.blocks.0.norm1.weight"] = torch.ones(3)
    model = load_decoder(config, DictSource(tensors), dtype=torch.float32, with_mtp=True)
    assert len(model.mtp) == 0


def test_a_bad_folder_says_what_is_wrong(tmp_path) -> None:
    with pytest.raises(CheckpointError, match=r"no config\.json"):
        load_config(tmp_path)
    with pytest.raises(CheckpointError, match="holds no safetensors file"):
        CheckpointFolder(tmp_path)
    (tmp_path / "model.safetensors").write_bytes(b"not a checkpoint")
    with pytest.raises(CheckpointError, match=r"model\.safetensors is not a readable safetensors file"):
        CheckpointFolder(tmp_path)
    (tmp_path / "model.safetensors.index.json").write_text('{"weight_map": {"a": "gone.safetensors"}}')
    with pytest.raises(CheckpointError, match=r"files that are not there: gone\.safetensors"):
        CheckpointFolder(tmp_path)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"model_type": "llama"}, "model_type 'llama'; supported: mimo_v2, mimo_v2_flash"),
        ({"hidden_act": "gelu"}, "hidden_act = 'gelu'"),
        ({"head_dim": None}, "no 'head_dim'"),
        ({"hybrid_layer_pattern": [0, 1]}, "2 entries in hybrid_layer_pattern for 4 layers"),
        ({"quantization_config": {"quant_method": "awq"}}, "quantization 'awq'"),
    ],
)
def test_an_unsupported_config_is_an_error_that_names_the_key(change, message: str) -> None:
    with pytest.raises(CheckpointError, match=message):
        load_config({**TINY, **change})
