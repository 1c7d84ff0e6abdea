"""Makes the sample sound and the sample video: `python samples/make_clips.py [folder]` (default: samples/clips).

A dialled phone number as a WAV file, and a traffic light with the ticking of a pedestrian signal as MP4 (H.264,
AAC). No random numbers and no fonts of the system, so they come out the same everywhere, but for rounding.
"""

from __future__ import annotations

import sys
import wave
from itertools import pairwise
from pathlib import Path

import av
import numpy as np
from PIL import Image, ImageDraw

PHONE_NUMBER = "4072"
SOUND_RATE = 8000
TONE_S, PAUSE_S = 0.25, 0.15

VIDEO_RATE = 44_100
VIDEO_SIZE = (240, 320)
FPS = 10
# Seconds from which each lamp combination shows; the last one is the end.
LIGHTS = ((0, ("red",)), (3, ("red", "amber")), (4, ("green",)), (8, ()))
LAMPS = {"red": (224, 32, 32), "amber": (250, 180, 20), "green": (40, 200, 80)}


def dial_tones(number: str = PHONE_NUMBER) -> np.ndarray:
    """The keys of `number` one after another as DTMF (ITU-T Q.23), float32 in -1..1 at SOUND_RATE."""
    rows, columns = (697, 770, 852, 941), (1209, 1336, 1477)
    keys = "123456789*0#"
    pause = np.zeros(round(PAUSE_S * SOUND_RATE), np.float32)
    pieces = [pause]
    for key in number:
        place = keys.index(key)
        tone = _tone(rows[place // 3], TONE_S, SOUND_RATE) + _tone(columns[place % 3], TONE_S, SOUND_RATE)
        pieces += [0.4 * tone, pause]
    return np.concatenate(pieces)


def signal_sound() -> np.ndarray:
    """One tick a second while the light is not green, eight a second while it is."""
    num_samples = LIGHTS[-1][0] * VIDEO_RATE
    sound = np.zeros(num_samples, np.float32)
    tick = 0.5 * _tone(880, 0.03, VIDEO_RATE)
    green_from = next(start for start, lit in LIGHTS if "green" in lit)
    for start in [*range(green_from), *np.arange(green_from, LIGHTS[-1][0], 0.125)]:
        begin = round(start * VIDEO_RATE)
        sound[begin : begin + len(tick)] = tick
    return sound


def traffic_light(lit: tuple[str, ...]) -> Image.Image:
    """A traffic light with these lamps on."""
    image = Image.new("RGB", VIDEO_SIZE, (150, 180, 205))
    draw = ImageDraw.Draw(image)
    draw.rectangle((0, 280, 240, 320), fill=(96, 100, 104))
    draw.rectangle((112, 230, 128, 300), fill=(60, 62, 66))
    draw.rounded_rectangle((75, 20, 165, 240), radius=18, fill=(36, 38, 42))
    for index, (name, colour) in enumerate(LAMPS.items()):
        top = 34 + 68 * index
        shown = colour if name in lit else tuple(value // 5 for value in colour)
        draw.ellipse((92, top, 148, top + 56), fill=shown)
    return image


def write_sound(path: Path) -> None:
    """16-bit mono WAV."""
    with wave.open(str(path), "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(SOUND_RATE)
        file.writeframes((dial_tones() * 32767).astype("<i2").tobytes())


def write_video(path: Path) -> None:
    """H.264 and AAC in MP4, with the index in front so that it can be read while it arrives."""
    with av.open(str(path), "w", options={"movflags": "+faststart"}) as file:
        video = file.add_stream("libx264", rate=FPS, options={"preset": "slow", "crf": "26"})
        video.width, video.height = VIDEO_SIZE
        video.pix_fmt = "yuv420p"
        audio = file.add_stream("aac", rate=VIDEO_RATE, layout="mono", bit_rate=32_000)
        for (start, lit), (end, _) in pairwise(LIGHTS):
            frame = av.VideoFrame.from_image(traffic_light(lit))
            for number in range(start * FPS, end * FPS):
                frame.pts = number
                file.mux(video.encode(frame))
        file.mux(video.encode(None))
        samples = av.AudioFrame.from_ndarray(signal_sound()[None], format="fltp", layout="mono")
        samples.sample_rate = VIDEO_RATE
        file.mux(audio.encode(samples))
        file.mux(audio.encode(None))


def make_all(folder: Path) -> None:
    """Writes both files, under 300 KB together."""
    folder.mkdir(parents=True, exist_ok=True)
    write_sound(folder / "phone_number.wav")
    write_video(folder / "traffic_light.mp4")


def _tone(frequency_hz: float, seconds: float, rate: int) -> np.ndarray:
    """A sine that fades in and out over 5 ms, so that it does not click."""
    time_s = np.arange(round(seconds * rate)) / rate
    fade = np.minimum(1, np.minimum(time_s, time_s[::-1]) / 0.005)
    return (fade * np.sin(2 * np.pi * frequency_hz * time_s)).astype(np.float32)


if __name__ == "__main__":
    make_all(Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).with_name("clips"))
