"""What a sound holds, and the questions that it answers. Knows no waveform.

Every answer follows from the sound alone, in exactly one wording. What one could dispute is not asked: whether a
dial tone is a beep, whether dots alone are Morse code.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

import numpy as np

from samples.demo_training.scenes.base import Turn
from samples.demo_training.scenes.tones import KEYS, MORSE
from samples.demo_training.scenes.wording import sentence, yes_or_no

HeardKind: TypeAlias = Literal["dtmf", "morse", "beeps", "sweep", "steady", "silence"]

TASKS: tuple[str, ...] = (
    "dtmf",
    "keys",
    "morse",
    "direction",
    "count",
    "loudness",
    "pitch",
    "kind",
    "negative",
)

KIND_ANSWERS: dict[HeardKind, str] = {
    "dtmf": "Dial tones.",
    "morse": "Morse code.",
    "beeps": "Beeps.",
    "sweep": "A sweep.",
    "silence": "Nothing.",
}

WORDINGS: dict[str, tuple[str, ...]] = {
    "dialled": (
        "Which keys were dialled?",
        "What was dialled?",
        "What number was dialled?",
        "Which keys were pressed?",
        "Which number do the dial tones give?",
        "Read the dial tones.",
        "What do the dial tones say?",
    ),
    "num_keys": (
        "How many keys were dialled?",
        "How many keys were pressed?",
        "How many dial tones are there?",
        "Count the dialled keys.",
        "How many keys do you hear?",
    ),
    "first_key": (
        "Which key was dialled first?",
        "What is the first key?",
        "Which key was pressed first?",
        "Name the first key.",
        "With which key does it begin?",
    ),
    "last_key": (
        "Which key was dialled last?",
        "What is the last key?",
        "Which key was pressed last?",
        "Name the last key.",
        "With which key does it end?",
    ),
    "has_key": (
        "Was the key {key} dialled?",
        "Was {key} pressed?",
        "Is there a {key} among the keys?",
        "Do you hear the key {key}?",
        "Does the number have a {key} in it?",
    ),
    "morse": (
        "What does the Morse code say?",
        "What was sent in Morse code?",
        "Read the Morse code.",
        "Which letters were sent?",
        "What does the Morse message say?",
        "Decode the Morse code.",
        "What do the dots and dashes say?",
    ),
    "direction": (
        "Does the tone rise or fall?",
        "Does the pitch go up or down?",
        "Is the tone rising or falling?",
        "What does the pitch do?",
        "How does the tone change?",
        "In which direction does the tone go?",
        "Does it get higher or lower?",
    ),
    "num_beeps": (
        "How many beeps are there?",
        "How many beeps do you hear?",
        "How often does it beep?",
        "Count the beeps.",
        "How many times does it beep?",
        "What is the number of beeps?",
    ),
    "loudness": (
        "Which beeps are loud and which are soft?",
        "How loud are the beeps, one after another?",
        "In which order do loud and soft beeps come?",
        "Tell me for each beep: loud or soft?",
        "Loud or soft: what is each beep?",
    ),
    "louder": (
        "Which beep is louder?",
        "Which beep is the louder one?",
        "Is the first or the second beep louder?",
        "Which of the two beeps is louder?",
        "Which one of the beeps is stronger?",
    ),
    "num_loud": (
        "How many beeps are loud?",
        "How many loud beeps are there?",
        "How many loud beeps do you hear?",
        "Count the loud beeps.",
        "How many of the beeps are loud?",
    ),
    "pitch": (
        "Which beeps are high and which are low?",
        "How high are the beeps, one after another?",
        "In which order do high and low beeps come?",
        "Tell me for each beep: high or low?",
        "High or low: what is each beep?",
    ),
    "higher": (
        "Which beep is higher?",
        "Which beep is the higher one?",
        "Is the first or the second beep higher?",
        "Which of the two beeps has the higher pitch?",
        "Which one of the beeps is higher in pitch?",
    ),
    "num_high": (
        "How many beeps are high?",
        "How many high beeps are there?",
        "How many high beeps do you hear?",
        "Count the high beeps.",
        "How many of the beeps are high?",
    ),
    "kind": (
        "What kind of sound is it?",
        "What do you hear?",
        "What is in the recording?",
        "What sort of sound is this?",
        "What can you hear?",
        "Is it dial tones, Morse code, beeps or a sweep?",
        "What is this sound?",
    ),
    "any_keys": (
        "Were any keys dialled?",
        "Was anything dialled?",
        "Are there any dial tones?",
        "Do you hear dial tones?",
        "Did anybody press a key?",
    ),
    "any_morse": (
        "Is there any Morse code?",
        "Do you hear Morse code?",
        "Was anything sent in Morse code?",
        "Is it Morse code?",
        "Are there dots and dashes?",
    ),
    "any_sweep": (
        "Is there a sweep?",
        "Do you hear a sweep?",
        "Is it a sweep?",
        "Is there a tone that glides?",
        "Do you hear a gliding tone?",
    ),
    "any_beeps": (
        "Are there any beeps?",
        "Do you hear beeps?",
        "Does anything beep?",
        "Is there a beep?",
        "Can you hear a beep?",
    ),
}


@dataclass(frozen=True, kw_only=True)
class Heard:
    """What a sound holds. text: its keys or its Morse letters. num_beeps; loud, high: for each beep, or empty when
    they are all alike. direction: what a sweep does."""

    kind: HeardKind
    text: str = ""
    num_beeps: int = 0
    loud: tuple[bool, ...] = ()
    high: tuple[bool, ...] = ()
    direction: str = ""


@dataclass(frozen=True, kw_only=True)
class _Question:
    name: str
    answer: str
    key: str = ""


def turns_about(rng: np.random.Generator, heard: Heard, first: str, count: int) -> tuple[Turn, ...]:
    """Up to `count` different questions, the first of the task `first`."""
    asked: dict[str, Turn] = {}
    names = [first, *(str(name) for name in rng.permutation(TASKS))]
    # Tasks with several questions come round again.
    for name in names + names[1:]:
        open_questions = [q for q in _questions(rng, heard, name) if q.name not in asked]
        if open_questions and len(asked) < count:
            question = open_questions[int(rng.integers(len(open_questions)))]
            wording = str(rng.choice(WORDINGS[question.name])).format(key=question.key)
            asked[question.name] = Turn(question=wording, answer=question.answer, task=name)
    return tuple(asked.values())


def has_dots_and_dashes(text: str) -> bool:
    """Whether a Morse text can be told from a row of beeps."""
    return len(set("".join(MORSE[letter] for letter in text))) == 2


def _questions(rng: np.random.Generator, heard: Heard, task: str) -> list[_Question]:
    """What the task can ask of this sound."""
    if task == "dtmf" and heard.kind == "dtmf":
        return [_Question(name="dialled", answer=heard.text)]
    if task == "keys" and heard.kind == "dtmf":
        return _key_questions(rng, heard.text)
    if task == "morse" and heard.kind == "morse":
        return [_Question(name="morse", answer=heard.text)]
    if task == "direction" and heard.direction:
        return [_Question(name="direction", answer=heard.direction)]
    if task == "count" and heard.kind in ("beeps", "silence"):
        return [_Question(name="num_beeps", answer=f"{heard.num_beeps}.")]
    if task == "loudness" and heard.loud:
        return _pattern_questions(heard.loud, ("loud", "soft"), ("loudness", "louder", "num_loud"))
    if task == "pitch" and heard.high:
        return _pattern_questions(heard.high, ("high", "low"), ("pitch", "higher", "num_high"))
    # One beep is no row of beeps.
    is_plain = has_dots_and_dashes(heard.text) if heard.kind == "morse" else heard.num_beeps != 1
    if task == "kind" and heard.kind in KIND_ANSWERS and is_plain:
        return [_Question(name="kind", answer=KIND_ANSWERS[heard.kind])]
    if task == "negative":
        return _presence_questions(heard)
    return []


def _key_questions(rng: np.random.Generator, keys: str) -> list[_Question]:
    """First and last key, how many, whether a key is among them (as often as not)."""
    others = [key for key in KEYS if key not in keys]
    is_in = bool(rng.random() < 0.5)
    return [
        _Question(name="num_keys", answer=f"{len(keys)}."),
        _Question(name="first_key", answer=keys[0]),
        _Question(name="last_key", answer=keys[-1]),
        _Question(
            name="has_key",
            answer=yes_or_no(is_in),
            key=str(rng.choice(list(keys) if is_in else others)),
        ),
    ]


def _pattern_questions(
    marked: tuple[bool, ...], words: tuple[str, str], names: tuple[str, str, str]
) -> list[_Question]:
    """The order of the two words; which beep is it; how many are."""
    order, which, how_many = names
    answer = ", ".join(words[0] if mark else words[1] for mark in marked)
    questions = [
        _Question(name=order, answer=sentence(answer)),
        _Question(name=how_many, answer=f"{sum(marked)}."),
    ]
    if len(marked) == 2:
        questions.append(_Question(name=which, answer="The first." if marked[0] else "The second."))
    return questions


def _presence_questions(heard: Heard) -> list[_Question]:
    """Whether something is there, and questions about what is not."""
    questions = [
        _Question(name="any_keys", answer=yes_or_no(heard.kind == "dtmf")),
        _Question(name="any_sweep", answer=yes_or_no(heard.kind == "sweep")),
    ]
    # A steady tone, a dial tone or a sign of Morse code may be called a beep; dots alone may be beeps.
    if heard.kind in ("beeps", "sweep", "silence"):
        questions.append(_Question(name="any_beeps", answer=yes_or_no(heard.kind == "beeps")))
    if heard.kind != "morse":
        questions.append(_Question(name="any_morse", answer="No."))
        questions.append(_Question(name="morse", answer="There is no Morse code."))
    elif has_dots_and_dashes(heard.text):
        # Twice: what is not there is asked for more often.
        questions += [_Question(name="any_morse", answer="Yes.")] * 2
    if heard.kind != "dtmf":
        questions.append(_Question(name="dialled", answer="No keys were dialled."))
    return questions
