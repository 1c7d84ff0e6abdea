"""What the decoder is taught beside its answers: where to look, what to know between layers, labelled pictures."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from llm_core.config import load_config
from samples.demo_training.conversations import Conversation, Writer
from samples.demo_training.decoder import Batch, Decoder
from samples.demo_training.scenes import lettering, pictures
from samples.demo_training.stages.decoder import Conversations, DecoderStage
from samples.demo_training.stages.vision import make_batch
from samples.demo_training.vocabulary import full_config
from tests.samples.conftest import Exported

LENGTHS = [7, 70, 3]


@pytest.fixture(scope="module")
def conversations() -> tuple[Conversation, ...]:
    writer = Writer(lambda _mel: torch.zeros(0, 8))
    rngs = [np.random.default_rng(seed) for seed in range(2)]
    return tuple(
        writer.write(scenes.sample(rng, "train", turns=2, task=task), rng)
        for scenes, task, rng in zip((pictures, lettering), ("colour", "word"), rngs, strict=True)
    )


@pytest.mark.parametrize("layer", [0, 4, 8])
def test_what_heads_look_at_is_their_attention(layer: int) -> None:
    """Values weighted by the looks are what the layer's attention puts out."""
    torch.manual_seed(layer)
    decoder = Decoder(load_config(full_config()))
    attention = decoder.layers[layer].self_attn
    torch.nn.init.normal_(attention.o_proj.weight, std=0.1)
    config, spec = decoder.config, attention.spec
    embedded = torch.randn(sum(LENGTHS), config.hidden_size)
    rows = torch.tensor([0, 6, 7, 41, 76, 77, 79])
    with torch.no_grad():
        x = decoder.layers[layer].input_layernorm(embedded)
        expected = attention(x, Batch(config, LENGTHS, torch.device("cpu")))[rows]
        weights = decoder.looks(layer, embedded, rows, range(spec.num_heads), LENGTHS).exp()
        values = (attention.v_proj(x) * config.value_scale).unflatten(1, (-1, spec.v_head_dim))
        values = values.repeat_interleave(spec.num_heads // values.shape[1], dim=1)
        found = attention.o_proj(torch.einsum("rhn,nhd->rhd", weights, values).flatten(1))
    assert weights.shape == (len(rows), spec.num_heads, sum(LENGTHS))
    torch.testing.assert_close(weights.sum(dim=-1), torch.ones(weights.shape[:2]))
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)


def losses(exported: Exported, batch: Conversations, *, train_encoders: bool = False) -> dict[str, float]:
    stage = DecoderStage("tiny", 1, exported.model, None, train_encoders=train_encoders)
    return stage.loss(batch)[1]


def test_looks_and_facts_are_asked_where_there_are_any(exported: Exported, conversations) -> None:
    asked = losses(exported, Conversations(conversations=conversations, families=("a", "b")))
    assert {"facts_lost", "looks_lost"} <= asked.keys()
    assert "pictures_lost" not in asked
    bare = tuple(replace(one, looks=(), facts=torch.full_like(one.facts, -100)) for one in conversations)
    assert losses(exported, Conversations(conversations=bare, families=("a", "b"))).keys() == {"a", "b"}


def test_a_head_that_looks_there_loses_nothing(exported: Exported, conversations, monkeypatch) -> None:
    """The loss is the logarithm of what the heads give to the places, whichever of several it is."""
    looks = [(number, look) for number, one in enumerate(conversations) for look in one.looks]
    firsts = [0, len(conversations[0].token_ids)]

    def there(
        _layer: int, x: torch.Tensor, rows: torch.Tensor, heads: tuple[int, ...], _: list[int]
    ) -> torch.Tensor:
        weights = torch.full((len(rows), len(heads), len(x)), 1e-9)
        for index, row in enumerate(rows.tolist()):
            for number, look in looks:
                if firsts[number] + look.position == row:
                    # Words and phrases may look elsewhere from one position: the fuller list is the word's.
                    weights[index, :, [firsts[number] + place for place in look.at]] = 0.5 / len(look.at)
        return weights.log()

    monkeypatch.setattr(exported.model.decoder, "looks", there)
    asked = losses(exported, Conversations(conversations=conversations, families=("a", "b")))
    assert asked["looks_lost"] == pytest.approx(0.5 * np.log(2), rel=0.1)


def test_labelled_pictures_teach_the_encoder_while_it_learns(exported: Exported, conversations) -> None:
    model = exported.model
    stage = DecoderStage("tiny", 1, model, None, train_encoders=True)
    batch = Conversations(conversations=conversations, families=("a", "b"), labelled=make_batch(5, count=4))
    loss, numbers = stage.loss(batch)
    assert numbers["pictures_lost"] > 0
    loss.backward()
    for module in (model.vision, model.picture_heads, model.fact_heads, model.decoder.layers):
        gradients = [parameter.grad for parameter in module.parameters() if parameter.requires_grad]
        assert any(gradient is not None and gradient.abs().sum() > 0 for gradient in gradients)
    model.zero_grad(set_to_none=True)
    frozen = DecoderStage("tiny", 1, model, None)
    loss, _ = frozen.loss(Conversations(conversations=conversations, families=("a", "b")))
    loss.backward()
    for module in (model.vision, model.picture_heads):
        assert all(parameter.grad is None for parameter in module.parameters())
    model.zero_grad(set_to_none=True)
