"""The machinery that trains the demo model: resuming, the optimiser, what is asked of whom."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

from samples.demo_training.agreement import main as agreement_main
from samples.demo_training.agreement import said
from samples.demo_training.cases import FAMILIES
from samples.demo_training.conversations import Conversation, Writer
from samples.demo_training.muon import Muon, orthogonal
from samples.demo_training.processes import Shard
from samples.demo_training.scenes import talk
from samples.demo_training.stages.decoder import Conversations, DecoderStage
from samples.demo_training.stages.drafting import DraftingStage, drafts
from samples.demo_training.training import Rates, Run, prefetched, schedule, train
from tests.samples.conftest import Exported


class TinyStage:
    """Learns a random map. after_step moves a buffer, which must be kept too."""

    name = "tiny"
    rates = Rates(adamw=1e-2, muon=3e-2)

    def __init__(self, steps: int = 12) -> None:
        self.steps = steps
        torch.manual_seed(3)
        self.module = nn.Sequential(nn.Linear(6, 8), nn.GELU(), nn.Linear(8, 8), nn.LayerNorm(8))
        self.module.register_buffer("count", torch.zeros(()))

    def batches(self, first: int, shard: Shard) -> Iterator[torch.Tensor]:
        return prefetched(
            lambda step: torch.randn(6, 6, generator=seeded(step))[shard.index :: shard.count],
            first,
            self.steps,
        )

    def loss(self, batch: torch.Tensor) -> tuple[torch.Tensor, dict[str, float]]:
        out = self.module(batch) * (1 + 0.1 * self.module.get_buffer("count"))
        return out.sub(batch.sum(dim=1, keepdim=True)).square().mean(), {"shown": 0.5}

    def after_step(self) -> None:
        self.module.get_buffer("count").add_(1)


def seeded(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def test_stopped_and_resumed_is_trained_in_one_go(tmp_path: Path) -> None:
    whole, pieces = tmp_path / "whole", tmp_path / "pieces"
    for folder in (whole, pieces):
        folder.mkdir()
    assert train(TinyStage(), Run(folder=whole))
    # A deadline that has passed stops after one step.
    ends = [train(TinyStage(), Run(folder=pieces, deadline=time.monotonic())) for _ in range(3)]
    assert ends == [False, False, False]
    assert torch.load(pieces / "tiny.pt", weights_only=True)["step"] == 3
    assert train(TinyStage(), Run(folder=pieces))
    first, second = (torch.load(folder / "tiny.pt", weights_only=True) for folder in (whole, pieces))
    assert first["step"] == second["step"] == 12
    assert first["module"].keys() == second["module"].keys()
    start = TinyStage().module.state_dict()
    for name, tensor in first["module"].items():
        assert torch.equal(tensor, second["module"][name]), name
        assert not torch.equal(tensor, start[name]), name
    assert _tensors(first["optimisers"]) == _tensors(second["optimisers"])
    entries = [json.loads(line) for line in (whole / "log.jsonl").read_text().splitlines()]
    assert [(entry["stage"], entry["step"]) for entry in entries] == [("tiny", 12)]
    assert {"seconds", "loss", "shown"} <= entries[0].keys()


def _tensors(state: Any) -> Any:
    """The same with lists for tensors, which compare."""
    if isinstance(state, torch.Tensor):
        return state.tolist()
    if isinstance(state, dict):
        return {key: _tensors(value) for key, value in state.items()}
    return [_tensors(value) for value in state] if isinstance(state, list | tuple) else state


def test_a_finished_stage_is_not_trained_again(tmp_path: Path) -> None:
    run = Run(folder=tmp_path)
    train(TinyStage(2), run)
    before = run.state_path("tiny").read_bytes()
    stage = TinyStage(2)
    assert train(stage, run)
    assert run.state_path("tiny").read_bytes() == before
    # The stage has what was trained, for whoever goes on with its module.
    assert stage.module.get_buffer("count") == 2


@pytest.mark.parametrize("steps", [7, 600, 5000])
def test_the_learning_rate_rises_then_falls(steps: int) -> None:
    rates = [schedule(step, steps) for step in range(steps)]
    top = rates.index(max(rates))
    assert max(rates) == 1.0
    assert top < 0.2 * steps
    assert rates[: top + 1] == sorted(rates[: top + 1])
    assert rates[top:] == sorted(rates[top:], reverse=True)
    assert 0 < rates[0] <= 1
    assert 0 < rates[-1] < (0.1 if steps > 10 else 0.2)


@pytest.mark.parametrize("shape", [(48, 12), (12, 48), (20, 20)])
def test_steps_are_made_orthogonal(shape: tuple[int, int]) -> None:
    matrices = torch.randn(3, *shape, generator=seeded(1)) * torch.tensor([1e-3, 1, 50])[:, None, None]
    made = orthogonal(matrices)
    sizes = torch.linalg.svdvals(made)
    # The iteration's coefficients aim at 0.7..1.2; the smallest of a square matrix may lag behind.
    assert sizes.max() < 1.3
    assert sizes[:, :-1].min() > (0.6 if shape[0] != shape[1] else 0.3)
    u, _, v = torch.linalg.svd(matrices, full_matrices=False)
    for near, exact, alone in zip(made, u @ v, matrices, strict=True):
        assert F.cosine_similarity(near.flatten(), exact.flatten(), dim=0) > 0.97
        torch.testing.assert_close(near, orthogonal(alone[None])[0])


def test_muon_steps_as_the_published_one() -> None:
    """torch's own, which rounds to bfloat16."""
    ours, theirs = (nn.Parameter(torch.randn(16, 40, generator=seeded(2))) for _ in range(2))
    start = ours.detach().clone()
    settings = {"lr": 0.05, "weight_decay": 0.1, "momentum": 0.9}
    published = torch.optim.Muon([theirs], adjust_lr_fn="match_rms_adamw", **settings)
    own = Muon([ours], **settings)
    for step in range(4):
        ours.grad = torch.randn(16, 40, generator=seeded(10 + step))
        theirs.grad = ours.grad.clone()
        own.step()
        published.step()
    moved = ours.detach() - start
    assert moved.norm() > 0.5
    assert (ours - theirs).norm() < 0.03 * moved.norm()


@pytest.fixture(scope="module")
def conversations() -> list[Conversation]:
    writer = Writer(lambda mel: torch.zeros(0, 8, dtype=torch.int64))
    rngs = [np.random.default_rng(seed) for seed in range(3)]
    return [writer.write(talk.sample(rng, "train", turns=2, task="sum"), rng) for rng in rngs]


class TellsTheNext(nn.Module):
    """A decoder whose state at a token is the answer `ahead` of it."""

    def __init__(self, token_ids: torch.Tensor, ahead: int) -> None:
        super().__init__()
        self.token_ids, self.ahead = token_ids, ahead

    def forward(
        self, embedded: torch.Tensor, lengths: list[int], between: Sequence[int] = ()
    ) -> tuple[torch.Tensor, list[torch.Tensor]]:
        return F.one_hot(self.token_ids.roll(-self.ahead), 1024).float(), [embedded for _ in between]

    layers = (None,) * 9


def answers_right(conversations: list[Conversation], told: torch.Tensor, ahead: int) -> dict[str, float]:
    """Shares of right answers by family, of a model that says what is `ahead` in `told`."""
    model = nn.Module()
    model.vision, model.hearing, model.picture_heads = nn.Identity(), nn.Identity(), nn.Identity()
    model.embed = lambda found: torch.zeros(sum(len(one.token_ids) for one in found), 1)
    model.decoder = TellsTheNext(told, ahead)
    model.sign_heads, model.fact_heads = nn.ModuleList(), nn.ModuleList()
    model.decoder.mtp, model.decoder.lm_head = nn.Identity(), nn.Identity()
    stage = DecoderStage("tiny", 1, model, None)
    return stage.loss(Conversations(conversations=tuple(conversations), families=("a", "b", "a")))[1]


@pytest.mark.parametrize(("ahead", "right"), [(1, 1.0), (0, 0.0), (2, 0.0)])
def test_the_decoder_is_asked_for_the_next_token(conversations, ahead, right) -> None:
    told = torch.cat([one.token_ids for one in conversations])
    assert answers_right(conversations, told, ahead) == {"a": right, "b": right}


@pytest.mark.parametrize("place", ["first", "last"])
def test_answers_count_when_all_their_tokens_are_right(conversations, place) -> None:
    told = torch.cat([one.token_ids for one in conversations])
    assert len(conversations[1].turns) == 2
    first, end = conversations[1].turns[0]
    told[len(conversations[0].token_ids) + (first if place == "first" else end - 1)] = 7
    assert answers_right(conversations, told, 1) == {"a": 1.0, "b": 0.5}


@pytest.mark.parametrize("shift", [0, 1, -1])
def test_drafts_are_what_the_decoder_says_later(
    exported: Exported, conversations, monkeypatch, shift
) -> None:
    """A layer that hands on the decoder's later state agrees with it everywhere, and one beside it does not."""
    model = exported.model
    seen: list[tuple[int, torch.Tensor]] = []

    def draft(
        layer: int, embedded_next: torch.Tensor, hidden: torch.Tensor, lengths: list[int]
    ) -> torch.Tensor:
        seen.append((layer, embedded_next))
        return hidden.roll(-1 - layer - shift, dims=0)

    monkeypatch.setattr(model.decoder, "draft", draft)
    lengths = [end - first for one in conversations for first, end in one.turns]
    for layer, (logits, targets) in enumerate(drafts(model, conversations)):
        agreement = (logits.argmax(dim=-1) == targets).float().mean()
        assert agreement == 1 if shift == 0 else agreement < 0.9
        # An answer of n tokens has n - 1 - layer drafts within it; turns of a conversation do not touch.
        assert len(targets) == sum(max(0, length - 1 - layer) for length in lengths)
    embedded = model.embed(conversations)
    for number, (layer, embedded_next) in enumerate(seen):
        assert layer == number
        assert torch.equal(embedded_next[: -1 - layer], embedded[1 + layer :])


def test_drafting_trains_the_drafting_layers_only(exported: Exported) -> None:
    model = exported.model
    wanted = {name: parameter.requires_grad for name, parameter in model.named_parameters()}
    try:
        DraftingStage(1, model, exported.tokenizer)
        trained = {name for name, parameter in model.named_parameters() if parameter.requires_grad}
        assert trained == {name for name in wanted if name.startswith("decoder.mtp.")}
        assert trained
        assert not model.decoder.training
    finally:
        for name, parameter in model.named_parameters():
            parameter.requires_grad_(wanted[name])


def test_agreement_is_measured_on_what_the_model_said(
    exported: Exported, tmp_path, monkeypatch, capsys
) -> None:
    """Layers that see one step ahead agree everywhere; the conversations hold the model's own words."""
    wrong = {"question": "?", "expected": "3.", "answer": "The model's own words."}
    report = {"cases": 2, "failures": [{"case": "sound-1", "turns": [wrong]}]}
    samples = {(family, number): sample for sample, family, number in said(report, 2)}
    assert len(samples) == 2 * len(FAMILIES)
    assert samples["sound", 1].turns[0].answer == wrong["answer"]
    assert samples["sound", 0].turns[0].answer != wrong["answer"]
    with pytest.raises(ValueError, match="the report has 2 cases of each family, not 3"):
        next(said(report, 3))
    monkeypatch.setattr(
        exported.model.decoder,
        "draft",
        lambda layer, embedded, hidden, lengths: hidden.roll(-1 - layer, dims=0),
    )
    monkeypatch.setattr("samples.demo_training.agreement.model_after", lambda stage, run: exported.model)
    monkeypatch.setattr("samples.demo_training.agreement.trained_tokenizer", lambda run: exported.tokenizer)
    path = tmp_path / "report.json"
    path.write_text(json.dumps(report))
    monkeypatch.setattr("sys.argv", ["agreement", str(tmp_path), str(path), "--cases", "1"])
    agreement_main()
    assert json.loads(path.read_text())["head_agreement"] == [1.0, 1.0, 1.0]
    assert "agree with the decoder's own answers" in capsys.readouterr().out


def test_parts_may_learn_at_a_share_of_the_rates(tmp_path: Path) -> None:
    """With a share of zero a part stays as it is, whichever optimiser has it; the rest learns."""

    class Halves(TinyStage):
        rates = Rates(adamw=1e-2, muon=3e-2, shares={"0": 0.0, "3": 0.5})

    stage = Halves()
    before = {name: tensor.clone() for name, tensor in stage.module.state_dict().items()}
    assert train(stage, Run(folder=tmp_path))
    same = {name for name, tensor in stage.module.state_dict().items() if torch.equal(tensor, before[name])}
    assert same == {"0.weight", "0.bias"}


def test_in_bfloat16_a_stage_learns_the_same(tmp_path: Path) -> None:
    class Still(TinyStage):
        def after_step(self) -> None:
            """The map stays the same."""

    batch = torch.randn(500, 6, generator=seeded(99))
    before, losses = Still().loss(batch)[0].item(), []
    for bf16 in (False, True):
        folder = tmp_path / str(bf16)
        folder.mkdir()
        stage = Still(200)
        assert train(stage, Run(folder=folder, bf16=bf16))
        losses.append(stage.loss(batch)[0].item())
    assert losses[0] < 0.7 * before
    assert 0 < abs(losses[1] - losses[0]) < 0.1 * (before - losses[0])


def test_orthogonal_in_bfloat16_is_nearly_the_same() -> None:
    matrices = torch.randn(3, 48, 12, generator=seeded(1))
    exact, rough = orthogonal(matrices), orthogonal(matrices, torch.bfloat16)
    assert rough.dtype == torch.float32
    assert 0 < (exact - rough).norm() < 0.06 * exact.norm()


def test_in_bfloat16_the_decoder_says_nearly_the_same(exported: Exported, conversations) -> None:
    """Rows are filled up, which nobody sees; all that learns gets a gradient."""
    decoder = exported.model.decoder
    # So few that they are filled up with more rows than there are.
    lengths = [20, 13]
    token_ids = torch.cat([one.token_ids for one in conversations])[: sum(lengths)]
    exact, _ = decoder(decoder.embed_tokens(token_ids), lengths)
    with torch.autocast("cpu", torch.bfloat16):
        rough, (between,) = decoder(decoder.embed_tokens(token_ids), lengths, [4])
    assert rough.shape == exact.shape == between.shape
    assert rough.dtype == torch.float32
    assert 0 < (exact - rough).norm() < 0.1 * exact.norm()
    rough.square().sum().backward()
    for name, parameter in decoder.named_parameters():
        if name.startswith("layers.") and ".experts." not in name and not name.startswith("layers.8.mlp"):
            assert parameter.grad is not None, name
            assert parameter.grad.isfinite().all(), name
        parameter.grad = None
