"""Sounds with questions: dialled keys, Morse code, beeps, sweeps, silence. Knows no files and no model.

Every answer follows from the sound alone, in exactly one wording. Morse code that is to be told from beeps holds
both dots and dashes; beeps of one sound are all equally long.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from samples.demo_training.scenes.base import Sample, Sound, Split
from samples.demo_training.scenes.heard import TASKS, Heard, has_dots_and_dashes, turns_about
from samples.demo_training.scenes.tones import (
    KEYS,
    MORSE,
    TELEPHONE_HZ,
    Tape,
    Voice,
    morse_units,
    pick,
    voice,
)

MAX_KEYS = 8
MAX_BEEPS = 8
MAX_MORSE_S = 7.0
MAX_ROW_S = 6.0
# 20 is the speed of most tools that make Morse code; it lies inside.
MORSE_WPM = (8.0, 21.0)
# Alone, dots and dashes are told apart by their length only: dots end at 0.11 s, dashes begin at 0.24 s.
MIDDLE_WPM = (11.0, 15.0)
MORSE_WORDS = (
    "SOS",
    "CQ",
    "OK",
    "HI",
    "HELLO",
    "TEST",
    "NAME",
    "YES",
    "NO",
    "73",
    "88",
    "QTH",
    "QSL",
    "OVER",
)


def sample(rng: np.random.Generator, split: Split, turns: int = 4, task: str | None = None) -> Sample:
    """A sound and up to `turns` different questions; the first tests `task`, or one drawn from `TASKS`.

    Raises ValueError for a task that is not among them.
    """
    if task is not None and task not in TASKS:
        raise ValueError(f"no task {task!r} here; there are {', '.join(TASKS)}")
    first = task if task is not None else str(rng.choice(TASKS))
    heard, sound = _scene(rng, split, first)
    return Sample(turns=turns_about(rng, heard, first, turns), media=(sound,))


def dial(
    rng: np.random.Generator, split: Split, tape: Tape, keys: str, sender: Voice, *, within_s: float
) -> None:
    """Lays these keys on the tape, at a speed drawn for the split at which they take at most `within_s`."""
    longest = within_s / (1.15 * (2 * len(keys) - 1))
    # Telephones are quick; people at a tone generator leave half a second.
    usual = 0.5 if rng.random() < 0.15 else 0.25
    tone_s, gap_s = (pick(rng, split, low, min(usual, longest)) for low in (0.07, 0.06))
    tape.dial(keys, sender, tone_s=tone_s, gap_s=gap_s)


def beep(
    rng: np.random.Generator,
    split: Split,
    tape: Tape,
    beeps: Sequence[tuple[float, float]],
    sender: Voice,
    *,
    within_s: float,
    shortest_s: float = 0.08,
) -> None:
    """Lays beeps of (Hz, gain) on the tape, equally long, with gaps that differ a little."""
    beep_s, gap_s = pick(rng, split, shortest_s, 0.4), pick(rng, split, 0.12, 0.5)
    while len(beeps) * (beep_s + 1.2 * gap_s) > within_s:
        beep_s, gap_s = pick(rng, split, shortest_s, 0.4), pick(rng, split, 0.12, 0.5)
    for number, (hz, gain) in enumerate(beeps):
        if number:
            tape.rest(gap_s * float(rng.uniform(1, 1.2)))
        tape.beep(sender, hz=hz, seconds=beep_s, gain=gain)


def beep_hz(rng: np.random.Generator, split: Split) -> float:
    """A pitch for beeps, inside the band of a telephone with its harmonics or without."""
    return pick(rng, split, 340, 2500)


def _scene(rng: np.random.Generator, split: Split, task: str) -> tuple[Heard, Sound]:
    """A sound of which `task` can ask."""
    tape = Tape(rng, split)
    tape.rest(float(rng.uniform(0.05, 1.0)))
    if task in ("dtmf", "keys"):
        heard = _dial(rng, split, tape)
    elif task == "morse":
        heard = _morse(rng, split, tape, mixed=False)
    elif task == "direction":
        heard = _sweep(rng, split, tape) if rng.random() < 0.8 else _steady(rng, split, tape)
    elif task in ("loudness", "pitch"):
        heard = _patterned_beeps(rng, split, tape, task)
    elif task == "count":
        heard = _beeps(rng, split, tape, least=1) if rng.random() < 0.94 else Heard(kind="silence")
    else:
        heard = _any(rng, split, tape)
    total = tape.now_s + float(rng.uniform(0.05, 1.0))
    return heard, tape.record(max(total, float(rng.uniform(0.6, 2.0)) if heard.kind == "silence" else 0.6))


def _any(rng: np.random.Generator, split: Split, tape: Tape) -> Heard:
    kind = rng.choice(("dtmf", "morse", "beeps", "sweep", "silence"), p=(0.25, 0.25, 0.22, 0.2, 0.08))
    if kind == "dtmf":
        return _dial(rng, split, tape)
    if kind == "morse":
        return _morse(rng, split, tape, mixed=True)
    if kind == "sweep":
        return _sweep(rng, split, tape)
    return _beeps(rng, split, tape, least=2) if kind == "beeps" else Heard(kind="silence")


def _dial(rng: np.random.Generator, split: Split, tape: Tape) -> Heard:
    keys = "".join(str(key) for key in rng.choice(list(KEYS), int(rng.integers(1, MAX_KEYS + 1))))
    dial(rng, split, tape, keys, voice(rng, split), within_s=MAX_ROW_S)
    return Heard(kind="dtmf", text=keys)


def _morse(rng: np.random.Generator, split: Split, tape: Tape, *, mixed: bool) -> Heard:
    """mixed: dots and dashes both occur."""
    text = _morse_text(rng)
    while mixed and not has_dots_and_dashes(text):
        text = _morse_text(rng)
    speeds = MORSE_WPM if has_dots_and_dashes(text) else MIDDLE_WPM
    dot_s = 1.2 / pick(rng, split, *speeds)
    while morse_units(text) * dot_s > MAX_MORSE_S:
        dot_s = 1.2 / pick(rng, split, *speeds)
    tape.send(text, voice(rng, split), hz=pick(rng, split, 400, 1000), dot_s=dot_s)
    return Heard(kind="morse", text=text)


def _morse_text(rng: np.random.Generator) -> str:
    if rng.random() < 0.2:
        return str(rng.choice(MORSE_WORDS))
    # Letters more often than digits, as messages have it.
    signs = list(MORSE)
    weights = np.array([2.0 if sign.isalpha() else 1.0 for sign in signs])
    return "".join(rng.choice(signs, int(rng.integers(1, 6)), p=weights / weights.sum()))


def _sweep(rng: np.random.Generator, split: Split, tape: Tape) -> Heard:
    lowest, highest = TELEPHONE_HZ
    ratio = pick(rng, split, 1.6, 6.0)
    low = lowest * (highest / ratio / lowest) ** float(rng.random())
    rises = bool(rng.random() < 0.5)
    start, end = (low, low * ratio) if rises else (low * ratio, low)
    tape.sweep(voice(rng, split), start_hz=start, end_hz=end, seconds=pick(rng, split, 0.6, 3.0))
    return Heard(kind="sweep", direction="It rises." if rises else "It falls.")


def _steady(rng: np.random.Generator, split: Split, tape: Tape) -> Heard:
    tape.beep(voice(rng, split), hz=beep_hz(rng, split), seconds=pick(rng, split, 0.6, 3.0))
    return Heard(kind="steady", direction="It stays the same.")


def _beeps(rng: np.random.Generator, split: Split, tape: Tape, *, least: int) -> Heard:
    """Beeps of one kind; sometimes of patterns."""
    if rng.random() < 0.25:
        return _patterned_beeps(rng, split, tape, str(rng.choice(("loudness", "pitch"))))
    count = int(rng.integers(least, MAX_BEEPS + 1))
    sender, hz = voice(rng, split, harmonics=True), beep_hz(rng, split)
    beep(rng, split, tape, [(hz, 1.0)] * count, sender, within_s=MAX_ROW_S)
    return Heard(kind="beeps", num_beeps=count)


def _patterned_beeps(rng: np.random.Generator, split: Split, tape: Tape, pattern: str) -> Heard:
    """2 to 4 beeps that differ in loudness or in pitch, both values occurring."""
    count = int(rng.integers(2, 5))
    marked = tuple(bool(bit) for bit in rng.integers(0, 2, count))
    while len(set(marked)) == 1:
        marked = tuple(bool(bit) for bit in rng.integers(0, 2, count))
    hz = beep_hz(rng, split)
    if pattern == "loudness":
        sender = voice(rng, split, softest_db=-14, harmonics=True)
        soft = 10 ** (-pick(rng, split, 12, 17) / 20)
        gains = [(hz, 1.0 if loud else soft) for loud in marked]
        beep(rng, split, tape, gains, sender, within_s=MAX_ROW_S, shortest_s=0.15)
        return Heard(kind="beeps", num_beeps=count, loud=marked)
    sender = voice(rng, split, harmonics=True)
    ratio = pick(rng, split, 1.5, 2.6)
    low = TELEPHONE_HZ[0] * (2500 / ratio / TELEPHONE_HZ[0]) ** float(rng.random())
    pitches = [(low * ratio if high else low, 1.0) for high in marked]
    beep(rng, split, tape, pitches, sender, within_s=MAX_ROW_S, shortest_s=0.15)
    return Heard(kind="beeps", num_beeps=count, high=marked)
