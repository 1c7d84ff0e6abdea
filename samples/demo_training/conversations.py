"""Scenes to what the decoder trains on: token ids with places for media, the media, and which tokens to learn.

Prompts are made by the same code as the server's. Knows no network; the codes of sounds are asked for.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch

from mm_pipeline.image.preprocess import ImageInput
from mm_pipeline.prompt import ChatPrompter, ExpansionSettings, MediaShape, MediaSpan, VideoLayout, expand
from mm_pipeline.prompt.special_tokens import SpecialTokens
from mm_pipeline.video.patches import video_patches
from mm_pipeline.video.settings import VideoSettings
from samples.demo_training.facts import facts_known
from samples.demo_training.labels import IGNORED, ROW_S, signs_heard
from samples.demo_training.looks import Look, Looks, centres_of, units_of
from samples.demo_training.named import Text
from samples.demo_training.scenes.base import Clip, Medium, Picture, Sample, Sound
from samples.demo_training.stages.sound import mel_of
from samples.demo_training.stages.vision import patches_of
from samples.demo_training.vocabulary import full_config, load_tokenizer
from serve_apps.checkpoint.tokenizer import write_tokenizer

_FILE_FPS = (6, 8, 10, 12, 15, 24, 25, 30)

Codes = Callable[[torch.Tensor], torch.Tensor]
"""Mel frames [L, M] to codes [rows, channels]."""


@dataclass(frozen=True, kw_only=True)
class Conversation:
    """token_ids: int64 [S]. learnt: bool [S], tokens of answers, end marks included. turns: each answer's
    [first, end). tasks: per answer. spans: as in the server. seen, heard: per medium its patches, its codes.
    signs: int64 [S, 2], `labels.signs_heard` at the tokens of sounds, IGNORED elsewhere. facts: int64 [S, F],
    `facts.facts_known`. looks: `looks.Looks`.
    """

    token_ids: torch.Tensor
    learnt: torch.Tensor
    turns: tuple[tuple[int, int], ...]
    tasks: tuple[str, ...]
    spans: tuple[MediaSpan, ...]
    seen: tuple[ImageInput | None, ...]
    heard: tuple[torch.Tensor | None, ...]
    signs: torch.Tensor
    facts: torch.Tensor
    looks: tuple[Look, ...]


class Writer:
    """Samples to conversations."""

    def __init__(self, codes: Codes) -> None:
        self._codes = codes
        self._prompter = prompter()
        config = full_config()
        self._tokens = SpecialTokens.from_config(config)
        self._expansion = ExpansionSettings.from_config(config)
        self._video = VideoSettings.from_config(config)
        self._group = config["audio_config"]["group_size"]
        text = self._prompter.encode_text
        self._answer_start = [_id("<|im_start|>"), *text("assistant\n")]
        self._answer_end = _id("<|im_end|>")

    def write(self, sample: Sample, rng: np.random.Generator) -> Conversation:
        """rng: draws what the scene leaves open, such as a clip's frame rate."""
        seen, heard, shapes, kinds = [], [], [], []
        for medium in sample.media:
            image, codes, shape = self._prepare(medium, rng)
            seen.append(image)
            heard.append(codes)
            shapes.append(shape)
            kinds.append(shape.modality)
        messages: list[dict[str, Any]] = []
        for number, turn in enumerate(sample.turns):
            parts = [{"type": kind} for kind in kinds] if number == 0 else []
            messages.append({"role": "user", "content": [*parts, {"type": "text", "text": turn.question}]})
            messages.append({"role": "assistant", "content": turn.answer})
        expanded = expand(
            self._prompter.render(messages), shapes, self._tokens, self._prompter.encode_text, self._expansion
        )
        # Rendering ends where the next answer would begin.
        ids = list(expanded.token_ids[: -len(self._answer_start)])
        turns = tuple(self._answers(ids))
        learnt = torch.zeros(len(ids), dtype=torch.bool)
        for first, end in turns:
            learnt[first:end] = True
        labels = [
            self._labels(medium, image, codes)
            for medium, image, codes in zip(sample.media, seen, heard, strict=True)
        ]
        signs = torch.full((len(ids), 2), IGNORED)
        for span in expanded.spans:
            rows = labels[span.media_index][span.offset : span.offset + span.length]
            signs[span.start : span.start + span.length] = rows
        grids = [image.grid_thw for image in seen if image is not None]
        times = [time for shape in shapes if shape.layout for time in shape.layout.frame_times_s[1::2]]
        units = units_of(expanded.spans, times)
        text = Text([_piece(token_id) for token_id in ids])
        looks = Looks(text, sample.media, expanded.spans, turns=turns, grids=grids, units=units, signs=signs)
        return Conversation(
            token_ids=torch.tensor(ids),
            learnt=learnt,
            turns=turns,
            tasks=tuple(turn.task for turn in sample.turns),
            spans=expanded.spans,
            seen=tuple(seen),
            heard=tuple(heard),
            signs=signs,
            facts=facts_known(
                text,
                sample.media,
                (first for first, _ in turns),
                centres=centres_of(sample.media, expanded.spans, grids),
                units=units,
            ),
            looks=looks.all(),
        )

    def _labels(self, medium: Medium, image: ImageInput | None, codes: torch.Tensor | None) -> torch.Tensor:
        """[rows of the medium, 2]"""
        rows = [torch.full((0 if image is None else image.num_tokens, 2), IGNORED)]
        sound = medium.sound if isinstance(medium, Clip) else medium
        if isinstance(sound, Sound) and codes is not None:
            rows.append(signs_heard(sound, -(-len(codes) // self._group), self._group * ROW_S))
        return torch.cat(rows)

    def _answers(self, ids: Sequence[int]) -> list[tuple[int, int]]:
        start, found = self._answer_start, []
        for at in range(len(ids) - len(start)):
            if ids[at] == start[0] and list(ids[at : at + len(start)]) == start:
                first = at + len(start)
                found.append((first, ids.index(self._answer_end, first) + 1))
        return found

    def _prepare(
        self, medium: Medium, rng: np.random.Generator
    ) -> tuple[ImageInput | None, torch.Tensor | None, MediaShape]:
        if isinstance(medium, Picture):
            image = patches_of(medium)
            return image, None, MediaShape(modality="image", num_tokens=image.num_tokens)
        if isinstance(medium, Sound):
            codes = self._codes(mel_of(medium))
            return None, codes, MediaShape(modality="audio", num_tokens=-(-len(codes) // self._group))
        return self._prepare_clip(medium, rng)

    def _prepare_clip(
        self, clip: Clip, rng: np.random.Generator
    ) -> tuple[ImageInput | None, torch.Tensor | None, MediaShape]:
        fps = _FILE_FPS[int(rng.integers(len(_FILE_FPS)))]
        times = frame_times(clip.duration_s, fps, self._video)
        frames = np.stack([clip.draw(second) for second in times])
        image = video_patches(torch.from_numpy(frames).permute(0, 3, 1, 2), self._video)
        codes = None if clip.sound is None else self._codes(mel_of(clip.sound))
        layout = VideoLayout(
            frame_times_s=times,
            tokens_per_unit=image.num_tokens // image.grid_thw[0],
            audio_tokens=0 if codes is None else -(-len(codes) // self._group),
        )
        return image, codes, MediaShape.of_video(layout)


def frame_times(duration_s: float, fps: int, settings: VideoSettings) -> tuple[float, ...]:
    """Seconds of the frames that the server samples from a file of that length and rate."""
    there = round(duration_s * fps)
    number = min(max(int(duration_s * settings.fps), settings.min_frames), there) // 2 * 2
    return tuple(step * (there - 1) // max(number - 1, 1) / fps for step in range(max(number, 1)))


@cache
def prompter() -> ChatPrompter:
    """The server's prompt writer with the demo model's tokenizer."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_tokenizer(folder, load_tokenizer())
        (folder / "config.json").write_text(json.dumps(full_config()))
        return ChatPrompter.from_folder(folder)


@cache
def _piece(token_id: int) -> str:
    text: str = prompter()._tokenizer.decode([token_id])
    return text


def _id(token: str) -> int:
    ids: list[int] = prompter()._tokenizer.convert_tokens_to_ids([token])
    return ids[0]
