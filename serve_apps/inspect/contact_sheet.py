"""Sampled frames side by side, each over its time. Knows pixels and times, no files."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import numpy.typing as npt
from PIL import Image, ImageDraw, ImageFont

_THUMB_AREA = 200 * 150
_MOST_COLUMNS = 6
_GAP, _LABEL_HEIGHT, _TITLE_HEIGHT = 8, 20, 30
_PAPER, _INK = (250, 250, 250), (20, 20, 20)


class ContactSheet:
    """Collects frames as they are decoded and draws them. Keeps small copies, at most `most_frames`: of more frames
    every second, fourth, eighth ... stays.
    """

    def __init__(self, most_frames: int = 240) -> None:
        self._most = most_frames
        self._seen, self._stride = 0, 1
        self._thumbs: list[tuple[Image.Image, float]] = []

    def add(self, frames: npt.NDArray[np.uint8], times_s: tuple[float, ...]) -> None:
        """uint8 [n, 3, H, W] in RGB, and their n times in seconds."""
        for frame, time in zip(frames, times_s, strict=True):
            if self._seen % self._stride == 0 and len(self._thumbs) == self._most:
                self._thumbs, self._stride = self._thumbs[::2], 2 * self._stride
            if self._seen % self._stride == 0:
                picture = Image.fromarray(np.ascontiguousarray(frame.transpose(1, 2, 0)))
                scale = min(1.0, (_THUMB_AREA / (picture.width * picture.height)) ** 0.5)
                size = (max(1, round(picture.width * scale)), max(1, round(picture.height * scale)))
                self._thumbs.append((picture.resize(size, Image.Resampling.BOX), time))
            self._seen += 1

    def draw(self, title: str) -> Image.Image:
        """The sheet: a title, then the frames in reading order. Raises ValueError without any frame."""
        if not self._thumbs:
            raise ValueError("there are no frames to draw; add some first")
        width = max(thumb.width for thumb, _ in self._thumbs)
        height = max(thumb.height for thumb, _ in self._thumbs)
        columns = min(_MOST_COLUMNS, len(self._thumbs))
        rows = -(-len(self._thumbs) // columns)
        # A title needs some width even over a single small frame.
        sheet_width = max(_GAP + columns * (width + _GAP), 420)
        sheet_height = _TITLE_HEIGHT + rows * (height + _LABEL_HEIGHT + _GAP) + _GAP
        sheet = Image.new("RGB", (sheet_width, sheet_height), _PAPER)
        draw = ImageDraw.Draw(sheet)
        draw.text((_GAP, _GAP), title, _INK, font=ImageFont.load_default(14))
        font = ImageFont.load_default(13)
        for i, (thumb, time) in enumerate(self._thumbs):
            x = _GAP + i % columns * (width + _GAP)
            y = _TITLE_HEIGHT + i // columns * (height + _LABEL_HEIGHT + _GAP)
            sheet.paste(thumb, (x, y))
            draw.text((x, y + thumb.height + 3), f"{time:.3f} s", _INK, font=font)
        return sheet

    def save(self, path: Path, title: str) -> None:
        """Draws into a file of the kind its name says.

        Raises ValueError for an unknown kind, OSError where it cannot be written.
        """
        self.draw(title).save(path)
