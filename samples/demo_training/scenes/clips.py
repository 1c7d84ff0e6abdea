"""Clips with questions: colours in turn, motion, blinks, shapes that appear, with and without dial tones or beeps.

Whatever happens at second s happens 0.1 to 0.4 s later, so that a frame at s still shows what was before and one at
s + 0.5 what is new; it lasts at least 1 s. Knows no files and no model.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import numpy as np

from samples.demo_training.scenes import sounds
from samples.demo_training.scenes.base import Clip, Sample, Sound, Split
from samples.demo_training.scenes.film import Film, Stage, Take, flood, stage, still
from samples.demo_training.scenes.seen import MOST_BLINKS, MOST_SECONDS, TASKS, Entry, Seen, turns_about
from samples.demo_training.scenes.shapes import COLOURS, SHAPES, Shape, pick, spread
from samples.demo_training.scenes.tones import KEYS, Tape, voice

__all__ = ["TASKS", "sample"]

_MAX_BEEPS = 5
_KINDS = ("colours", "moves", "blinks", "appears")
_KIND_OF_TASK = {"colours": "colours", "direction": "moves", "blinks": "blinks", "appears": "appears"}


def sample(rng: np.random.Generator, split: Split, turns: int = 4, task: str | None = None) -> Sample:
    """A clip and up to `turns` different questions; the first tests `task`, or one drawn from `TASKS`.

    Raises ValueError for a task that is not among them.
    """
    if task is not None and task not in TASKS:
        raise ValueError(f"no task {task!r} here; there are {', '.join(TASKS)}")
    first = task if task is not None else pick(rng, TASKS)
    kind = _KIND_OF_TASK.get(first)
    if first == "when":
        kind = pick(rng, ("colours", "blinks", "appears"))
    if first == "dialled" and rng.random() < 0.8:
        kind = "colours"
    kind = kind or pick(rng, _KINDS)
    share_keys = 0.85 if first == "dialled" else 0.25
    sound = "keys" if rng.random() < share_keys else pick(rng, ("none", "none", "beeps"))
    screen = stage(rng, split)
    tape = Tape(rng, split)
    if kind == "colours":
        # Where shapes are asked for, there mostly are some.
        share_shapes = 0.9 if first == "shapes" else 0.6
        seen, film = _colours(rng, split, screen, tape, dials=sound == "keys", share_shapes=share_shapes)
    elif kind == "moves":
        seen, film = _moves(rng, split, screen)
    elif kind == "blinks":
        seen, film = _blinks(rng, split, screen, blinks_at_all=first == "when" or rng.random() < 0.88)
    else:
        seen, film = _appears(rng, split, screen)
    if sound == "keys" and kind != "colours":
        seen = _dial_anywhere(rng, split, tape, seen)
    elif sound == "beeps":
        seen = _beep_anywhere(rng, split, tape, seen)
    track: Sound | None = tape.record(seen.num_seconds) if seen.sound != "none" else None
    clip = Clip(
        duration_s=float(seen.num_seconds),
        draw=film.draw,
        sound=track,
        facts=seen.facts,
        marks=film.marks,
    )
    return Sample(turns=turns_about(rng, seen, first, turns), media=(clip,))


def _colours(
    rng: np.random.Generator, split: Split, screen: Stage, tape: Tape, *, dials: bool, share_shapes: float
) -> tuple[Seen, Film]:
    """2 to 4 colours of one shape, or of the whole screen, each once."""
    count = int(rng.integers(2, 5))
    # Dialling needs a second of one colour all through.
    lengths = [int(rng.integers(2 if dials else 1, 4)) for _ in range(count)]
    lengths[-1] = max(lengths[-1], 2)
    seconds = [sum(lengths[:index]) for index in range(count)]
    num_seconds = sum(lengths)
    is_shape = bool(rng.random() < share_shapes)
    colours = screen.colours if is_shape else COLOURS
    names = [colours[index] for index in rng.permutation(len(colours))[:count]]
    keys = _dial_in_turn(rng, split, tape, [*seconds, num_seconds]) if dials else [""] * count
    # The first is there from the beginning.
    starts = [0.0] + [_soon_after(rng, second) for second in seconds[1:]]
    if is_shape:
        shape = _single(rng, split, screen)
        takes = [
            still(screen.recoloured(rng, split, shape, name), start, end)
            for name, start, end in zip(names, starts, [*starts[1:], float("inf")], strict=True)
        ]
        film = Film([(0.0, screen.pixels)], takes)
    else:
        film = Film(
            [(start, flood(rng, split, screen, name)) for start, name in zip(starts, names, strict=True)]
        )
    entries = tuple(
        Entry(second=second, kind=shape.kind if is_shape else "", colour=name, keys=dialled)
        for second, name, dialled in zip(seconds, names, keys, strict=True)
    )
    found = Seen(kind="colours", num_seconds=num_seconds, entries=entries)
    return (replace(found, sound="keys", keys="".join(keys)) if dials else found), film


def _moves(rng: np.random.Generator, split: Split, screen: Stage) -> tuple[Seen, Film]:
    """A shape that goes straight over most of the screen, or stands; perhaps another one that stands."""
    num_seconds = int(rng.integers(3, 7))
    way = pick(rng, ("left", "right", "up", "down"))
    kinds = _some(rng, SHAPES, 2)
    colours = _some(rng, screen.colours, 2)
    has_other = bool(rng.random() < 0.4)
    size = spread(rng, 0.28, 0.36 if has_other else 0.45, split)
    # Along its way from one end to the other, as shares; across it in a lane of its own.
    sideways = way in ("left", "right")
    ground = screen.ground
    edge = 0.62 * size * ground.side / (ground.width if sideways else ground.height)
    margin = (1 - 2 * edge - 0.4) / 2
    begin, end = edge + margin * float(rng.random()), 1 - edge - margin * float(rng.random())
    lane = 0.29 if has_other else float(rng.uniform(0.35, 0.65))
    if way in ("left", "up"):
        begin, end = end, begin
    if rng.random() < 0.5:
        lane = 1 - lane
    start_at, end_at = ((begin, lane), (end, lane)) if sideways else ((lane, begin), (lane, end))
    shape = screen.shape(
        rng, split, kind=kinds[0], colour=colours[0], x=start_at[0], y=start_at[1], size=size
    )
    stands = not has_other and bool(rng.random() < 0.2)
    take = still(shape, 0.0, float("inf"))
    if not stands:
        take = Take(
            shape=shape,
            start_s=0.0,
            end_s=float(num_seconds),
            to_x=end_at[0] * ground.width,
            to_y=end_at[1] * ground.height,
        )
    takes, entries = [take], [Entry(second=0, kind=shape.kind, colour=shape.colour)]
    if has_other:
        along, across = float(rng.uniform(0.25, 0.75)), 1 - lane
        x, y = (along, across) if sideways else (across, along)
        other = screen.shape(
            rng, split, kind=kinds[1], colour=colours[1], x=x, y=y, size=spread(rng, 0.28, 0.36, split)
        )
        takes.append(still(other, 0.0, float("inf")))
        entries.append(Entry(second=0, kind=other.kind, colour=other.colour))
    seen = Seen(kind="moves", num_seconds=num_seconds, entries=tuple(entries), way="" if stands else way)
    return seen, Film([(0.0, screen.pixels)], takes)


def _blinks(
    rng: np.random.Generator, split: Split, screen: Stage, *, blinks_at_all: bool
) -> tuple[Seen, Film]:
    """A shape that shows for a second at a time, up to 5 times; or all the time, and does not blink."""
    shape = _single(rng, split, screen)
    entries = (Entry(second=0, kind=shape.kind, colour=shape.colour),)
    if not blinks_at_all:
        seen = Seen(kind="blinks", num_seconds=int(rng.integers(3, 8)), entries=entries)
        return seen, Film([(0.0, screen.pixels)], [still(shape, 0.0, float("inf"))])
    count = int(rng.integers(1, MOST_BLINKS + 1))
    num_seconds = min(MOST_SECONDS, max(3, 2 * count + 1 + int(rng.integers(4))))
    # Seconds that stay free, dealt out before, between and behind; a blink and the pause after it take two.
    spare = num_seconds - 2 * count - 1
    before = sorted(int(place) for place in rng.integers(0, spare + 1, count))
    seconds = tuple(1 + 2 * index + free for index, free in enumerate(before))
    takes = []
    for second in seconds:
        start = _soon_after(rng, second)
        takes.append(still(shape, start, start + 1))
    seen = Seen(kind="blinks", num_seconds=num_seconds, entries=entries, blinks=seconds)
    return seen, Film([(0.0, screen.pixels)], takes)


def _appears(rng: np.random.Generator, split: Split, screen: Stage) -> tuple[Seen, Film]:
    """1 to 3 different shapes that come one after another and stay."""
    count = int(rng.integers(1, 4))
    num_seconds = int(rng.integers(count + 3, 10))
    seconds = sorted(1 + int(second) for second in rng.permutation(num_seconds - 2)[:count])
    kinds, ground = _some(rng, SHAPES, count), screen.ground
    wide = ground.width >= ground.height
    # Of a wide screen less is left when it is scaled down, and there is room.
    roominess = min(1.3, max(ground.width, ground.height) / ground.side)
    takes, entries = [], []
    for place, second, kind in zip(rng.permutation(count), seconds, kinds, strict=True):
        along, across = (int(place) + 0.5) / count, float(rng.uniform(0.3, 0.7))
        shape = screen.shape(
            rng,
            split,
            kind=kind,
            colour=pick(rng, screen.colours),
            x=along if wide else across,
            y=across if wide else along,
            size=roominess * spread(rng, 0.24, 0.28 if count == 3 else 0.36, split),
        )
        takes.append(still(shape, _soon_after(rng, second), float("inf")))
        entries.append(Entry(second=second, kind=kind, colour=shape.colour))
    seen = Seen(kind="appears", num_seconds=num_seconds, entries=tuple(entries))
    return seen, Film([(0.0, screen.pixels)], takes)


def _dial_in_turn(rng: np.random.Generator, split: Split, tape: Tape, seconds: list[int]) -> list[str]:
    """Keys for most stretches between two of these seconds, for one at least, clear of a stretch's first second.

    A colour that comes at 0.4 s of a second would share that second's sound with the one before.
    """
    sender = voice(rng, split)
    spans = [(begin + 1.05 if begin else 0.1, end - 0.05) for begin, end in pairwise(seconds)]
    keys = [_keys(rng, 3 if end - begin < 1.5 else 4) if rng.random() < 0.85 else "" for begin, end in spans]
    if not any(keys):
        keys[int(rng.integers(len(keys)))] = _keys(rng, 3)
    for dialled, (begin, end) in zip(keys, spans, strict=True):
        if dialled:
            room = (end - begin) * float(rng.uniform(0.85, 1))
            tape.rest_until(begin + (end - begin - room) * float(rng.random()))
            sounds.dial(rng, split, tape, dialled, sender, within_s=room)
    return keys


def _dial_anywhere(rng: np.random.Generator, split: Split, tape: Tape, seen: Seen) -> Seen:
    keys = _keys(rng, 6)
    tape.rest(float(rng.uniform(0.1, 0.6)))
    sounds.dial(rng, split, tape, keys, voice(rng, split), within_s=seen.num_seconds - 0.7)
    return replace(seen, sound="keys", keys=keys)


def _beep_anywhere(rng: np.random.Generator, split: Split, tape: Tape, seen: Seen) -> Seen:
    count = int(rng.integers(1, _MAX_BEEPS + 1))
    tape.rest(float(rng.uniform(0.1, 0.6)))
    beeps = [(sounds.beep_hz(rng, split), 1.0)] * count
    sender = voice(rng, split, harmonics=True)
    sounds.beep(rng, split, tape, beeps, sender, within_s=seen.num_seconds - 0.7)
    return replace(seen, sound="beeps", num_beeps=count)


def _single(rng: np.random.Generator, split: Split, screen: Stage) -> Shape:
    """One shape somewhere near the middle."""
    x, y = (float(share) for share in rng.uniform(0.36, 0.64, 2))
    kind, colour = pick(rng, SHAPES), pick(rng, screen.colours)
    size = spread(rng, 0.34, 0.6, split)
    return screen.shape(rng, split, kind=kind, colour=colour, x=x, y=y, size=size)


def _some(rng: np.random.Generator, names: tuple[str, ...], count: int) -> list[str]:
    return [names[int(index)] for index in rng.permutation(len(names))[:count]]


def _keys(rng: np.random.Generator, most: int) -> str:
    return "".join(pick(rng, KEYS) for _ in range(int(rng.integers(1, most + 1))))


def _soon_after(rng: np.random.Generator, second: int) -> float:
    return second + float(rng.uniform(0.1, 0.4))
