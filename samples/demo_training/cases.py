"""Unseen cases of the evaluation: scenes of the "test" split, their media written to files of common formats.

A case is fixed by its family and number. Its seeds begin with `SEED`, which no training run uses. Knows no model.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Protocol

import numpy as np

from samples.demo_training.scenes import clips, heard, lettering, pictures, refusals, sounds, talk
from samples.demo_training.scenes.base import Medium, Picture, Sample, Sound, Split, Turn
from samples.demo_training.scenes.files import SOUND_RATES, write_clip, write_picture, write_sound
from samples.demo_training.scenes.refusals import pick

SEED = 0xE7A1
Modality = Literal["image", "audio", "video"]

FLOORS = {"pictures": 0.92, "reading": 0.88, "sound": 0.95, "video": 0.88, "refusal": 0.90}
"""The accuracy that each family must reach; families without one are only reported."""

_PICTURE_KINDS = (".jpg", ".jpg", ".png", ".webp")
_TURNED_SHARE = 0.6
_CLIP_FPS = (6, 8, 10, 12)


class Sampler(Protocol):
    """What every module of scenes offers."""

    def __call__(
        self, rng: np.random.Generator, split: Split, turns: int = ..., task: str | None = ...
    ) -> Sample:
        """One conversation."""
        ...


@dataclass(frozen=True, kw_only=True)
class Family:
    """tasks: the names of what its scenes ask."""

    sample: Sampler
    tasks: tuple[str, ...]


FAMILIES = {
    "pictures": Family(sample=pictures.sample, tasks=pictures.TASKS),
    "reading": Family(sample=lettering.sample, tasks=lettering.TASKS),
    "sound": Family(sample=sounds.sample, tasks=heard.TASKS),
    "video": Family(sample=clips.sample, tasks=clips.TASKS),
    "refusal": Family(sample=refusals.sample, tasks=refusals.TASKS),
    "talk": Family(sample=talk.sample, tasks=talk.TASKS),
}


@dataclass(frozen=True, kw_only=True)
class MediaFile:
    """A file that goes with the first question."""

    modality: Modality
    path: Path


@dataclass(frozen=True, kw_only=True)
class Case:
    """A conversation to hold with the model. task: what it tests, of the family's tasks."""

    family: str
    task: str
    number: int
    turns: tuple[Turn, ...]
    files: tuple[MediaFile, ...]

    @property
    def name(self) -> str:
        return f"{self.family}-{self.number}"


def make_case(family: str, number: int, folder: Path) -> Case:
    """Case `number` of the family, its media written into the folder. Always the same for the same arguments.

    The tasks of a family take turns, but for refusals, which are drawn as the training draws them.
    """
    rng = case_rng(family, number)
    sample = sample_of(family, number, rng)
    files = write_media(rng, sample.media, folder, f"{family}-{number}")
    task = _task(family, number) or sample.turns[-1].task
    return Case(family=family, task=task, number=number, turns=sample.turns, files=files)


def sample_of(family: str, number: int, rng: np.random.Generator) -> Sample:
    """The conversation of a case. rng: `case_rng`'s, new."""
    return FAMILIES[family].sample(rng, "test", turns=1, task=_task(family, number))


def _task(family: str, number: int) -> str | None:
    tasks = FAMILIES[family].tasks
    return None if family == "refusal" else tasks[number % len(tasks)]


def case_rng(family: str, number: int) -> np.random.Generator:
    """The random numbers of one case."""
    return np.random.default_rng((SEED, zlib.crc32(family.encode()), number))


def write_media(
    rng: np.random.Generator, media: Sequence[Medium], folder: Path, stem: str
) -> tuple[MediaFile, ...]:
    """Each medium in a format that people send. Some JPEGs lie on their side, and their EXIF says so."""
    files = []
    for index, medium in enumerate(media):
        path = folder / f"{stem}-{index}"
        if isinstance(medium, Picture):
            path = path.with_suffix(pick(rng, _PICTURE_KINDS))
            turned = path.suffix == ".jpg" and rng.random() < _TURNED_SHARE
            write_picture(path, medium, exif_orientation=int(rng.integers(2, 9)) if turned else 1)
            files.append(MediaFile(modality="image", path=path))
        elif isinstance(medium, Sound):
            suffix = pick(rng, tuple(SOUND_RATES))
            path = path.with_suffix(suffix)
            write_sound(path, medium, sample_rate=pick(rng, tuple(SOUND_RATES[suffix])))
            files.append(MediaFile(modality="audio", path=path))
        else:
            path = path.with_suffix(".mp4")
            write_clip(path, medium, fps=pick(rng, _CLIP_FPS))
            files.append(MediaFile(modality="video", path=path))
    return tuple(files)
