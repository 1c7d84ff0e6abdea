"""What the demo model trains on is what the server gives it: the same tokens, the same media in the same places."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest
import torch

from mm_pipeline.decoding import MediaDecoder
from mm_pipeline.encoders import Caller
from mm_pipeline.limits import MediaLimits
from mm_pipeline.options import MediaOptions
from mm_pipeline.pipeline import EncodedMedia
from mm_pipeline.video import plan_frames, probe_video
from mm_pipeline.video.settings import VideoSettings
from samples.demo_training.conversations import _FILE_FPS, Conversation, Writer, frame_times, prompter
from samples.demo_training.scenes import clips, files, lettering, pictures, refusals, sounds, talk
from samples.demo_training.scenes.base import Clip, Picture, Sample, Sound
from samples.demo_training.vocabulary import full_config
from serve_apps.api.validation import check_chat_request
from serve_apps.chat.create import FolderPrompter, create_item_encoder, decoding_config
from serve_apps.chat.service import template_messages
from tests.samples.conftest import Exported

SEED = 21


@pytest.fixture(scope="module")
def write(exported: Exported) -> Callable[[Sample], Conversation]:
    def codes(mel: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            found: torch.Tensor = exported.tokenizer(mel)
        return found

    writer = Writer(codes)
    return lambda sample: writer.write(sample, np.random.default_rng(SEED))


@pytest.fixture(scope="module")
def encode(exported: Exported) -> Callable[[Path, str], EncodedMedia]:
    """A file to its embeddings, by the server's own parts."""
    encoder = create_item_encoder(exported.folder, limits=MediaLimits(), device="cpu")
    decoder = MediaDecoder(decoding_config(exported.folder), MediaLimits())

    def encoded(path: Path, modality: str) -> EncodedMedia:
        data = path.read_bytes()
        return encoder.encode(
            data,
            modality,
            MediaOptions(),
            decoder=decoder,
            source=data,
            max_tokens=4096,
            caller=Caller(owner="test"),
            key=encoder.key(data, modality, MediaOptions()),
        )

    return encoded


def write_files(sample: Sample, folder: Path) -> list[tuple[Path, str]]:
    """Files of the media, with their modalities. A clip gets the frame rate that the writer draws for it."""
    rng, written = np.random.default_rng(SEED), []
    for number, medium in enumerate(sample.media):
        if isinstance(medium, Picture):
            written.append((folder / f"{number}.png", "image"))
            files.write_picture(written[-1][0], medium)
        elif isinstance(medium, Sound):
            written.append((folder / f"{number}.wav", "audio"))
            files.write_sound(written[-1][0], medium)
        else:
            written.append((folder / f"{number}.mp4", "video"))
            fps = _FILE_FPS[int(rng.integers(len(_FILE_FPS)))]
            files.write_clip(written[-1][0], medium, fps=fps, crf=10)
    return written


def body(sample: Sample, modalities: Sequence[str], num_turns: int) -> dict:
    """A request that asks question `num_turns` after the ones before it and their answers."""
    messages: list[dict] = []
    for number, turn in enumerate(sample.turns[:num_turns]):
        media = [
            {"type": f"{kind}_url", f"{kind}_url": {"url": "data:,x"}} for kind in modalities if number == 0
        ]
        messages.append({"role": "user", "content": [*media, {"type": "text", "text": turn.question}]})
        messages.append({"role": "assistant", "content": turn.answer})
    return {"model": "demo", "messages": messages[:-1]}


SAMPLES = {
    "picture": (pictures, "describe"),
    "two_pictures": (pictures, "difference"),
    "lettering": (lettering, None),
    "sound": (sounds, "dtmf"),
    "clip_without_sound": (clips, "direction"),
    "clip_with_sound": (clips, "dialled"),
    "nothing": (talk, None),
}


@pytest.mark.parametrize("kind", SAMPLES)
def test_a_conversation_is_what_the_server_makes_of_it(exported, write, encode, tmp_path, kind) -> None:
    scenes, task = SAMPLES[kind]
    sample = scenes.sample(np.random.default_rng(8), "train", 3, task)
    conversation = write(sample)
    written = write_files(sample, tmp_path)
    served = [encode(path, modality) for path, modality in written]
    prompts = FolderPrompter(exported.folder)
    for number, (first, _) in enumerate(conversation.turns, 1):
        request = check_chat_request(body(sample, [modality for _, modality in written], number))
        prompt = prompts.expand(prompts.render(template_messages(request)), served)
        assert prompt.token_ids == tuple(conversation.token_ids[:first].tolist())
        assert [(span.start, span.length, span.media_index, span.offset) for span in prompt.spans] == [
            (span.start, span.length, span.media_index, span.offset) for span in conversation.spans
        ]
        assert [span.modality for span in prompt.spans] == [span.modality for span in conversation.spans]
        assert prompt.notes == ()


def test_embeddings_are_in_their_places(exported, write, encode, tmp_path) -> None:
    """Pictures go through the encoder in another order than they came; sound and video are mixed in between."""
    rng = np.random.default_rng(9)
    batch = [
        pictures.sample(rng, "train", 1, "difference"),
        sounds.sample(rng, "train", 1),
        clips.sample(rng, "train", 1, "dialled"),
        lettering.sample(rng, "train", 1),
        talk.sample(rng, "train", 1),
    ]
    conversations = [write(sample) for sample in batch]
    with torch.no_grad():
        embedded = exported.model.embed(conversations)
        words = exported.model.decoder.embed_tokens.weight
    parts = embedded.split([len(one.token_ids) for one in conversations])
    for number, (sample, conversation, rows) in enumerate(zip(batch, conversations, parts, strict=True)):
        folder = tmp_path / str(number)
        folder.mkdir()
        served = [encode(path, modality) for path, modality in write_files(sample, folder)]
        is_text = torch.ones(len(rows), dtype=torch.bool)
        for span in conversation.spans:
            is_text[span.start : span.start + span.length] = False
            expected = served[span.media_index].embeddings[span.offset : span.offset + span.length]
            ours = rows[span.start : span.start + span.length]
            if span.modality == "image":
                torch.testing.assert_close(ours, expected, atol=1e-4, rtol=1e-4)
            elif span.modality == "video":
                # The file is lossy.
                assert torch.cosine_similarity(ours, expected).min() > 0.9
        assert torch.equal(rows[is_text], words[conversation.token_ids[is_text]])
        assert is_text.all() == (not sample.media)


@pytest.mark.parametrize("scenes", [pictures, sounds, clips, refusals, talk])
def test_answers_are_learnt_and_nothing_else(write, scenes) -> None:
    sample = scenes.sample(np.random.default_rng(10), "train", turns=4)
    conversation = write(sample)
    decode = prompter()._tokenizer.decode
    told = [decode(conversation.token_ids[first:end]) for first, end in conversation.turns]
    assert told == [f"{turn.answer}<|im_end|>" for turn in sample.turns]
    assert conversation.tasks == tuple(turn.task for turn in sample.turns)
    learnt = torch.zeros(len(conversation.token_ids), dtype=torch.bool)
    for first, end in conversation.turns:
        learnt[first:end] = True
    assert torch.equal(conversation.learnt, learnt)
    rest = decode(conversation.token_ids[~learnt])
    assert all(turn.question in rest for turn in sample.turns)
    assert rest.count("<|im_start|>assistant\n\n") == len(sample.turns)


@pytest.mark.parametrize("fps", [6, 8, 12, 15, 25, 30])
def test_frames_are_those_that_the_server_samples(tmp_path: Path, fps: int) -> None:
    settings = VideoSettings.from_config(full_config())
    grey = np.full((32, 32, 3), 128, np.uint8)
    for duration_s in (1.0, 2.5, 3.7, 7.0, 12.0):
        path = tmp_path / f"{duration_s}.mp4"
        files.write_clip(path, Clip(duration_s=duration_s, draw=lambda _: grey), fps=fps)
        plan = plan_frames(probe_video(path.read_bytes()), settings)
        assert frame_times(duration_s, fps, settings) == pytest.approx(plan.frame_times_s, abs=1e-3)
