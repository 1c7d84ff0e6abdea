"""Mel to codes to embeddings: golden values, segments, streams, and what bad weights and inputs say."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from mm_pipeline.audio import AudioSettings, audio_tokens, log_mel
from mm_pipeline.encoders import audio_tokenizer_tensors, create_audio_encoder
from mm_pipeline.encoders.mimo_audio_tokenizer import MimoAudioTokenizer, MimoAudioTokenizerConfig
from tests.golden import load_golden, load_golden_json

TOLERANCE = 1e-4
MELS = ("mel.log_mel", "tok.mel1", "tok.mel2")


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
def golden():
    return load_golden("golden_audio", "golden_audio_tokenizer")


@pytest.fixture(scope="module")
def configs():
    return load_golden_json("config_audio")


@pytest.fixture(scope="module")
def weights(golden):
    """Of the tokenizer's folder."""
    prefix = "audio_tokenizer."
    return {name.removeprefix(prefix): t for name, t in golden.items() if name.startswith(prefix)}


@pytest.fixture(scope="module")
def code_weights():
    """Of the checkpoint itself."""
    tensors = load_golden("golden_audio", "golden_audio_encoder")
    return {n: t for n, t in tensors.items() if n.startswith(("speech_embeddings.", "audio_encoder."))}


def create(configs, code_weights, weights, *, dtype=torch.float32, **audio_changes):
    config = {"audio_config": {**configs["audio_config"], **audio_changes}}
    return create_audio_encoder(
        config, Source(code_weights), configs["audio_tokenizer"], Source(weights), dtype, "cpu"
    )


@pytest.fixture(scope="module")
def encoder(configs, code_weights, weights):
    return create(configs, code_weights, weights)


@pytest.mark.parametrize("backend", ["reference", "cpu"])
def test_golden_tokenizer(golden, configs, weights, backend):
    config = MimoAudioTokenizerConfig.from_dict(configs["audio_tokenizer"])
    tokenizer = MimoAudioTokenizer(config, attention_backend=backend)
    tokenizer.load_state_dict(weights, strict=True)
    with torch.no_grad():
        for index, name in enumerate(MELS):
            close(tokenizer.encoder(golden[name]), golden[f"tok.features{index}"])
            assert torch.equal(tokenizer(golden[name]).int(), golden[f"tok.codes{index}"])
        seen = []
        for layer in tokenizer.encoder.layers:
            layer.register_forward_hook(lambda _m, _a, out: seen.append(out))
        tokenizer(golden["tok.mel1"])
    assert len(seen) == 4
    for index, made in enumerate(seen):
        close(made, golden[f"tok.mel1_layer_out.{index}"])


def test_golden_segments(golden, encoder):
    """The reference's last row of a segment that it batched with longer ones saw their padding; ours does not."""
    segments = golden["mel.log_mel"].split(golden["tokseg.segment_lengths"].tolist())
    made = [encoder.codes(segment) for segment in segments]
    assert [codes.shape[0] for codes in made] == golden["tokseg.output_lengths"].tolist()
    assert torch.equal(torch.cat(made)[:-1].int(), golden["tokseg.codes"][:-1])
    for index, name in enumerate(MELS):
        assert torch.equal(encoder.codes(golden[name])[:-1].int(), golden[f"tokbatch.codes{index}"][:-1])


def test_golden_mel_to_embeddings(golden, encoder):
    items = [[golden[name]] for name in MELS]
    together = encoder.encode(items)
    assert [made.shape[0] for made in together] == golden["pipe.rows_per_item"].tolist()
    close(torch.cat(together), golden["pipe.audio_embeds"])
    for item, made in zip(items, together, strict=True):
        assert torch.equal(encoder.encode([item])[0], made)
    assert encoder.encode([]) == []


def test_golden_waveform_to_codes_and_embeddings(golden, encoder):
    waveform = load_golden("golden_audio", "golden_audio_mel")["mel.waveform"]
    mel = torch.from_numpy(log_mel(waveform.numpy(), AudioSettings()))
    assert torch.equal(encoder.codes(mel).int(), golden["tok.codes0"])
    (made,) = encoder.encode([[mel]])
    close(made, golden["pipe.audio_embeds"][: made.shape[0]])
    assert made.shape[0] == audio_tokens(mel.shape[0], AudioSettings())


@given(lengths=st.lists(st.integers(1, 40), min_size=1, max_size=5))
@settings(max_examples=30, deadline=None)
def test_a_stream_of_segments_is_their_codes_in_a_row(encoder, golden, lengths):
    """Groups run across segment borders; only the last one is filled up."""
    segments = golden["mel.log_mel"][: sum(lengths)].split(lengths)
    codes = torch.cat([encoder.codes(segment) for segment in segments])
    (made,) = encoder.encode([iter(segments)])
    assert made.shape == (-(-codes.shape[0] // 4), encoder.hidden_size)
    close(made, encoder.embed(codes))


def test_segments_are_read_one_at_a_time(golden, encoder):
    read = []

    def segments():
        for index in range(3):
            read.append(index)
            yield golden["tok.mel1"]

    stream = encoder.stream()
    for count, mel in enumerate(segments(), 1):
        stream.add(mel)
        assert len(read) == count
    assert torch.equal(stream.finish(), encoder.encode([segments()])[0])


def test_codes_stay_float32_when_the_rest_is_not(golden, configs, code_weights, weights, encoder):
    half = create(configs, code_weights, weights, dtype=torch.bfloat16)
    assert torch.equal(half.codes(golden["mel.log_mel"]), encoder.codes(golden["mel.log_mel"]))
    (made,) = half.encode([[golden["mel.log_mel"]]])
    assert made.dtype == torch.bfloat16
    torch.testing.assert_close(made.float(), golden["pipe.audio_embeds"][:16], atol=0.1, rtol=0.1)


def test_identity_names_both_weights_and_configs_and_the_dtype(configs, code_weights, weights, encoder):
    assert create(configs, code_weights, weights).identity == encoder.identity
    half = create(configs, code_weights, weights, dtype=torch.bfloat16)
    other_codes = create(
        configs, code_weights, {**weights, "encoder.conv1.bias": weights["encoder.conv1.bias"] + 1e-6}
    )
    name = "audio_encoder.projection.mlp.0.weight"
    other_rest = create(configs, {**code_weights, name: code_weights[name] + 1e-6}, weights)
    other_configs = [
        create({**configs, part: {**configs[part], "rope_theta": 20000}}, code_weights, weights)
        for part in ("audio_config", "audio_tokenizer")
    ]
    encoders = (encoder, half, other_codes, other_rest, *other_configs)
    assert len({one.identity for one in encoders}) == 6


def test_wrong_weights_are_named(configs, code_weights, weights):
    tensors = dict(weights)
    bias = tensors.pop("encoder.conv1.bias")
    with pytest.raises(
        ValueError, match=r"audio_tokenizer do not fit.*missing encoder\.conv1\.bias; unexpected none"
    ):
        create(configs, code_weights, tensors)
    with pytest.raises(ValueError, match=r"encoder\.conv1\.bias has shape \(5,\); the config needs \(32,\)"):
        create(configs, code_weights, {**weights, "encoder.conv1.bias": bias[:5]})
    with pytest.raises(ValueError, match=r"missing none; unexpected encoder\.extra"):
        create(configs, code_weights, {**weights, "encoder.extra": bias})
    codes = {name: t for name, t in code_weights.items() if name != "speech_embeddings.3.weight"}
    with pytest.raises(
        ValueError, match=r"audio_encoder\.\* tensors do not fit.*missing speech_embeddings\.3"
    ):
        create(configs, codes, weights)
    with pytest.raises(ValueError, match=r"20 codes a row, up to 24 .* takes 20 of 23"):
        create(configs, code_weights, weights, speech_vocab_size="23")


def test_the_decoder_and_training_state_of_a_tokenizer_are_passed_over(
    configs, code_weights, weights, encoder
):
    stage = "encoder.quantizer.vq.layers.0._codebook."
    extra = {stage + name: torch.zeros(24) for name in ("cluster_size", "embed_avg", "inited")}
    extra["decoder.conv1.weight"] = torch.zeros(3)
    assert create(configs, code_weights, {**weights, **extra}).identity == encoder.identity


def test_wrong_segments(golden, encoder, configs, code_weights, weights):
    mel = golden["tok.mel2"]
    with pytest.raises(ValueError, match="no sound to encode"):
        encoder.encode([[]])
    with pytest.raises(ValueError, match=r"is \(0, 128\).*at least one frame"):
        encoder.encode([[mel[:0]]])
    with pytest.raises(ValueError, match=r"is \(7, 127\); need \[frames, 128\]"):
        encoder.encode([[mel[:, :127]]])
    with pytest.raises(ValueError, match="has 7 frames; at most 6"):
        create(configs, code_weights, weights, audio_segment_size=6).encode([[mel]])


def test_tokenizer_config_variants(configs):
    config = configs["audio_tokenizer"]

    def read(**changes):
        return MimoAudioTokenizerConfig.from_dict({**config, **changes})

    for changes, text in (
        ({"encoder_causal": False}, "encoder_causal is False"),
        ({"encoder_attn_window_size": [8, 8]}, r"encoder_attn_window_size is \[8, 8\]"),
        ({"encoder_attention_heads": 3}, "d_model 32 is no multiple of its 3"),
    ):
        with pytest.raises(ValueError, match=text):
            read(**changes)
    assert read().windows == (8, None, 8, None)
    assert read(hybrid_attention=False).windows == (8, 8, 8, 8)
    assert read(encoder_attn_window_size=[-1, 0]).windows == (None,) * 4
    assert read(codebook_size=[9, 5]).codebook_sizes == (9, *[5] * 19)
    assert read(codebook_size=7, num_quantizers=3).codebook_sizes == (7, 7, 7)


def test_full_size_shapes(configs):
    """The public notes on the real tokenizer."""
    shapes = audio_tokenizer_tensors(
        {
            **configs["audio_tokenizer"],
            "d_model": 1024,
            "encoder_layers": 24,
            "encoder_attention_heads": 16,
            "encoder_ffn_dim": 4096,
            "codebook_size": [1024, 1024, 256, 128],
        }
    )
    assert shapes["encoder.conv2.weight"] == (1024, 1024, 3)
    assert shapes["encoder.layers.23.fc1.weight"] == (4096, 1024)
    assert shapes["encoder.quantizer.vq.layers.19._codebook.embed"] == (128, 1024)
