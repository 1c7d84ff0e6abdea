"""What is trained is what is served: a checkpoint folder computes as the modules with gradients do."""

from __future__ import annotations

import json
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from llm_core.config import load_config
from llm_core.engine import Engine, EngineSettings
from llm_core.weights import CheckpointFolder, load_decoder
from mm_pipeline.encoders import create_audio_encoder, create_image_encoder
from mm_pipeline.encoders.mimo_audio import group_codes
from samples.demo_training.architecture import tokenizer_config
from samples.demo_training.decoder import Decoder
from samples.demo_training.export import hub_tensors, last_finished
from samples.demo_training.export import main as export_main
from samples.demo_training.scenes import lettering, pictures, sounds
from samples.demo_training.scenes.base import Picture, Sound
from samples.demo_training.stages.sound import mel_of
from samples.demo_training.stages.vision import patches_of
from samples.demo_training.start import main as start_main
from samples.demo_training.train import STEPS, model_after, trained_tokenizer
from samples.demo_training.training import Run
from samples.demo_training.vocabulary import full_config
from serve_apps.checkpoint.audio_tokenizer import open_audio_tokenizer
from tests.llm_core.support import LetterDecoder, request, run, tokens_of
from tests.samples.conftest import Exported

NUM_GREEDY = 12


def prompt(length: int) -> list[int]:
    return torch.randint(0, 1000, (length,), generator=torch.Generator().manual_seed(length)).tolist()


def logits(decoder: Decoder, prompts: list[list[int]]) -> torch.Tensor:
    with torch.no_grad():
        embedded = decoder.embed_tokens(torch.tensor([token for one in prompts for token in one]))
        out: torch.Tensor = decoder.lm_head(decoder(embedded, [len(one) for one in prompts])[0])
    return out


@pytest.fixture(scope="module")
def engine(exported: Exported):
    settings = EngineSettings(dtype="float32", kv_memory_bytes=64 << 20, prefill_chunk_tokens=48)
    model = load_decoder(load_config(exported.folder), CheckpointFolder(exported.folder), dtype=torch.float32)
    engine = Engine(model, LetterDecoder(), settings)
    engine.start()
    yield engine
    engine.shutdown()


# The window is 65 keys: one prompt stays within it even with its answer, one grows over it, one is over it.
@pytest.mark.parametrize("length", [20, 60, 150])
def test_the_engine_says_what_the_trained_decoder_says(
    exported: Exported, engine: Engine, length: int
) -> None:
    decoder = exported.model.decoder
    tokens = prompt(length)
    deltas = run(engine, request(tokens, max_tokens=NUM_GREEDY, num_logprobs=1))
    answer = tokens_of(deltas)
    assert len(answer) == NUM_GREEDY
    assert len(set(answer)) > 1
    expected = logits(decoder, [tokens + answer])[length - 1 : -1].log_softmax(dim=-1)
    assert expected.argmax(dim=-1).tolist() == answer
    told = [entry.logprob for delta in deltas for entry in delta.logprobs]
    torch.testing.assert_close(torch.tensor(told), expected.max(dim=-1).values, atol=2e-4, rtol=0)


def test_conversations_of_a_batch_do_not_see_each_other(exported: Exported) -> None:
    prompts = [prompt(length) for length in (7, 90, 33)]
    together = logits(exported.model.decoder, prompts)
    alone = torch.cat([logits(exported.model.decoder, [one]) for one in prompts])
    torch.testing.assert_close(together, alone, atol=1e-4, rtol=0)


def test_every_tensor_arrives_the_drafting_layers_too(exported: Exported) -> None:
    loaded = load_decoder(
        load_config(exported.folder), CheckpointFolder(exported.folder), dtype=torch.float32, with_mtp=True
    )
    there = dict(loaded.named_parameters())
    trained = exported.model.decoder.state_dict()
    assert len(loaded.mtp) == 3
    for layer in range(3):
        own, ours = f"mtp.{layer}.", f"mtp.layers.{layer}."
        for name in ("enorm", "hnorm", "eh_proj", "pre_mlp_layernorm", "final_layernorm", "self_attn.o_proj"):
            assert torch.equal(there[f"{own}{name}.weight"], trained[f"{ours}{name}.weight"]), name
        projections = [trained[f"{ours}self_attn.{part}_proj.weight"] for part in "qkv"]
        assert torch.equal(there[f"{own}self_attn.qkv_proj.weight"], torch.cat(projections))
    # Nothing of what is trained is left out but what serves training alone: fusing only joins tensors.
    numbers = sum(tensor.numel() for tensor in hub_tensors(exported.model).values())
    kept = {
        name: tensor
        for name, tensor in exported.model.state_dict().items()
        if not name.startswith(("sign_heads.", "fact_heads.", "picture_heads."))
    }
    assert numbers == sum(tensor.numel() for tensor in kept.values())


def test_the_folder_is_small_and_like_any_other(exported: Exported) -> None:
    files = {path.relative_to(exported.folder).as_posix() for path in exported.folder.rglob("*.*")}
    assert files == {
        "audio_tokenizer/config.json",
        "audio_tokenizer/model.safetensors",
        "chat_template.jinja",
        "config.json",
        "generation_config.json",
        "model.safetensors",
        "special_tokens_map.json",
        "tokenizer.json",
        "tokenizer_config.json",
        "training_heads/model.safetensors",
    }
    assert exported.num_bytes <= 25_000_000
    assert exported.num_bytes == sum((exported.folder / name).stat().st_size for name in files)
    assert json.loads((exported.folder / "config.json").read_text()) == full_config()
    assert open_audio_tokenizer(exported.folder)[0] == tokenizer_config()


def test_pictures_are_seen_as_in_training(exported: Exported) -> None:
    rng = np.random.default_rng(5)
    drawn = [scene.sample(rng, "train").media[0] for scene in (pictures, lettering)]
    images = [patches_of(picture) for picture in drawn if isinstance(picture, Picture)]
    encoder = create_image_encoder(
        full_config(), CheckpointFolder(exported.folder), torch.float32, torch.device("cpu")
    )
    served = torch.cat(encoder.encode(images))
    with torch.no_grad():
        trained = exported.model.vision(
            torch.cat([image.patches for image in images]), [image.grid_thw for image in images]
        )
    torch.testing.assert_close(served, trained, atol=1e-4, rtol=1e-4)


def test_sounds_are_heard_as_in_training(exported: Exported) -> None:
    (sound,) = sounds.sample(np.random.default_rng(6), "train").media
    assert isinstance(sound, Sound)
    mel = mel_of(sound)
    encoder = create_audio_encoder(
        full_config(),
        CheckpointFolder(exported.folder),
        *open_audio_tokenizer(exported.folder),
        torch.float32,
        torch.device("cpu"),
    )
    with torch.no_grad():
        codes = exported.tokenizer(mel)
        trained = exported.model.hearing(group_codes(codes, encoder.group_size))
    # A code whose rival is as near might differ; none of these has one.
    assert torch.equal(encoder.codes(mel), codes)
    assert len(codes.unique()) > 20
    (served,) = encoder.encode([[mel]])
    torch.testing.assert_close(served, trained, atol=1e-4, rtol=1e-4)


def keep(run: Run, stage: str, module: torch.nn.Module, step: int) -> None:
    torch.save({"module": module.state_dict(), "step": step}, run.state_path(stage))


def test_the_command_takes_the_last_stage_that_is_done(exported: Exported, tmp_path, monkeypatch) -> None:
    monkeypatch.setattr("samples.demo_training.export.stage_of", lambda name, run: SimpleNamespace(steps=9))
    run = Run(folder=tmp_path / "run")
    run.folder.mkdir()
    keep(run, "codebooks", exported.tokenizer, 1)
    keep(run, "together", torch.nn.Linear(1, 1), 8)
    with pytest.raises(ValueError, match=r"no stage of .*run that can answer is finished"):
        last_finished(run)
    keep(run, "answers", exported.model, 9)
    out = tmp_path / "out"
    monkeypatch.setattr("sys.argv", ["export", str(run.folder), str(out)])
    export_main()
    name = "model.safetensors"
    assert (out / name).read_bytes() == (exported.folder / name).read_bytes()
    monkeypatch.setattr("sys.argv", ["export", str(tmp_path / "none"), str(out)])
    with pytest.raises(SystemExit, match=r"export: no stage of .*none"):
        export_main()


def test_training_goes_on_from_a_checkpoint(exported: Exported, tmp_path, monkeypatch, capsys) -> None:
    """Every tensor comes back, those that only training has too; a run that has begun stays as it is."""
    folder = tmp_path / "run"
    monkeypatch.setattr("sys.argv", ["start", str(exported.folder), str(folder)])
    start_main()
    assert "--stages together,drafting" in capsys.readouterr().out
    run_folder = Run(folder=folder)
    for wanted, got in (
        (exported.model, model_after("answers", run_folder)),
        (exported.tokenizer, trained_tokenizer(run_folder)),
    ):
        state = got.state_dict()
        assert state.keys() == wanted.state_dict().keys()
        for name, tensor in wanted.state_dict().items():
            assert torch.equal(state[name], tensor), name
    assert torch.load(folder / "answers.pt", weights_only=True)["step"] == STEPS["answers"]
    with pytest.raises(SystemExit, match=r"answers\.pt is there already"):
        start_main()
    monkeypatch.setattr("sys.argv", ["start", str(tmp_path / "none"), str(tmp_path / "other")])
    with pytest.raises(SystemExit, match="none"):
        start_main()
