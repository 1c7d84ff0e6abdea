"""Reads dial tones, Morse code, beeps and sweeps from samples alone, by Goertzel sums. Knows no generator.

Frequencies and code from the standards: ITU-T Q.23, ITU-R M.1677-1.
"""

from __future__ import annotations

from itertools import groupby

import numpy as np

_ROWS = (697, 770, 852, 941)
_COLUMNS = (1209, 1336, 1477, 1633)
_PAD = ("123A", "456B", "789C", "*0#D")
_CODE = {
    ".-": "A", "-...": "B", "-.-.": "C", "-..": "D", ".": "E", "..-.": "F", "--.": "G", "....": "H", "..": "I",
    ".---": "J", "-.-": "K", ".-..": "L", "--": "M", "-.": "N", "---": "O", ".--.": "P", "--.-": "Q", ".-.": "R",
    "...": "S", "-": "T", "..-": "U", "...-": "V", ".--": "W", "-..-": "X", "-.--": "Y", "--..": "Z",
    "-----": "0", ".----": "1", "..---": "2", "...--": "3", "....-": "4", ".....": "5", "-....": "6",
    "--...": "7", "---..": "8", "----.": "9",
}  # fmt: skip
_HOP_S = 0.005


def powers(samples: np.ndarray, rate: int, hz: np.ndarray, window_s: float) -> np.ndarray:
    """[windows, frequencies]: power of a sine of each frequency, every 5 ms; a full-scale sine has 0.5."""
    size, hop = round(window_s * rate), round(_HOP_S * rate)
    padded = np.pad(samples.astype(np.float32), size)
    windows = np.lib.stride_tricks.sliding_window_view(padded, size)[::hop]
    taper = np.hanning(size)
    turns = 2 * np.pi * np.arange(size)[:, None] * np.asarray(hz)[None] / rate
    # Two real products take half the time of a complex one.
    real, imaginary = (
        windows @ (taper[:, None] / taper.sum() * wave(turns)).astype(np.float32) for wave in (np.cos, np.sin)
    )
    return 2 * (real**2 + imaginary**2)


def dialled(samples: np.ndarray, rate: int) -> str:
    """The keys, in order."""
    return "".join(key for key, _ in keys_and_seconds(samples, rate))


def keys_and_seconds(samples: np.ndarray, rate: int) -> list[tuple[str, float]]:
    """Each key and when it begins: where a row and a column stand far out from other frequencies and silence."""
    found = powers(samples, rate, np.array(_ROWS + _COLUMNS), 0.03)
    rows, columns = found[:, :4], found[:, 4:]
    strength = np.minimum(rows.max(1), columns.max(1))
    others = np.maximum(np.sort(rows)[:, -2], np.sort(columns)[:, -2])
    is_key = (strength > 0.2 * strength.max()) & (strength > 4 * others)
    keys = [
        _PAD[row][column] if on else ""
        for on, row, column in zip(is_key, rows.argmax(1), columns.argmax(1), strict=True)
    ]
    found_keys, begin = [], 0
    for key, run in groupby(keys):
        end = begin + len(list(run))
        # Edges of a tone may look like another key for a moment.
        if key and (end - begin) * _HOP_S >= 0.03:
            # The windows begin one window before the samples.
            found_keys.append((key, begin * _HOP_S - 0.03))
        begin = end
    return found_keys


def loudest_hz(samples: np.ndarray, rate: int, low: float = 300, high: float = 3400) -> float:
    """The frequency of the highest peak between the two."""
    spectrum = np.abs(np.fft.rfft(samples * np.hanning(len(samples)), 4 * len(samples)))
    hz = np.fft.rfftfreq(4 * len(samples), 1 / rate)
    return float(hz[np.argmax(np.where((hz >= low) & (hz <= high), spectrum, 0))])


def stretches(power: np.ndarray, share: float) -> list[tuple[bool, float]]:
    """(on, seconds) in turn, from the first on to the last; on is more than this share of the strongest."""
    runs = [(bool(on), len(list(run)) * _HOP_S) for on, run in groupby(power > share * power.max())]
    first, last = (0 if runs[0][0] else 1), (len(runs) if runs[-1][0] else len(runs) - 1)
    return runs[first:last]


def morse(samples: np.ndarray, rate: int) -> str:
    """The letters. A dot and the pause inside a letter are at most 0.15 s; all else is three times as long."""
    hz = loudest_hz(samples, rate, 380, 1020)
    runs = stretches(powers(samples, rate, np.array([hz]), 0.025)[:, 0], 0.25)
    inner = min(seconds for _, seconds in runs)
    # A lone dash has nothing to be compared with but the speed of sending.
    limit = 2 * inner if inner < 0.17 else 0.17
    letters = [""]
    for on, seconds in runs:
        if on:
            letters[-1] += "." if seconds < limit else "-"
        elif seconds > limit:
            letters.append("")
    return "".join(_CODE[letter] for letter in letters)


def beeps(samples: np.ndarray, rate: int) -> list[tuple[float, float]]:
    """(Hz, power) of every beep."""
    bank = np.arange(330, 2700, 20.0)
    found = powers(samples, rate, bank, 0.04)
    power = found.max(1)
    # A soft beep has down to a fiftieth of a loud one's power. A tenth of the time at least, nothing beeps.
    threshold = max(0.005 * power.max(), 8 * float(np.percentile(power, 10)))
    begin, heard = 0, []
    for on, run in groupby(power > threshold):
        end = begin + len(list(run))
        if on and (end - begin) * _HOP_S > 0.05:
            middle = found[begin:end].mean(0)
            heard.append((float(bank[middle.argmax()]), float(power[begin:end].max())))
        begin = end
    return heard


def slope(samples: np.ndarray, rate: int) -> float:
    """Octaves from the first to the last quarter of the one tone that glides, or 0 when it is steady."""
    bank = 330 * 2 ** np.arange(0, 3.4, 1 / 24)
    found = powers(samples, rate, bank, 0.04)
    on = found.max(1) > 0.3 * found.max()
    places = found[on].argmax(1) / 24
    quarter = len(places) // 4
    return float(np.median(places[-quarter:]) - np.median(places[:quarter]))
