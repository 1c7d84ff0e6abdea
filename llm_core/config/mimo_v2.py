"""Reads the hub's config.json of MiMo-V2-Flash (`mimo_v2_flash`) and MiMo-V2.5 (`mimo_v2`)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from llm_core.config.base import AttentionSpec, DecoderConfig, Fp8Blocks, LayerKind, LayerSpec, MoeSpec
from llm_core.errors import CheckpointError

MODEL_TYPES = ("mimo_v2", "mimo_v2_flash")
DEFAULT_NUM_MTP_LAYERS = 3


class _Fields:
    """Required and optional keys of a config, with errors that name the key."""

    def __init__(self, raw: Mapping[str, Any]) -> None:
        self.raw = raw

    def need(self, key: str) -> Any:
        value = self.raw.get(key)
        if value is None:
            raise CheckpointError(
                f"config.json has no {key!r}, which a {self.raw.get('model_type')} model needs"
            )
        return value

    def get(self, key: str, default: Any) -> Any:
        value = self.raw.get(key)
        return default if value is None else value

    def must_be(self, key: str, allowed: Sequence[Any]) -> None:
        value = self.raw.get(key, allowed[0])
        if value not in allowed:
            raise CheckpointError(
                f"config.json has {key} = {value!r}; supported: {', '.join(map(repr, allowed))}"
            )


def _pattern(
    fields: _Fields, key: str, fallback_key: str, names: Mapping[str, int], num_layers: int
) -> list[int]:
    values = fields.raw.get(key)
    if values is None and fields.raw.get(fallback_key) is not None:
        values = [names[name] for name in fields.raw[fallback_key]]
    if values is None:
        raise CheckpointError(f"config.json has neither {key!r} nor {fallback_key!r}")
    if len(values) != num_layers:
        raise CheckpointError(f"config.json has {len(values)} entries in {key} for {num_layers} layers")
    return [int(value) for value in values]


def _rope_theta(fields: _Fields, kind: LayerKind) -> float:
    """Hub files say `rope_theta` and `swa_rope_theta`; files saved by transformers nest them by layer type."""
    nested = fields.raw.get("rope_parameters")
    if isinstance(nested, Mapping):
        layer_type = "full_attention" if kind == "full" else "sliding_attention"
        entry = nested.get(layer_type)
        if isinstance(entry, Mapping) and "rope_theta" in entry:
            return float(entry["rope_theta"])
    return float(fields.need("rope_theta" if kind == "full" else "swa_rope_theta"))


def _partial_rotary_factor(fields: _Fields) -> float:
    nested = fields.raw.get("rope_parameters")
    if "partial_rotary_factor" not in fields.raw and isinstance(nested, Mapping):
        for entry in nested.values():
            if isinstance(entry, Mapping) and "partial_rotary_factor" in entry:
                return float(entry["partial_rotary_factor"])
    return float(fields.get("partial_rotary_factor", 0.334))


def _window_keys(fields: _Fields) -> int:
    """Keys visible to a sliding-window query, itself included.

    `window_keys` in the config overrides; else `sliding_window_size` previous keys and the query's own, as
    SGLang and transformers read the hub file. A file saved by transformers has only `sliding_window`, which
    already counts the query.
    """
    if fields.raw.get("window_keys") is not None:
        return int(fields.raw["window_keys"])
    if fields.raw.get("sliding_window_size") is not None:
        return int(fields.raw["sliding_window_size"]) + 1
    return int(fields.need("sliding_window"))


def read(raw: Mapping[str, Any]) -> DecoderConfig:
    """Decoder shape from a parsed config.json.

    Raises:
        CheckpointError: a missing key, or a value this decoder does not implement.
    """
    fields = _Fields(raw)
    fields.must_be("hidden_act", ["silu"])
    fields.must_be("attention_bias", [False, None])
    fields.must_be("scoring_func", ["sigmoid", None])
    fields.must_be("topk_method", ["noaux_tc", None])
    fields.must_be("n_shared_experts", [None, 0])
    num_layers = int(fields.need("num_hidden_layers"))
    kinds = _pattern(
        fields,
        "hybrid_layer_pattern",
        "layer_types",
        {"full_attention": 0, "sliding_attention": 1},
        num_layers,
    )
    moe = _pattern(fields, "moe_layer_freq", "mlp_layer_types", {"dense": 0, "sparse": 1}, num_layers)

    num_heads = int(fields.need("num_attention_heads"))
    num_kv_heads = int(fields.need("num_key_value_heads"))
    head_dim = int(fields.need("head_dim"))
    v_head_dim = int(fields.get("v_head_dim", head_dim))
    factor = _partial_rotary_factor(fields)
    full = AttentionSpec(
        num_heads=num_heads,
        num_kv_heads=num_kv_heads,
        head_dim=head_dim,
        v_head_dim=v_head_dim,
        rope_dim=int(head_dim * factor),
        rope_theta=_rope_theta(fields, "full"),
        window_keys=None,
        has_sink=bool(fields.get("add_full_attention_sink_bias", False)),
    )
    swa_head_dim = int(fields.get("swa_head_dim", head_dim))
    swa = AttentionSpec(
        num_heads=int(fields.get("swa_num_attention_heads", num_heads)),
        num_kv_heads=int(fields.get("swa_num_key_value_heads", 2 * num_kv_heads)),
        head_dim=swa_head_dim,
        v_head_dim=int(fields.get("swa_v_head_dim", v_head_dim)),
        rope_dim=int(swa_head_dim * factor),
        rope_theta=_rope_theta(fields, "swa"),
        window_keys=_window_keys(fields),
        has_sink=bool(fields.get("add_swa_attention_sink_bias", True)),
    )
    moe_spec = None
    if any(moe):
        moe_spec = MoeSpec(
            num_experts=int(fields.get("n_routed_experts", raw.get("num_local_experts"))),
            top_k=int(fields.need("num_experts_per_tok")),
            intermediate_size=int(fields.need("moe_intermediate_size")),
            num_groups=int(fields.get("n_group", 1)),
            top_k_groups=int(fields.get("topk_group", 1)),
            normalize=bool(fields.get("norm_topk_prob", True)),
            scaling_factor=float(fields.get("routed_scaling_factor", 1.0)),
        )
    is_fused = raw.get("attention_projection_layout") == "fused_qkv"
    eos = fields.get("eos_token_id", ())
    return DecoderConfig(
        family="mimo_v2",
        vocab_size=int(fields.need("vocab_size")),
        hidden_size=int(fields.need("hidden_size")),
        norm_eps=float(fields.get("layernorm_epsilon", fields.get("rms_norm_eps", 1e-5))),
        full=full,
        swa=swa,
        value_scale=float(fields.get("attention_value_scale", 1.0)),
        layers=tuple(
            LayerSpec(kind="swa" if kind else "full", is_moe=bool(sparse))
            for kind, sparse in zip(kinds, moe, strict=True)
        ),
        dense_intermediate_size=int(fields.need("intermediate_size")),
        moe=moe_spec,
        # The full layers' KV head count cuts the rows of sliding and MTP layers too.
        qkv_chunks=num_kv_heads if is_fused else 0,
        num_mtp_layers=int(fields.get("num_nextn_predict_layers", DEFAULT_NUM_MTP_LAYERS)),
        tie_embeddings=bool(fields.get("tie_word_embeddings", False)),
        fp8=_fp8(raw.get("quantization_config")),
        max_context=int(fields.get("max_position_embeddings", 32768)),
        eos_token_ids=tuple(eos) if isinstance(eos, Sequence) else (int(eos),),
    )


def _fp8(quantization: Mapping[str, Any] | None) -> Fp8Blocks | None:
    if quantization is None:
        return None
    method, fmt = quantization.get("quant_method"), quantization.get("fmt", "e4m3")
    if method != "fp8" or fmt != "e4m3":
        raise CheckpointError(f"quantization {method!r}/{fmt!r} is not supported; 'fp8'/'e4m3' blocks are")
    rows, columns = quantization.get("weight_block_size") or (128, 128)
    return Fp8Blocks(rows=int(rows), columns=int(columns))
