import threading

import pytest
import torch

from mm_pipeline.encoders import create_image_encoder, encoder_tensors
from mm_pipeline.encoders.image_encoder import split_by_patches
from mm_pipeline.encoders.mimo_audio import MimoAudioConfig, MimoAudioEncoder, group_codes
from mm_pipeline.encoders.mimo_vision import MimoVisionConfig, MimoVisionEncoder, _plan
from mm_pipeline.errors import InvalidMediaError
from mm_pipeline.image import ImageInput, ImageSettings
from mm_pipeline.limits import MediaLimits
from mm_pipeline.pipeline import ImagePipeline
from tests.golden import load_golden, load_golden_json
from tests.mm_pipeline.pictures import encode, gradient

TOLERANCE = 1e-4


class Source:
    """Tensors in memory, read like a safetensors file."""

    def __init__(self, tensors):
        self.tensors = tensors

    def keys(self):
        return list(self.tensors)

    def get_tensor(self, name):
        return self.tensors[name]


def close(made, expected):
    torch.testing.assert_close(made, expected, atol=TOLERANCE, rtol=TOLERANCE)


@pytest.fixture(scope="module")
def vision():
    tensors, config = load_golden("golden_vision"), load_golden_json("config_vision")
    return tensors, config


@pytest.fixture
def vision_source(vision):
    return Source({name: tensor for name, tensor in vision[0].items() if name.startswith("visual.")})


@pytest.fixture
def image_encoder(vision, vision_source):
    return create_image_encoder({"vision_config": vision[1]}, vision_source, torch.float32, "cpu")


def golden_items(tensors):
    items, first = [], 0
    for grid in tensors["io.grid_thw"].tolist():
        size = grid[0] * grid[1] * grid[2]
        patches = tensors["io.pixel_values"][first : first + size]
        items.append(ImageInput(patches=patches, grid_thw=tuple(grid), num_tokens=size // 4))
        first += size
    return items


@pytest.mark.parametrize("backend", ["reference", "cpu"])
def test_golden_vision_blocks(vision, backend):
    tensors, config = vision
    module = MimoVisionEncoder(MimoVisionConfig.from_dict(config), attention_backend=backend)
    weights = {name.removeprefix("visual."): t for name, t in tensors.items() if name.startswith("visual.")}
    module.load_state_dict(weights, strict=True)
    seen = {}
    module.patch_embed.register_forward_hook(lambda _m, _a, out: seen.update(patch_embed=out))
    for index, block in enumerate(module.blocks):
        block.register_forward_hook(lambda _m, _a, out, index=index: seen.update({f"block_out.{index}": out}))
    with torch.no_grad():
        merged = module(tensors["io.pixel_values"], [tuple(grid) for grid in tensors["io.grid_thw"].tolist()])
    assert len(seen) == 1 + config["depth"]
    for name, made in seen.items():
        close(made, tensors[f"io.{name}"])
    close(merged, tensors["io.merged"])


def test_golden_vision_plan(vision):
    tensors, _ = vision
    plan = _plan([tuple(grid) for grid in tensors["io.grid_thw"].tolist()], 2)
    assert torch.equal(plan.position.int(), tensors["io.pos_hw"])
    assert torch.equal(plan.cu_seqlens, tensors["io.cu_seqlens"])
    assert torch.equal(plan.column_order.int(), tensors["io.col_index"])
    assert torch.equal(plan.column_order.argsort().int(), tensors["io.col_index_inverse"])


def test_golden_vision_items_alone_and_together(vision, image_encoder):
    tensors, _ = vision
    items = golden_items(tensors)
    together = image_encoder.encode(items)
    for index, item in enumerate(items):
        close(together[index], tensors[f"io.merged_item{index}"])
        close(image_encoder.encode([item])[0], tensors[f"io.merged_item{index}"])
    assert image_encoder.encode([]) == []


@pytest.mark.parametrize("budget", [1, 72, 1000])
def test_batches_keep_to_the_patch_budget(vision, image_encoder, monkeypatch, budget):
    tensors, _ = vision
    items = golden_items(tensors)
    sizes = [[item.patches.shape[0] for item in batch] for batch in split_by_patches(items, budget)]
    assert sizes == {1: [[24], [48], [60]], 72: [[24, 48], [60]], 1000: [[24, 48, 60]]}[budget]
    monkeypatch.setattr(image_encoder, "_max_patches", budget)
    for made, index in zip(image_encoder.encode(items), range(3), strict=True):
        close(made, tensors[f"io.merged_item{index}"])


def test_identity_names_weights_dtype_and_config(vision, vision_source, image_encoder):
    config = {"vision_config": vision[1]}
    same = create_image_encoder(config, vision_source, torch.float32, "cpu")
    assert same.identity == image_encoder.identity
    half = create_image_encoder(config, vision_source, torch.bfloat16, "cpu")
    changed = dict(vision_source.tensors)
    changed["visual.merger.ln_q.weight"] = changed["visual.merger.ln_q.weight"] + 1e-6
    other = create_image_encoder(config, Source(changed), torch.float32, "cpu")
    narrow = {"vision_config": {**vision[1], "visual_token_window_size": 3}}
    windows = create_image_encoder(narrow, vision_source, torch.float32, "cpu")
    assert len({image_encoder.identity, half.identity, other.identity, windows.identity}) == 4
    assert half.encode(golden_items(vision[0]))[0].dtype == torch.bfloat16


def test_wrong_weights_are_named(vision, vision_source):
    config = {"vision_config": vision[1]}
    tensors = dict(vision_source.tensors)
    norm = tensors.pop("visual.blocks.0.norm1.weight")
    with pytest.raises(ValueError, match=r"missing visual\.blocks\.0\.norm1\.weight; unexpected none"):
        create_image_encoder(config, Source(tensors), torch.float32, "cpu")
    with pytest.raises(ValueError, match=r"missing none; unexpected visual\.extra"):
        create_image_encoder(
            config, Source({**vision_source.tensors, "visual.extra": norm}), torch.float32, "cpu"
        )
    tensors["visual.blocks.0.norm1.weight"] = norm[:5]
    with pytest.raises(ValueError, match=r"norm1\.weight has shape \(5,\); the config needs \(64,\)"):
        create_image_encoder(config, Source(tensors), torch.float32, "cpu")
    with pytest.raises(ValueError, match="float16"):
        create_image_encoder(config, vision_source, torch.float16, "cpu")


def test_wrong_grids_and_configs(vision):
    config = vision[1]
    module = MimoVisionEncoder(MimoVisionConfig.from_dict(config))
    with pytest.raises(ValueError, match="which need 16"):
        module(torch.zeros(15, 1536), [(1, 4, 4)])
    with pytest.raises(ValueError, match="multiples of 2"):
        module(torch.zeros(15, 1536), [(1, 3, 5)])
    for change in ({"hidden_act": "relu"}, {"vit_window_attn_types": [0]}, {"num_key_value_heads": 3}):
        with pytest.raises(ValueError, match="vision_config"):
            MimoVisionConfig.from_dict({**config, **change})


def test_golden_audio_embeddings():
    tensors = load_golden("golden_audio", "golden_audio_encoder")
    module = MimoAudioEncoder(MimoAudioConfig.from_dict(load_golden_json("config_audio")["audio_config"]))
    weights = {n: t for n, t in tensors.items() if n.startswith(("speech_embeddings.", "audio_encoder."))}
    module.load_state_dict(weights, strict=True)
    codes = group_codes(tensors["enc.codes"].long(), 4)
    assert torch.equal(codes.int(), tensors["enc.codes_grouped"])
    with torch.no_grad():
        embedded = module.embed(codes)
        close(embedded, tensors["enc.embed_sum"])
        close(module.mix(embedded), tensors["enc.local_out"])
        close(module(codes), tensors["enc.audio_embeds"])


def test_audio_config_variants_are_refused():
    config = load_golden_json("config_audio")["audio_config"]
    with pytest.raises(ValueError, match="input_full_attention is False"):
        MimoAudioConfig.from_dict({**config, "input_full_attention": False})
    with pytest.raises(ValueError, match="at least one row"):
        group_codes(torch.zeros(0, 20), 4)


FULL_SIZE = {
    "vision_config": {
        "depth": 28,
        "fullatt_block_indexes": [0, 9, 18, 27],
        "hidden_act": "silu",
        "hidden_size": 1280,
        "in_chans": 3,
        "intermediate_size": 4608,
        "num_heads": 32,
        "num_key_value_heads": 8,
        "out_hidden_size": 4096,
        "patch_size": 16,
        "spatial_merge_size": 2,
        "temporal_patch_size": 2,
        "use_sink": True,
        "visual_token_window_size": 64,
        "vit_window_attn_types": [-1, *([0] * 4 + [1] * 4 + [-1]) * 3],
    },
    "audio_config": {
        "audio_channels": 20,
        "group_size": 4,
        "input_local_attn_heads": 16,
        "input_local_dim": 1024,
        "input_local_head_dim": 64,
        "input_local_intermediate_size": 4096,
        "input_local_layers": 6,
        "out_hidden_size": 4096,
        "rope_theta": 640000,
        "speech_vocab_size": "1280",
    },
}


def test_full_size_shapes():
    """Shapes of the public MiMo-V2.5 checkpoint; head width 64 although the config does not say so."""
    shapes = encoder_tensors(FULL_SIZE)
    assert shapes["visual.patch_embed.proj.weight"] == (1280, 3, 2, 16, 16)
    assert shapes["visual.blocks.5.attn.qkv.weight"] == (3072, 1280)
    assert shapes["visual.blocks.5.attn.sinks"] == (32,)
    assert "visual.blocks.9.attn.sinks" not in shapes
    assert shapes["visual.merger.mlp.2.weight"] == (4096, 5120)
    assert shapes["audio_encoder.projection.mlp.0.weight"] == (16384, 4096)
    assert shapes["speech_embeddings.19.weight"] == (1280, 1024)
    assert encoder_tensors({}) == {}


@pytest.fixture
def pipeline(image_encoder):
    return ImagePipeline(image_encoder, ImageSettings(), MediaLimits())


def test_pipeline_encodes_bytes(pipeline):
    data = encode(gradient(200, 100))
    made = pipeline.encode(data)
    assert made.embeddings.shape == (made.num_tokens, 64)
    assert made.num_tokens == 3 * 6
    assert (made.modality, made.content_key) == ("image", pipeline.key(data))
    assert set(made.timings) == {"key_ms", "preprocess_ms", "encode_ms"}
    assert torch.isfinite(made.embeddings).all()


def test_pipeline_requests_lower_the_size_and_get_their_own_key(pipeline):
    data = encode(gradient(200, 100))
    small = pipeline.encode(data, max_pixels=4096)
    assert small.num_tokens == 2
    assert small.content_key == pipeline.key(data, max_pixels=4096) != pipeline.key(data)
    with pytest.raises(InvalidMediaError, match="max_pixels is 9999999"):
        pipeline.encode(data, max_pixels=9_999_999)


def test_pipeline_is_thread_safe(pipeline):
    pictures = [encode(gradient(64 + 32 * index, 96)) for index in range(4)]
    alone = [pipeline.encode(data).embeddings for data in pictures]
    made = {}
    threads = [
        threading.Thread(
            target=lambda index=index: made.update({index: pipeline.encode(pictures[index]).embeddings})
        )
        for index in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for index in range(4):
        close(made[index], alone[index])
