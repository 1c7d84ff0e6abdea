"""The two shapes of random checkpoint, as config.json dictionaries with the hub's MiMo-V2.5 keys.

Knows the config's keys and how its numbers hang together; knows no tensor name and writes no file.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from serve_apps.checkpoint.tokenizer import TOKEN_IDS

Size = Literal["tiny", "small"]

FULL_EVERY = 6
"""One full layer, then five sliding ones."""

AUDIO_CHANNELS = 20
AUDIO_GROUP = 4
AUDIO_EMPTY_CODE = 1024
CODEBOOK_SIZES = (1024, 1024, 256, 128)
"""Entries per quantizer; the last goes for all further ones."""


@dataclass(frozen=True, kw_only=True)
class _Shape:
    """What differs between the sizes. `num_*` are counts, the rest widths unless said otherwise."""

    vocab_size: int
    hidden_size: int
    num_layers: int
    intermediate_size: int
    num_experts: int
    num_experts_per_tok: int
    moe_intermediate_size: int
    head_dim: int
    v_head_dim: int
    sliding_window_size: int
    """Previous keys that a sliding layer's query sees, as the hub counts them."""
    max_context: int
    """Tokens."""
    image_max_pixels: int
    vision_hidden_size: int
    vision_intermediate_size: int
    vision_num_heads: int
    vision_num_kv_heads: int
    vision_block_types: tuple[int, ...]
    """-1 full attention, 0 window in row order, 1 window in column order."""
    vision_window: int
    """Tokens to each side."""
    audio_dim: int
    audio_num_heads: int
    audio_num_layers: int
    tokenizer_dim: int
    tokenizer_num_heads: int
    tokenizer_num_layers: int
    tokenizer_window: int
    """Previous rows, of 20 ms each, that a windowed layer of the audio tokenizer sees."""


_SHAPES: dict[Size, _Shape] = {
    "tiny": _Shape(
        vocab_size=512,
        hidden_size=64,
        num_layers=8,
        intermediate_size=128,
        num_experts=8,
        num_experts_per_tok=2,
        moe_intermediate_size=32,
        head_dim=24,
        v_head_dim=16,
        sliding_window_size=32,
        max_context=32_768,
        image_max_pixels=1_048_576,
        vision_hidden_size=64,
        vision_intermediate_size=128,
        vision_num_heads=4,
        vision_num_kv_heads=2,
        vision_block_types=(-1, 0, 0, 1, 1, -1),
        vision_window=16,
        audio_dim=32,
        audio_num_heads=2,
        audio_num_layers=2,
        tokenizer_dim=64,
        tokenizer_num_heads=2,
        tokenizer_num_layers=4,
        tokenizer_window=16,
    ),
    "small": _Shape(
        vocab_size=32_768,
        hidden_size=512,
        num_layers=24,
        intermediate_size=2048,
        num_experts=16,
        num_experts_per_tok=4,
        moe_intermediate_size=256,
        head_dim=192,
        v_head_dim=128,
        sliding_window_size=128,
        max_context=131_072,
        image_max_pixels=8_388_608,
        vision_hidden_size=256,
        vision_intermediate_size=768,
        vision_num_heads=8,
        vision_num_kv_heads=2,
        vision_block_types=(-1, 0, 0, 1, 1, -1, 0, 0, 1, 1, 0, -1),
        vision_window=64,
        audio_dim=256,
        audio_num_heads=4,
        audio_num_layers=4,
        tokenizer_dim=256,
        tokenizer_num_heads=4,
        tokenizer_num_layers=6,
        tokenizer_window=128,
    ),
}
_NUM_HEADS, _NUM_KV_HEADS, _NUM_SWA_KV_HEADS = 8, 2, 4


def text_config(size: Size) -> dict[str, Any]:
    """The decoder's part of config.json: every key that says something about text layers or MTP.

    Raises:
        ValueError: an unknown size.
    """
    shape = _shape(size)
    return {
        "architectures": ["MiMoV2ForCausalLM"],
        "model_type": "mimo_v2",
        "attention_bias": False,
        "attention_chunk_size": shape.sliding_window_size,
        "attention_dropout": 0.0,
        "attention_value_scale": 0.707,
        "attention_projection_layout": "fused_qkv",
        "add_full_attention_sink_bias": False,
        "add_swa_attention_sink_bias": True,
        "swa_num_key_value_heads": _NUM_SWA_KV_HEADS,
        "swa_num_attention_heads": _NUM_HEADS,
        "swa_head_dim": shape.head_dim,
        "swa_v_head_dim": shape.v_head_dim,
        "dtype": "bfloat16",
        "eos_token_id": TOKEN_IDS["<|im_end|>"],
        "pad_token_id": TOKEN_IDS["<|endoftext|>"],
        "head_dim": shape.head_dim,
        "v_head_dim": shape.v_head_dim,
        "hidden_act": "silu",
        "hidden_size": shape.hidden_size,
        "hybrid_block_size": None,
        "hybrid_layer_pattern": [int(layer % FULL_EVERY != 0) for layer in range(shape.num_layers)],
        "initializer_range": 0.02,
        "intermediate_size": shape.intermediate_size,
        "layernorm_epsilon": 1e-05,
        "max_position_embeddings": shape.max_context,
        "moe_intermediate_size": shape.moe_intermediate_size,
        "moe_layer_freq": [int(layer > 0) for layer in range(shape.num_layers)],
        "n_group": 1,
        "n_routed_experts": shape.num_experts,
        "n_shared_experts": None,
        "norm_topk_prob": True,
        "num_attention_heads": _NUM_HEADS,
        "num_experts_per_tok": shape.num_experts_per_tok,
        "num_hidden_layers": shape.num_layers,
        "num_key_value_heads": _NUM_KV_HEADS,
        "partial_rotary_factor": 0.334,
        "rope_scaling": {"rope_type": "default", "type": "default"},
        "rope_theta": 10_000_000,
        "routed_scaling_factor": None,
        "scoring_func": "sigmoid",
        "sliding_window": shape.sliding_window_size,
        "sliding_window_size": shape.sliding_window_size,
        "swa_rope_theta": 10_000,
        "tie_word_embeddings": False,
        "topk_group": 1,
        "topk_method": "noaux_tc",
        "transformers_version": "4.57.1",
        "use_cache": True,
        "vocab_size": shape.vocab_size,
    }


def checkpoint_config(size: Size) -> dict[str, Any]:
    """The whole config.json: the text part, the encoders, the processor and the media token ids.

    Raises:
        ValueError: an unknown size.
    """
    shape = _shape(size)
    return text_config(size) | {
        "image_token_id": TOKEN_IDS["<|image_pad|>"],
        "video_token_id": TOKEN_IDS["<|video_pad|>"],
        "vision_start_token_id": TOKEN_IDS["<|vision_start|>"],
        "vision_end_token_id": TOKEN_IDS["<|vision_end|>"],
        "vision_model_type": "mimovl",
        "vision_config": _vision_config(shape),
        "audio_config": _audio_config(shape),
        "processor_config": _processor_config(shape),
    }


def audio_tokenizer_config(size: Size) -> dict[str, Any]:
    """The config.json of the audio tokenizer, which has a folder of its own in the checkpoint.

    Raises:
        ValueError: an unknown size.
    """
    shape = _shape(size)
    return {
        "max_audio_seconds": 1800,
        "stride_size": 2,
        "avg_pooler": 2,
        "d_model": shape.tokenizer_dim,
        "scale_embedding": False,
        "kernel_size": 3,
        "activation_function": "gelu",
        "encoder_layers": shape.tokenizer_num_layers,
        "encoder_skip_layer_id": 3,
        "encoder_attention_heads": shape.tokenizer_num_heads,
        "encoder_ffn_dim": 4 * shape.tokenizer_dim,
        "encoder_causal": True,
        "encoder_attn_window_size": [shape.tokenizer_window, 0],
        "nfft": 960,
        "n_mels": 128,
        "sampling_rate": 24_000,
        "hop_length": 240,
        "window_size": 960,
        "fmin": 0,
        "fmax": None,
        "num_quantizers": AUDIO_CHANNELS,
        "codebook_size": list(CODEBOOK_SIZES),
        "position_embedding_type": "rope",
        "rope_theta": 10_000,
        "rope_type": "default",
        "ln_type": "LayerNorm",
        "hybrid_attention": True,
        "hybrid_block_size": 8,
        "swa_per_block": 2,
    }


def _shape(size: Size) -> _Shape:
    if size not in _SHAPES:
        raise ValueError(f"checkpoint size {size!r} is unknown; choose one of {', '.join(_SHAPES)}")
    return _SHAPES[size]


def _vision_config(shape: _Shape) -> dict[str, Any]:
    types = shape.vision_block_types
    return {
        "depth": len(types),
        "fullatt_block_indexes": [index for index, kind in enumerate(types) if kind == -1],
        "hidden_act": "silu",
        "hidden_size": shape.vision_hidden_size,
        "in_chans": 3,
        "intermediate_size": shape.vision_intermediate_size,
        "num_heads": shape.vision_num_heads,
        "num_key_value_heads": shape.vision_num_kv_heads,
        "num_query_groups": shape.vision_num_heads // shape.vision_num_kv_heads,
        "out_hidden_size": shape.hidden_size,
        "patch_size": 16,
        "spatial_merge_size": 2,
        "spatial_patch_size": 16,
        "temporal_patch_size": 2,
        "tokens_per_second": 2,
        "use_sink": True,
        "visual_token_window_size": shape.vision_window,
        "vit_window_attn_types": list(types),
        "window_size": 128,
    }


def _audio_config(shape: _Shape) -> dict[str, Any]:
    return {
        "add_post_norm": True,
        "audio_channels": AUDIO_CHANNELS,
        "audio_segment_size": 6000,
        "group_size": AUDIO_GROUP,
        "input_full_attention": True,
        "input_local_attn_heads": shape.audio_num_heads,
        "input_local_dim": shape.audio_dim,
        "input_local_head_dim": shape.audio_dim // shape.audio_num_heads,
        "input_local_hidden_dropout": 0.0,
        "input_local_intermediate_size": 4 * shape.audio_dim,
        "input_local_layers": shape.audio_num_layers,
        "out_hidden_size": shape.hidden_size,
        "partial_rotary_factor": 1.0,
        "projection_layers": 2,
        "rope_theta": 640_000,
        "speech_vocab_size": "1280",
        "speech_zeroemb_idx": str(AUDIO_EMPTY_CODE),
    }


def _processor_config(shape: _Shape) -> dict[str, Any]:
    return {
        "audio_avg_pooler": 2,
        "audio_channels": AUDIO_CHANNELS,
        "audio_end_token_id": TOKEN_IDS["<|mimo_audio_end|>"],
        "audio_fmax": None,
        "audio_fmin": 0,
        "audio_group_size": AUDIO_GROUP,
        "audio_hop_length": 240,
        "audio_input_id_per_second": 25.0,
        "audio_kernel_size": 3,
        "audio_n_mels": 128,
        "audio_nfft": 960,
        "audio_sampling_rate": 24_000,
        "audio_segment_size": 6000,
        "audio_start_token_id": TOKEN_IDS["<|mimo_audio_start|>"],
        "audio_stride_size": 2,
        "audio_token_id": TOKEN_IDS["<|audio_pad|>"],
        "audio_window_size": 960,
        "audio_zeroemb_idx": [AUDIO_EMPTY_CODE] * AUDIO_CHANNELS,
        "fps": 1.0,
        "image_max_pixels": shape.image_max_pixels,
        "image_min_pixels": 8192,
        "image_token_id": TOKEN_IDS["<|image_pad|>"],
        "max_frames": 3600,
        "merge_size": 2,
        "min_frames": None,
        "num_frames": None,
        "pad_token_id": TOKEN_IDS["<|endoftext|>"],
        "patch_size": 16,
        "rope_type": "rope",
        "temporal_compression_ratio": 1,
        "temporal_patch_size": 2,
        "use_per_grid_t_timestamps": False,
        "use_video_timestamps": True,
        "video_audio_interleave_length": 0.0,
        "video_end_token_id": TOKEN_IDS["<|mimo_video_end|>"],
        "video_max_pixels": shape.image_max_pixels,
        "video_min_pixels": 8192,
        "video_process_num_threads": 16,
        "video_start_token_id": TOKEN_IDS["<|mimo_video_start|>"],
        "video_token_id": TOKEN_IDS["<|video_pad|>"],
        "video_tokens_per_second": 2,
        "video_total_max_pixels": 268_435_456,
        "vision_end_token_id": TOKEN_IDS["<|vision_end|>"],
        "vision_start_token_id": TOKEN_IDS["<|vision_start|>"],
    }
