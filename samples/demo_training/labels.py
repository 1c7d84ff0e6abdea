"""Dense labels of pictures and sounds, for teaching the encoders before the decoder reads them. Knows no model."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import TypeVar

import torch

from samples.demo_training.scenes.base import Picture, Sound, Tone
from samples.demo_training.scenes.sheets import UNPLACED
from samples.demo_training.scenes.tones import KEYS, MORSE

SHAPES = ("circle", "square", "triangle", "star", "cross")
COLOURS = ("red", "green", "blue", "yellow", "orange", "purple", "black", "white")
GLYPHS = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZ"
NUM_PLACES = 6
"""Letters of a word that have a place of their own in the labels."""
IGNORED = -100


@dataclass(frozen=True, kw_only=True)
class PictureLabels:
    """Of T tokens and P patches, in the encoder's order; classes start at 1, 0 is none, IGNORED is not asked.

    shape, colour: int64 [T], of what has its centre in the token. glyph: int64 [T, NUM_PLACES], the character whose
    centre is in the token, by its place in the word. place: float32 [T, 2], the token's own in -1..1.
    size: float32 [T], longest side of the shape over the picture's, NaN without one.
    patch_shape, patch_glyph: int64 [P], of the box that covers the patch's centre.
    """

    shape: torch.Tensor
    colour: torch.Tensor
    glyph: torch.Tensor
    place: torch.Tensor
    size: torch.Tensor
    patch_shape: torch.Tensor
    patch_glyph: torch.Tensor


Labels = TypeVar("Labels", PictureLabels, "SoundLabels")


def picture_labels(picture: Picture, grid: tuple[int, int, int]) -> PictureLabels:
    """grid: (1, rows, columns) of patches after preprocessing; a token is 2 x 2 of them."""
    rows, columns = grid[1] // 2, grid[2] // 2
    height, width = picture.pixels.shape[:2]
    shape = torch.zeros(rows, columns, dtype=torch.int64)
    colour = torch.full((rows, columns), IGNORED)
    glyph = torch.zeros(rows, columns, NUM_PLACES, dtype=torch.int64)
    size = torch.full((rows, columns), float("nan"))
    patch_shape = torch.zeros(2 * rows, 2 * columns, dtype=torch.int64)
    patch_glyph = torch.zeros_like(patch_shape)
    patch_y = (torch.arange(2 * rows) + 0.5) / (2 * rows) * height
    patch_x = (torch.arange(2 * columns) + 0.5) / (2 * columns) * width
    for mark in picture.marks:
        left, top, right, bottom = mark.box
        row, column = divmod(token_of(mark.box, (height, width), grid), columns)
        covered = ((patch_y >= top) & (patch_y < bottom))[:, None] & (patch_x >= left) & (patch_x < right)
        colour[row, column] = COLOURS.index(mark.colour)
        if mark.kind == "shape":
            kind = 1 + SHAPES.index(mark.name)
            shape[row, column] = kind
            size[row, column] = max((right - left) / width, (bottom - top) / height)
            patch_shape[covered] = kind
        else:
            kind = 1 + GLYPHS.index(mark.name)
            if mark.index < NUM_PLACES:
                glyph[row, column, mark.index] = kind
            elif mark.index == UNPLACED:
                glyph[:] = IGNORED
            patch_glyph[covered] = kind
            # A thin letter may pass between the centres of patches.
            row, column = (
                min(2 * count - 1, max(0, int(middle / side * 2 * count)))
                for middle, side, count in (
                    ((top + bottom) / 2, height, rows),
                    ((left + right) / 2, width, columns),
                )
            )
            patch_glyph[row, column] = kind
    y = torch.linspace(-1, 1, rows)[:, None].expand(rows, columns)
    x = torch.linspace(-1, 1, columns).expand(rows, columns)
    return PictureLabels(
        shape=shape.flatten(),
        colour=colour.flatten(),
        glyph=glyph.flatten(0, 1),
        place=torch.stack([y, x], dim=-1).flatten(0, 1),
        size=size.flatten(),
        patch_shape=_in_token_order(patch_shape),
        patch_glyph=_in_token_order(patch_glyph),
    )


def token_of(
    box: tuple[float, float, float, float], size: tuple[int, ...], grid: tuple[int, int, int]
) -> int:
    """Number of the token that holds the centre of a box. size: height and width of the picture."""
    rows, columns = grid[1] // 2, grid[2] // 2
    left, top, right, bottom = box
    row = min(rows - 1, max(0, int((top + bottom) / 2 / size[0] * rows)))
    column = min(columns - 1, max(0, int((left + right) / 2 / size[1] * columns)))
    return row * columns + column


def concatenated(labels: Sequence[Labels]) -> Labels:
    """The labels of several media one after another."""
    kind = type(labels[0])
    return kind(
        **{field.name: torch.cat([getattr(one, field.name) for one in labels]) for field in fields(kind)}
    )


def _in_token_order(patches: torch.Tensor) -> torch.Tensor:
    """[2 rows, 2 columns] to [P], the four patches of a token side by side."""
    blocks: torch.Tensor = patches.unflatten(0, (-1, 2)).unflatten(2, (-1, 2)).transpose(1, 2).flatten()
    return blocks


@dataclass(frozen=True, kw_only=True)
class SoundLabels:
    """Of R rows of 40 ms; key: int64 [R], 0 none, IGNORED where a key is heard in part of the row.

    heard: float32 [R], share of the row in which anything sounds. starts, ends: float32 [R], tones that begin or
    end in it. pitch: float32 [R], octaves above 600 Hz of a tone that is no key, else NaN. rise: int64 [R],
    1 falls, 2 steady, 3 rises, IGNORED without such a tone. level: float32 [R], in units of 20 dB, NaN in silence.
    """

    key: torch.Tensor
    heard: torch.Tensor
    starts: torch.Tensor
    ends: torch.Tensor
    pitch: torch.Tensor
    rise: torch.Tensor
    level: torch.Tensor


ROW_S = 0.04
_MOSTLY = 0.6


def sound_labels(sound: Sound, num_rows: int) -> SoundLabels:
    nan = float("nan")
    key, rise = torch.zeros(num_rows, dtype=torch.int64), torch.full((num_rows,), IGNORED)
    heard, starts, ends = (torch.zeros(num_rows) for _ in range(3))
    pitch, level = torch.full((num_rows,), nan), torch.full((num_rows,), nan)
    row_start = torch.arange(num_rows) * ROW_S
    for tone in sound.tones:
        share = (torch.clamp(row_start + ROW_S, max=tone.end_s) - row_start.clamp(min=tone.start_s)) / ROW_S
        share = share.clamp(min=0)
        heard += share
        for counts, second in ((starts, tone.start_s), (ends, tone.end_s)):
            row = int(second / ROW_S)
            if 0 <= row < num_rows:
                counts[row] += 1
        mostly = share >= _MOSTLY
        level[mostly] = math.log10(max(tone.level, 1e-4))
        if tone.kind == "dtmf":
            key[(share > 0) & ~mostly & (key == 0)] = IGNORED
            key[mostly] = 1 + KEYS.index(tone.name)
            continue
        middle = ((row_start + ROW_S / 2 - tone.start_s) / (tone.end_s - tone.start_s)).clamp(0, 1)
        hz = tone.start_hz * (tone.end_hz / tone.start_hz) ** middle
        pitch[mostly] = (hz / 600).log2()[mostly]
        way = 2 if tone.start_hz == tone.end_hz else 3 if tone.end_hz > tone.start_hz else 1
        rise[mostly] = way
    return SoundLabels(
        key=key, heard=heard.clamp(max=1), starts=starts, ends=ends, pitch=pitch, rise=rise, level=level
    )


_LETTERS = {signs: letter for letter, signs in MORSE.items()}
_CODES = sorted(
    {code[:length] for code in _LETTERS for length in range(1, 1 + len(code))},
    key=lambda code: (len(code), code),
)
SIGNS = (*GLYPHS, *"*#", *"+-^v", *(f"code {code}" for code in _CODES))
"""Letters, digits and keys; of beeps that differ, the loud and the soft, the high and the low ones; and what was
heard of a letter of Morse code before it ended."""
MOST_SIGNS = 15
# Beeps that are to be told apart differ by more than this factor, in level or in pitch.
_DIFFERS = 1.3


def signs_heard(sound: Sound, num_parts: int, part_s: float) -> torch.Tensor:
    """int64 [num_parts, 2]: at the end of each part, how many signs were heard so far and which was the last.

    A sign is a dialled key, a letter of Morse code, a beep or a sweep. The number is at most MOST_SIGNS; the sign
    is its place in SIGNS, IGNORED where there is none or it has no name, or not yet: beeps have none before they
    differ. A letter counts once it cannot go on; until then its dots and dashes so far are the sign.
    """
    heard = torch.full((num_parts, 2), IGNORED)
    ends = (torch.arange(num_parts) + 1) * part_s
    heard[:, 0] = 0
    for second, number, name in _signs(sound.tones):
        after = ends >= second
        heard[after, 0] = min(number, MOST_SIGNS)
        heard[after, 1] = SIGNS.index(name) if name else IGNORED
    return heard


def _signs(tones: Sequence[Tone]) -> list[tuple[float, int, str]]:
    """From when on how many signs have been heard, and the last one's name or "", in order."""
    if tones and tones[0].kind == "morse":
        return _letters(tones)
    names = _names_of_beeps(tones)
    return [
        (tone.end_s, number, tone.name if tone.kind == "dtmf" else name)
        for number, (tone, name) in enumerate(zip(tones, names, strict=True), start=1)
    ]


def _letters(tones: Sequence[Tone]) -> list[tuple[float, int, str]]:
    found = []
    number, code = 0, ""
    dot_s = min(_dot_s(tone) for tone in tones)
    for tone, after in zip(tones, [*tones[1:], None], strict=True):
        code += tone.name
        found.append((tone.end_s, number, f"code {code}"))
        if after is None or after.start_s - tone.end_s > 2 * dot_s:
            number += 1
            found.append((tone.end_s + 2 * dot_s, number, _LETTERS[code]))
            code = ""
    return found


def _names_of_beeps(tones: Sequence[Tone]) -> list[str]:
    """Loud or soft, or else high or low, from the first that differs from one before it."""
    names = []
    for number in range(1, len(tones) + 1):
        heard, tone = tones[:number], tones[number - 1]
        name = ""
        for one, other, values, value in (
            ("+", "-", [each.level for each in heard], tone.level),
            ("^", "v", [each.start_hz for each in heard], tone.start_hz),
        ):
            low, high = min(values), max(values)
            if not name and tone.kind == "beep" and high > _DIFFERS * low:
                name = one if value * value > low * high else other
        names.append(name)
    return names


def _dot_s(tone: Tone) -> float:
    return (tone.end_s - tone.start_s) / (1 if tone.name == "." else 3)
