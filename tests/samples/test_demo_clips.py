"""Made-up clips: an answer follows from two frames a second and the sound, by a viewer that knows only pixels."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache

import numpy as np
import pytest

from samples.demo_training.scenes import clips
from samples.demo_training.scenes.base import SAMPLE_RATE, Clip, Split, Turn
from samples.demo_training.scenes.seen import TASKS
from samples.demo_training.scenes.seen_wordings import WORDINGS
from tests.samples import ear, eye

SPLITS: tuple[Split, ...] = ("train", "test")
NUM_CASES = 5


@cache
def cases(task: str, split: Split, turns: int = 1) -> list[tuple[Clip, tuple[Turn, ...]]]:
    found = []
    for seed in range(NUM_CASES):
        sample = clips.sample(np.random.default_rng(seed), split, turns, task)
        (clip,) = sample.media
        assert isinstance(clip, Clip)
        found.append((clip, sample.turns))
    return found


@cache
def patterns() -> list[tuple[re.Pattern[str], str]]:
    """Wordings with the names of their questions, longer ones first: "Is there a sound?" has no gap."""
    texts = [(text, name) for name, wordings in WORDINGS.items() for text in wordings]
    texts.sort(key=lambda pair: (-len(pair[0].replace("{}", "")), pair[0]))
    return [(re.compile(re.escape(text).replace(re.escape("{}"), "(.+)")), name) for text, name in texts]


def parsed(question: str) -> tuple[str, str]:
    """The name of the question, and what was filled in."""
    for pattern, name in patterns():
        match = pattern.fullmatch(question)
        if match:
            return name, match[1] if match.groups() else ""
    raise AssertionError(f"no wording has {question!r}")


@dataclass(frozen=True)
class Watched:
    """What a viewer sees and hears. frames: every half second. keys: with their seconds. num_beeps: None without
    a sound."""

    frames: list[np.ndarray]
    keys: list[tuple[str, float]]
    num_beeps: int | None

    @property
    def colours(self) -> list[tuple[int, str]]:
        """(second, colour), for clips of one shape or of the whole screen."""
        grounds = [eye.colour_name(eye.ground_of(frame)) for frame in self.frames]
        names = grounds
        if len(set(grounds)) == 1:
            names = []
            for frame in self.frames:
                blob = eye.blob(frame, eye.ground_of(frame))
                assert blob is not None
                names.append(blob.colour)
        return [
            (number // 2, name)
            for number, name in enumerate(names)
            if number == 0 or name != names[number - 1]
        ]

    @property
    def arrivals(self) -> list[tuple[int, eye.Blob]]:
        """(second, what is new), whenever something is."""
        found = []
        for number in range(1, len(self.frames)):
            frame = self.frames[number]
            new = eye.blob(frame, eye.ground_of(frame), self.frames[number - 1])
            if new is not None:
                found.append((number // 2, new))
        return found


def watch(clip: Clip) -> Watched:
    frames = [clip.draw(number / 2) for number in range(round(2 * clip.duration_s))]
    if clip.sound is None:
        return Watched(frames, [], None)
    kinds = {tone.kind for tone in clip.sound.tones}
    keys = ear.keys_and_seconds(clip.sound.samples, SAMPLE_RATE) if kinds == {"dtmf"} else []
    beeps = len(ear.beeps(clip.sound.samples, SAMPLE_RATE)) if kinds == {"beep"} else 0
    return Watched(frames, keys, beeps)


def listed(names: list[str]) -> str:
    return ", ".join(names).capitalize() + "."


def article(kind: str) -> str:
    return f"A {kind}."


def colour_answer(watched: Watched, name: str, fill: str) -> str:
    seconds, colours = (list(part) for part in zip(*watched.colours, strict=True))
    if name == "when_colour":
        return f"At second {seconds[colours.index(fill)]}." if fill in colours else "Never."
    if name == "colour_at":
        at = [colour for second, colour in watched.colours if second <= int(fill)][-1]
        assert int(fill) not in seconds[1:]
        return listed([at])
    answers = {
        "colour_order": listed(colours),
        "first_colour": listed(colours[:1]),
        "last_colour": listed(colours[-1:]),
        "num_colours": f"{len(colours)}.",
    }
    return answers[name] if name in answers else listed([colours[colours.index(fill) + 1]])


@pytest.mark.parametrize("split", SPLITS)
def test_colours_come_in_the_order_told(split: Split) -> None:
    for clip, (turn,) in cases("colours", split):
        assert turn.answer == colour_answer(watch(clip), *parsed(turn.question))


@pytest.mark.parametrize("split", SPLITS)
def test_seconds_are_those_of_the_frames(split: Split) -> None:
    for clip, (turn,) in cases("when", split):
        name, fill = parsed(turn.question)
        watched = watch(clip)
        if name == "when_colour":
            expected = colour_answer(watched, name, fill)
        elif name == "when_shape":
            seconds = [second for second, blob in watched.arrivals if blob.kind == fill]
            expected = f"At second {seconds[0]}." if seconds else f"There is no {fill}."
        else:
            seconds = [second for second, _ in watched.arrivals]
            expected = f"At second {seconds[0 if name == 'first_blink' else -1]}."
        assert turn.answer == expected


@pytest.mark.parametrize("split", SPLITS)
def test_shapes_appear_as_told(split: Split) -> None:
    for clip, (turn,) in cases("appears", split):
        name, fill = parsed(turn.question)
        arrivals = watch(clip).arrivals
        kinds = [blob.kind for _, blob in arrivals]
        if name == "shape_at":
            kinds = [blob.kind for second, blob in arrivals if second == int(fill)]
            assert len(kinds) == 1
        expected = {
            "shape_order": ", ".join(f"a {kind}" for kind in kinds).capitalize() + ".",
            "last_shape": article(kinds[-1]),
        }
        assert turn.answer == expected.get(name, article(kinds[0]))


@pytest.mark.parametrize("split", SPLITS)
def test_blinks_are_as_many_as_told(split: Split) -> None:
    for clip, (turn,) in cases("blinks", split):
        number = len(watch(clip).arrivals)
        words = {0: "It does not blink.", 1: "It blinks once."}.get(number, f"It blinks {number} times.")
        assert turn.answer == words


@pytest.mark.parametrize("split", SPLITS)
def test_shapes_move_as_told(split: Split) -> None:
    ways = {(1, 0): "to the right", (-1, 0): "to the left", (0, 1): "down", (0, -1): "up"}
    for clip, (turn,) in cases("direction", split):
        name, fill = parsed(turn.question)
        first, *_, last = watch(clip).frames
        ground = eye.ground_of(first)
        mover = eye.blob(first, ground, last)
        if name in ("way", "way_of"):
            before, after = eye.blob(first, ground), eye.blob(last, ground)
            assert before is not None
            assert after is not None
            # What stands still does not move the centre of all.
            x, y = after.x - before.x, after.y - before.y
            step = (int(np.sign(x)), 0) if abs(x) > abs(y) else (0, int(np.sign(y)))
            assert turn.answer == ("It stands still." if mover is None else f"It moves {ways[step]}.")
        else:
            assert mover is not None
            expected = article(mover.kind) if name == "mover" else "Yes." if fill == mover.kind else "No."
            assert turn.answer == expected


@pytest.mark.parametrize("split", SPLITS)
def test_keys_are_dialled_as_told(split: Split) -> None:
    for clip, (turn,) in cases("dialled", split):
        name, fill = parsed(turn.question)
        watched = watch(clip)
        if name == "keys":
            absent = "There is no sound." if clip.sound is None else "No keys were dialled."
            assert turn.answer == ("".join(key for key, _ in watched.keys) or absent)
            continue
        during = {colour: "" for _, colour in watched.colours}
        for key, seconds in watched.keys:
            # Keys keep clear of the second in which the colour changes, so that whole seconds tell.
            colour = [colour for second, colour in watched.colours if second <= seconds][-1]
            assert int(seconds) not in [second for second, _ in watched.colours[1:]]
            during[colour] += key
        if name == "colour_of_key":
            assert during[turn.answer.lower().rstrip(".")].count(fill) == 1
        else:
            assert turn.answer == (during[fill.split()[-1]] or "No keys were dialled.")


@pytest.mark.parametrize("split", SPLITS)
def test_sounds_are_as_told(split: Split) -> None:
    for clip, (turn,) in cases("sound", split):
        name, _ = parsed(turn.question)
        watched = watch(clip)
        if name == "num_beeps":
            assert turn.answer == f"{watched.num_beeps}."
        elif name == "any_sound":
            assert turn.answer == ("No." if clip.sound is None else "Yes.")
        elif clip.sound is None:
            assert turn.answer == "There is no sound."
        else:
            assert turn.answer == ("Dial tones." if watched.keys else "Beeps.")


@pytest.mark.parametrize("split", SPLITS)
def test_shapes_and_colours_are_as_told(split: Split) -> None:
    for clip, (turn,) in cases("shapes", split):
        name, fill = parsed(turn.question)
        watched = watch(clip)
        first = watched.frames[0]
        start = eye.blob(first, eye.ground_of(first))
        # Something may be there, or move, from the start on; else all of it comes later.
        shown = [blob for _, blob in watched.arrivals] if start is None else [start]
        kinds = {blob.kind for blob in shown}
        if name == "shape":
            assert {turn.answer} == {article(kind) for kind in kinds}
        # Two shapes that are there from the start on are not taken apart here.
        elif name == "any_shape" and start is None:
            assert turn.answer == ("Yes." if fill.split()[-1] in kinds else "No.")
        elif name == "num_shapes" and start is None:
            assert turn.answer == f"{len(kinds)}."
        elif name == "colour_of" and start is None:
            assert turn.answer == listed([next(blob.colour for blob in shown if blob.kind == fill)])
        elif name == "shape_of" and start is None:
            assert turn.answer == article(next(blob.kind for blob in shown if blob.colour == fill))


def test_every_question_is_asked_and_none_twice() -> None:
    asked = set()
    for task in TASKS:
        for seed in range(9):
            turns = clips.sample(np.random.default_rng(seed), "train", 8, task).turns
            assert turns[0].task == task
            names = [parsed(turn.question)[0] for turn in turns]
            assert len(set(names)) == len(names)
            asked.update(names)
    assert asked == set(WORDINGS)
    assert all(len(set(wordings)) >= 5 for wordings in WORDINGS.values())


def test_the_same_seed_gives_the_same_clip() -> None:
    (first, first_turns), (second, second_turns) = (
        (sample.media[0], sample.turns)
        for sample in (clips.sample(np.random.default_rng(3), "test", 4, "dialled") for _ in range(2))
    )
    assert first_turns == second_turns
    assert isinstance(first, Clip)
    assert isinstance(second, Clip)
    assert first.sound is not None
    assert second.sound is not None
    np.testing.assert_array_equal(first.sound.samples, second.sound.samples)
    for seconds in (0.0, 1.5, 2.5):
        np.testing.assert_array_equal(first.draw(seconds), second.draw(seconds))


@pytest.mark.parametrize("split", SPLITS)
def test_clips_last_whole_seconds_and_their_sound_as_long(split: Split) -> None:
    for task in TASKS:
        for clip, _ in cases(task, split):
            assert clip.duration_s == int(clip.duration_s)
            assert 3 <= clip.duration_s <= 12
            height, width, _ = clip.draw(0.0).shape
            assert height % 2 == width % 2 == 0
            if clip.sound is not None:
                assert len(clip.sound.samples) == clip.duration_s * SAMPLE_RATE


def test_an_unknown_task_is_named() -> None:
    with pytest.raises(ValueError, match=r"no task 'plot' here; there are colours, .*shapes"):
        clips.sample(np.random.default_rng(0), "train", task="plot")
