"""Made-up sounds: what is claimed of them can be heard in them, by detectors that know only the standards."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest

from samples.demo_training.scenes import heard, sounds, tones
from samples.demo_training.scenes.base import SAMPLE_RATE, Sound, Split, Tone, Turn
from tests.samples import ear

SPLITS: tuple[Split, ...] = ("train", "test")
NUM_CASES = 6


@cache
def cases(task: str, split: Split, turns: int = 1) -> list[tuple[Sound, tuple[Turn, ...]]]:
    found = []
    for seed in range(NUM_CASES):
        sample = sounds.sample(np.random.default_rng(seed), split, turns, task)
        (sound,) = sample.media
        assert isinstance(sound, Sound)
        found.append((sound, sample.turns))
    return found


@pytest.mark.parametrize("split", SPLITS)
def test_dialled_keys_can_be_heard(split: Split) -> None:
    for sound, (turn,) in cases("dtmf", split):
        assert turn.answer == ear.dialled(sound.samples, SAMPLE_RATE)


@pytest.mark.parametrize("split", SPLITS)
def test_morse_code_can_be_heard(split: Split) -> None:
    for sound, (turn,) in cases("morse", split):
        assert turn.answer == ear.morse(sound.samples, SAMPLE_RATE)


@pytest.mark.parametrize("split", SPLITS)
def test_directions_can_be_heard(split: Split) -> None:
    for sound, (turn,) in cases("direction", split):
        octaves = ear.slope(sound.samples, SAMPLE_RATE)
        expected = "It stays the same." if abs(octaves) < 0.2 else "It rises." if octaves > 0 else "It falls."
        assert turn.answer == expected


@pytest.mark.parametrize("split", SPLITS)
def test_beeps_can_be_counted(split: Split) -> None:
    for sound, (turn,) in cases("count", split):
        number = len(ear.beeps(sound.samples, SAMPLE_RATE)) if sound.tones else 0
        assert turn.answer == f"{number}."


def order(high: list[bool], words: tuple[str, str]) -> str:
    return ", ".join(words[0] if one else words[1] for one in high).capitalize() + "."


@pytest.mark.parametrize("split", SPLITS)
def test_loud_and_soft_high_and_low_beeps_can_be_told_apart(split: Split) -> None:
    def check(turns: tuple[Turn, ...], marked: list[bool], task: str, words: tuple[str, str]) -> None:
        told = {turn.question: turn.answer for turn in turns if turn.task == task}
        assert told
        right = {order(marked, words), f"{sum(marked)}.", "The first." if marked[0] else "The second."}
        assert set(told.values()) <= right

    for sound, turns in cases("loudness", split, turns=9):
        levels = [power for _, power in ear.beeps(sound.samples, SAMPLE_RATE)]
        # 9 dB below the loudest.
        check(turns, [level > max(levels) / 8 for level in levels], "loudness", ("loud", "soft"))
    for sound, turns in cases("pitch", split, turns=9):
        pitches = [hz for hz, _ in ear.beeps(sound.samples, SAMPLE_RATE)]
        check(turns, [hz > 1.2 * min(pitches) for hz in pitches], "pitch", ("high", "low"))


def names(sound: Sound) -> str:
    return "".join(tone.name for tone in sound.tones)


def kinds(sound: Sound) -> set[str]:
    return {tone.kind for tone in sound.tones}


@pytest.mark.parametrize("split", SPLITS)
def test_questions_agree_with_the_tones(split: Split) -> None:
    what = {"dtmf": "Dial tones.", "morse": "Morse code.", "beep": "Beeps.", "sweep": "A sweep."}
    checked = set()
    for task in heard.TASKS:
        for sound, turns in cases(task, split, turns=9):
            assert turns[0].task == task
            assert len({turn.question for turn in turns}) == len(turns)
            found, keys = kinds(sound), names(sound)
            for turn in turns:
                name = next(n for n, wordings in heard.WORDINGS.items() if is_one_of(turn.question, wordings))
                checked.add(name)
                if name == "kind":
                    assert turn.answer == (what[found.pop()] if found else "Nothing.")
                    found = kinds(sound)
                elif name.startswith("any_"):
                    kind = {"keys": "dtmf", "morse": "morse", "sweep": "sweep", "beeps": "beep"}[name[4:]]
                    assert turn.answer == ("Yes." if kind in found else "No.")
                elif name == "dialled":
                    assert turn.answer == (keys if found == {"dtmf"} else "No keys were dialled.")
                elif name == "num_keys":
                    assert turn.answer == f"{len(keys)}."
                elif name in ("first_key", "last_key"):
                    assert turn.answer == keys[0 if name == "first_key" else -1]
                elif name == "has_key":
                    asked = next(key for key in turn.question if key in tones.KEYS)
                    assert turn.answer == ("Yes." if asked in keys else "No.")
                elif name == "morse" and found != {"morse"}:
                    assert turn.answer == "There is no Morse code."
                elif name == "num_beeps":
                    assert turn.answer == f"{len(sound.tones)}."
    assert checked == set(heard.WORDINGS)


def is_one_of(question: str, wordings: tuple[str, ...]) -> bool:
    return any(question == wording.format(key=key) for wording in wordings for key in ("", *tones.KEYS))


@pytest.mark.parametrize("split", SPLITS)
def test_yes_and_no_both_occur_often(split: Split) -> None:
    answers = [
        turn.answer
        for seed in range(50)
        for turn in sounds.sample(np.random.default_rng(seed), split, 1, "negative").turns
        if turn.answer in ("Yes.", "No.")
    ]
    assert 0.25 < answers.count("Yes.") / len(answers) < 0.6


def test_wordings_vary() -> None:
    assert all(len(set(wordings)) >= 5 for wordings in heard.WORDINGS.values())


@pytest.mark.parametrize("split", SPLITS)
def test_marks_are_where_the_tones_are(split: Split) -> None:
    for task in ("dtmf", "morse", "count", "direction"):
        for sound, _ in cases(task, split):
            for tone in sound.tones:
                assert is_there(sound, tone)


def is_there(sound: Sound, tone: Tone) -> bool:
    """Its ends hold its frequencies; 30 ms before and after, there is next to nothing of them."""
    begin, end = round(tone.start_s * SAMPLE_RATE), round(tone.end_s * SAMPLE_RATE)
    # Of a glide, so little that its frequency is one.
    length = round((0.015 if tone.kind == "sweep" else 0.05) * SAMPLE_RATE)
    beside = round(0.03 * SAMPLE_RATE)
    first = strength(sound.samples[begin : begin + length], tone.start_hz)
    last = strength(sound.samples[end - length : end], tone.end_hz)
    # A dial tone is two sines; a beep with harmonics is mostly its first.
    return (
        min(first, last) > 0.2 * tone.level
        and strength(sound.samples[begin - beside : begin], tone.start_hz) < 0.5 * first
        and strength(sound.samples[end : end + beside], tone.end_hz) < 0.5 * last
    )


def strength(samples: np.ndarray, hz: float) -> float:
    wave = np.exp(-2j * np.pi * hz * np.arange(len(samples)) / SAMPLE_RATE)
    return float(abs(samples @ wave)) / len(samples)


@pytest.mark.parametrize("split", SPLITS)
def test_levels_of_marks_are_those_of_the_samples(split: Split) -> None:
    for sound, _ in cases("dtmf", split):
        for tone in sound.tones:
            part = sound.samples[round(tone.start_s * SAMPLE_RATE) : round(tone.end_s * SAMPLE_RATE)]
            # The rest is noise, at most 14 dB below, hum and an offset.
            assert np.std(part) == pytest.approx(tone.level, rel=0.15)


@pytest.mark.parametrize("split", SPLITS)
def test_sounds_are_short_and_not_clipped(split: Split) -> None:
    for task in heard.TASKS:
        for sound, _ in cases(task, split):
            assert sound.samples.dtype == np.float32
            assert 0.6 <= len(sound.samples) / SAMPLE_RATE <= 9.1
            assert np.abs(sound.samples).max() <= 1
            for tone in sound.tones:
                assert 0 < tone.start_s < tone.end_s <= len(sound.samples) / SAMPLE_RATE


def test_the_same_seed_gives_the_same_sample() -> None:
    first, second = (sounds.sample(np.random.default_rng(7), "train") for _ in range(2))
    assert first.turns == second.turns
    (one,), (other,) = first.media, second.media
    assert isinstance(one, Sound)
    assert isinstance(other, Sound)
    assert one.tones == other.tones
    np.testing.assert_array_equal(one.samples, other.samples)


def test_splits_share_no_number() -> None:
    rng = np.random.default_rng(0)
    drawn = {split: {int(10 * tones.pick(rng, split, 5, 6) - 50) for _ in range(300)} for split in SPLITS}
    assert drawn["train"] | drawn["test"] == set(range(tones.NUM_SLOTS))
    assert not drawn["train"] & drawn["test"]
    # Tests ask for nothing beyond what training has seen.
    assert min(drawn["train"]) < min(drawn["test"])
    assert max(drawn["test"]) < max(drawn["train"])


def test_callers_mistakes_are_named() -> None:
    rng = np.random.default_rng(0)
    with pytest.raises(ValueError, match=r"no task 'song' here; there are dtmf, .*negative"):
        sounds.sample(rng, "train", task="song")
    tape = tones.Tape(rng, "train")
    tape.beep(tones.voice(rng, "train"), hz=440, seconds=1.0)
    with pytest.raises(ValueError, match=r"the tape is at 1.000 s, past 0.500 s"):
        tape.rest_until(0.5)
    with pytest.raises(ValueError, match=r"0.900 s are too short: the tape ends at 1.000 s"):
        tape.record(0.9)
