"""Dial tones, Morse code, beeps and sweeps as waveforms with exact truth, and the line they come through (noise,
hum, telephone band). Knows no questions and no files.

Sources: ITU-T Q.23 (keys and their two frequencies), ITU-R M.1677-1 (Morse code: a dash is three dots long, the
space inside a letter one dot, between letters three; PARIS gives 1.2 s / words per minute for a dot).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from samples.demo_training.scenes.base import SAMPLE_RATE, Sound, Split, Tone

ToneKind: TypeAlias = Literal["dtmf", "morse", "beep", "sweep"]

KEYS = "123456789*0#"
ROWS_HZ = (697.0, 770.0, 852.0, 941.0)
COLUMNS_HZ = (1209.0, 1336.0, 1477.0)

MORSE = {
    "A": ".-", "B": "-...", "C": "-.-.", "D": "-..", "E": ".", "F": "..-.", "G": "--.", "H": "....", "I": "..",
    "J": ".---", "K": "-.-", "L": ".-..", "M": "--", "N": "-.", "O": "---", "P": ".--.", "Q": "--.-", "R": ".-.",
    "S": "...", "T": "-", "U": "..-", "V": "...-", "W": ".--", "X": "-..-", "Y": "-.--", "Z": "--..",
    "0": "-----", "1": ".----", "2": "..---", "3": "...--", "4": "....-", "5": ".....", "6": "-....", "7": "--...",
    "8": "---..", "9": "----.",
}  # fmt: skip

# A range is cut into this many slots; "test" draws from the ones named, "train" from the others.
NUM_SLOTS = 10
TEST_SLOTS = (2, 5, 7)
_SLOTS: dict[Split, tuple[int, ...]] = {
    "test": TEST_SLOTS,
    "train": tuple(slot for slot in range(NUM_SLOTS) if slot not in TEST_SLOTS),
}

# Sounds and clips fade in and out over this long, so that nothing clicks.
EDGE_S = (0.003, 0.008)

# Frequencies that a telephone passes untouched; a tone kept inside sounds the same with and without one.
TELEPHONE_HZ = (330.0, 3300.0)


def pick(rng: np.random.Generator, split: Split, low: float, high: float) -> float:
    """A number in low..high that the other split never draws from the same range."""
    slots = _SLOTS[split]
    slot = slots[int(rng.integers(len(slots)))]
    return low + (high - low) * (slot + float(rng.random())) / NUM_SLOTS


def frequencies(key: str) -> tuple[float, float]:
    """Row and column of a key in Hz."""
    place = KEYS.index(key)
    return ROWS_HZ[place // 3], COLUMNS_HZ[place % 3]


@dataclass(frozen=True, kw_only=True)
class Voice:
    """How one sender sounds, the same for all its tones.

    amplitude: peak, 0..1. tuning: true frequency / nominal one. edge_s: length of a fade. harmonics: strength of
    the second and third harmonic against the first; dial tones have none.
    """

    amplitude: float
    tuning: float
    edge_s: float
    harmonics: tuple[float, float] = (0.0, 0.0)


def voice(
    rng: np.random.Generator,
    split: Split,
    *,
    loudest_db: float = -3.0,
    softest_db: float = -30.0,
    harmonics: bool = False,
) -> Voice:
    """A sender of any level between the two (peak, dB against full scale)."""
    second, third = 0.0, 0.0
    if harmonics and rng.random() < 0.4:
        second, third = pick(rng, split, 0.0, 0.5), pick(rng, split, 0.0, 0.4)
    return Voice(
        amplitude=10 ** (pick(rng, split, softest_db, loudest_db) / 20),
        tuning=1 + float(rng.uniform(-0.008, 0.008)),
        edge_s=float(rng.uniform(*EDGE_S)),
        harmonics=(second, third),
    )


class Tape:
    """Tones one after another. Owns the time of the next one; `record` makes the sound of them."""

    def __init__(self, rng: np.random.Generator, split: Split) -> None:
        self.now_s = 0.0
        self.tones: list[Tone] = []
        self._rng, self._split = rng, split
        self._waves: list[tuple[int, NDArray[np.float32]]] = []

    def rest(self, seconds: float) -> None:
        """Nothing for so long."""
        self.now_s += seconds

    def rest_until(self, seconds: float) -> None:
        """Nothing until this time; raises ValueError when it has passed."""
        if seconds < self.now_s:
            raise ValueError(
                f"the tape is at {self.now_s:.3f} s, past {seconds:.3f} s; lay earlier tones first"
            )
        self.now_s = seconds

    def dial(self, keys: str, sender: Voice, *, tone_s: float, gap_s: float) -> None:
        """These keys; every tone and every gap between two differs a little from the nominal length."""
        # The upper tone may be up to 4 dB stronger or weaker than the lower one, as lines make it.
        twist = 10 ** (float(self._rng.uniform(-4, 4)) / 20)
        low, high = sender.amplitude / (1 + twist), sender.amplitude * twist / (1 + twist)
        for number, key in enumerate(keys):
            if number:
                self.rest(gap_s * float(self._rng.uniform(1, 1.15)))
            row, column = (hz * sender.tuning for hz in frequencies(key))
            count = _num_samples(tone_s * float(self._rng.uniform(1, 1.15)))
            wave = low * _sine(row, row, count) + high * _sine(column, column, count)
            self._lay("dtmf", key, wave * _fade(count, sender.edge_s), row, row)

    def send(self, text: str, sender: Voice, *, hz: float, dot_s: float) -> None:
        """Letters and digits of `MORSE`."""
        for number, letter in enumerate(text):
            if number:
                self.rest(3 * dot_s)
            for place, sign in enumerate(MORSE[letter]):
                if place:
                    self.rest(dot_s)
                self._pure("morse", sign, sender, hz, hz, dot_s if sign == "." else 3 * dot_s)

    def beep(self, sender: Voice, *, hz: float, seconds: float, name: str = "", gain: float = 1.0) -> None:
        """One steady tone, `gain` times as strong as its sender mostly is."""
        self._pure("beep", name, sender, hz, hz, seconds, gain)

    def sweep(self, sender: Voice, *, start_hz: float, end_hz: float, seconds: float) -> None:
        """A tone that glides from one frequency to the other, at the same number of octaves every second."""
        self._pure("sweep", "rise" if end_hz > start_hz else "fall", sender, start_hz, end_hz, seconds)

    def record(self, seconds: float) -> Sound:
        """All of it, `seconds` long, through a line; raises ValueError when the last tone would be cut."""
        samples = np.zeros(_num_samples(seconds), np.float32)
        for begin, wave in self._waves:
            if begin + len(wave) > len(samples):
                raise ValueError(f"{seconds:.3f} s are too short: the tape ends at {self.now_s:.3f} s")
            samples[begin : begin + len(wave)] += wave
        level = min((tone.level for tone in self.tones), default=0.05)
        return Sound(samples=_through_line(samples, level, self._rng, self._split), tones=tuple(self.tones))

    def _pure(
        self,
        kind: ToneKind,
        name: str,
        sender: Voice,
        start_hz: float,
        end_hz: float,
        seconds: float,
        gain: float = 1.0,
    ) -> None:
        count = _num_samples(seconds)
        start_hz, end_hz = start_hz * sender.tuning, end_hz * sender.tuning
        wave = _sine(start_hz, end_hz, count)
        for multiple, strength in zip((2, 3), sender.harmonics, strict=True):
            if strength and multiple * max(start_hz, end_hz) < SAMPLE_RATE / 2:
                wave = wave + strength * _sine(multiple * start_hz, multiple * end_hz, count)
        peak = 1 + sum(sender.harmonics)
        self._lay(
            kind,
            name,
            wave * _fade(count, sender.edge_s) * (gain * sender.amplitude / peak),
            start_hz,
            end_hz,
        )

    def _lay(
        self, kind: ToneKind, name: str, wave: NDArray[np.float32], start_hz: float, end_hz: float
    ) -> None:
        begin = _num_samples(self.now_s)
        self._waves.append((begin, wave))
        end_s = (begin + len(wave)) / SAMPLE_RATE
        self.tones.append(
            Tone(
                kind=kind,
                name=name,
                start_s=begin / SAMPLE_RATE,
                end_s=end_s,
                start_hz=start_hz,
                end_hz=end_hz,
                level=math.sqrt(float(np.dot(wave, wave)) / len(wave)),
            )
        )
        self.now_s = end_s


def morse_units(text: str) -> int:
    """How many dots long the text is, from its first sign to its last."""
    letters = [sum(1 if sign == "." else 3 for sign in MORSE[c]) + len(MORSE[c]) - 1 for c in text]
    return sum(letters) + 3 * (len(text) - 1)


def _num_samples(seconds: float) -> int:
    return round(seconds * SAMPLE_RATE)


def _sine(start_hz: float, end_hz: float, count: int) -> NDArray[np.float32]:
    """`count` samples of amplitude 1, beginning at phase 0."""
    steps = np.arange(count)
    if start_hz == end_hz:
        turns = steps * (start_hz / SAMPLE_RATE)
    else:
        # The integral of start * ratio ** (step / count).
        ratio = math.log(end_hz / start_hz)
        turns = np.expm1(steps * (ratio / count)) * (start_hz * count / (ratio * SAMPLE_RATE))
    # Whole turns go while the numbers are exact; a sine in float32 is several times as fast.
    return np.sin(((turns % 1.0) * (2 * math.pi)).astype(np.float32))


def _fade(count: int, edge_s: float) -> NDArray[np.float32]:
    """1 with a raised-cosine rise and fall."""
    edge = min(_num_samples(edge_s), count // 2)
    ramp = (0.5 - 0.5 * np.cos(np.pi * (np.arange(edge) + 0.5) / edge)).astype(np.float32)
    shape = np.ones(count, np.float32)
    shape[:edge] = ramp
    shape[count - edge :] = ramp[::-1]
    return shape


def _through_line(
    samples: NDArray[np.float32], level: float, rng: np.random.Generator, split: Split
) -> NDArray[np.float32]:
    """At times with noise and hum well below `level`, an offset, the band of a telephone, coarse samples."""
    telephone, narrow = _chance(rng, 0.3), _chance(rng, 0.2)
    if _chance(rng, 0.85):
        noise_rms = level * 10 ** (-pick(rng, split, 14.0, 50.0) / 20)
        slope = _slope(rng, split)
        samples = samples + noise_rms * _noise(rng, len(samples), slope)
    if _chance(rng, 0.2):
        mains = 50.0 if _chance(rng, 0.5) else 60.0
        hum = level * 10 ** (-pick(rng, split, 16.0, 40.0) / 20)
        samples = samples + hum * _sine(mains, mains, len(samples))
    if telephone or narrow:
        samples = _band(samples, (250.0, 3500.0) if telephone else (0.0, float(rng.uniform(5000, 9000))))
    if _chance(rng, 0.2):
        samples = samples + np.float32(rng.uniform(-0.01, 0.01))
    samples = np.clip(samples, -1, 1)
    if telephone and _chance(rng, 0.4):
        return _mu_law(samples)
    if _chance(rng, 0.6):
        samples = (np.round(samples * 32767) / 32767).astype(np.float32)
    return samples.astype(np.float32, copy=False)


def _chance(rng: np.random.Generator, share: float) -> bool:
    return bool(rng.random() < share)


def _slope(rng: np.random.Generator, split: Split) -> float:
    """Noise has a power of 1 / frequency ** slope: white and pink in training, in between in tests."""
    choices: Sequence[float] = (0.5, 0.7) if split == "test" else (0.0, 0.0, 1.0, 1.2)
    return choices[int(rng.integers(len(choices)))]


def _noise(rng: np.random.Generator, count: int, slope: float) -> NDArray[np.float32]:
    """Noise of root mean square 1."""
    white = rng.standard_normal(count, np.float32)
    if not slope:
        return white
    spectrum = np.fft.rfft(white, _fast_length(count))
    # Below 40 Hz there is nothing to hear, and all of the power would be there.
    bins = np.arange(len(spectrum))
    lowest = max(1.0, 40.0 * 2 * len(spectrum) / SAMPLE_RATE)
    spectrum *= np.maximum(bins, lowest).astype(np.float32) ** np.float32(-slope / 2)
    coloured = np.fft.irfft(spectrum)[:count].astype(np.float32)
    return coloured / np.float32(math.sqrt(float(np.dot(coloured, coloured)) / count))


def _band(samples: NDArray[np.float32], edges_hz: tuple[float, float]) -> NDArray[np.float32]:
    """Only what lies between, falling to nothing within 15% of an edge."""
    # Room behind the end, so that filtering does not wrap round to the beginning.
    size = _fast_length(len(samples) + SAMPLE_RATE // 50)
    spectrum = np.fft.rfft(samples, size)
    hz = np.arange(len(spectrum), dtype=np.float32) * np.float32(SAMPLE_RATE / size)
    low, high = edges_hz
    gain = 0.5 + 0.5 * np.cos(np.pi * np.clip((hz - high) / (0.15 * high), 0, 1))
    if low:
        gain *= 0.5 + 0.5 * np.cos(np.pi * np.clip((low - hz) / (0.15 * low), 0, 1))
    return np.fft.irfft(spectrum * gain, size)[: len(samples)].astype(np.float32)


def _fast_length(count: int) -> int:
    """The next size that a Fourier transform takes quickly: a power of two times 1, 3 or 5."""
    return min(factor << max(0, math.ceil(math.log2(count / factor))) for factor in (1, 3, 5))


def _mu_law(samples: NDArray[np.float32]) -> NDArray[np.float32]:
    """There and back through the 8 bits of a telephone exchange (ITU-T G.711, continuous form)."""
    mu = 255.0
    coded = np.sign(samples) * np.log1p(mu * np.abs(samples)) / math.log1p(mu)
    coded = np.round(coded * 127) / 127
    return (np.sign(coded) * np.expm1(np.abs(coded) * math.log1p(mu)) / mu).astype(np.float32)
