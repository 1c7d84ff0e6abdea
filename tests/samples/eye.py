"""Names colours and shapes in frames from their pixels alone. Knows nothing of the generator."""

from __future__ import annotations

import colorsys
from dataclasses import dataclass

import numpy as np

# Upper ends of hues in degrees.
_HUES = (
    (15, "red"),
    (45, "orange"),
    (75, "yellow"),
    (180, "green"),
    (256, "blue"),
    (340, "purple"),
    (361, "red"),
)


@dataclass(frozen=True, kw_only=True)
class Blob:
    """Something that stands out: its colour and shape by name, and its centre as shares of width and height."""

    colour: str
    kind: str
    x: float
    y: float


def colour_name(rgb: np.ndarray) -> str:
    hue, saturation, value = colorsys.rgb_to_hsv(*(float(level) / 255 for level in rgb))
    if value < 0.2:
        return "black"
    if saturation < 0.2:
        return "white" if value > 0.8 else "grey"
    return next(name for end, name in _HUES if hue * 360 < end)


def ground_of(frame: np.ndarray) -> np.ndarray:
    """The shade of the frame's edge."""
    edge = np.concatenate([frame[0], frame[-1], frame[:, 0], frame[:, -1]])
    return np.median(edge, axis=0)


def blob(frame: np.ndarray, *others: np.ndarray) -> Blob | None:
    """What is in the frame and stands out from all the others (frames or shades), taken as one shape."""
    mask = np.all([np.abs(frame.astype(int) - other).max(2) > 40 for other in others], axis=0)
    if mask.sum() < 40:
        return None
    rows, columns = np.nonzero(mask)
    colour = colour_name(np.median(frame[mask], axis=0))
    x, y = columns.mean(), rows.mean()
    kind = _kind(np.stack([columns - x, rows - y], axis=1))
    return Blob(colour=colour, kind=kind, x=x / frame.shape[1], y=y / frame.shape[0])


def _kind(points: np.ndarray) -> str:
    """By how the outline's distance from the centre swings in one turn: a star five times, a triangle three."""
    radius = np.hypot(points[:, 0], points[:, 1])
    angle = np.arctan2(points[:, 1], points[:, 0])
    num_bins = 48
    bins = ((angle / (2 * np.pi) + 0.5) * num_bins).astype(int) % num_bins
    outline = np.array([radius[bins == i].max(initial=0) for i in range(num_bins)])
    swing = 2 * np.abs(np.fft.rfft(outline / outline.mean()))[3:6] / num_bins
    if swing.max() < 0.06:
        return "circle"
    kind = ("triangle", "square", "star")[int(swing.argmax())]
    return "cross" if kind == "square" and swing[1] > 0.19 else kind
