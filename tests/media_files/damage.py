"""Files that were cut, scratched or shuffled."""

from __future__ import annotations

import random
from collections.abc import Iterator

import av
import numpy as np

from tests.media_files.encode import X264, Audio, Video, remux, steady, write
from tests.media_files.files import tone

CONTAINERS = {
    "mp4": ("mp4", {}),
    "mp4_faststart": ("mp4", {"movflags": "faststart"}),
    "mp4_fragmented": ("mp4", {"movflags": "frag_keyframe+empty_moov+default_base_moof"}),
    "matroska": ("matroska", {}),
    "transport": ("mpegts", {}),
}


def small_movie(container: str) -> bytes:
    """Two seconds of pictures (GOP of 15) and sound, in one of CONTAINERS."""
    name, options = CONTAINERS[container]
    video = Video(frames=steady(60), options=X264 | {"g": "15"})
    return write(name, video, Audio(samples=tone(2.0, 44_100)[None]), options=options)


def cut(data: bytes, tenths: int) -> bytes:
    """The first tenths of the bytes."""
    return data[: len(data) * tenths // 10]


def scratched() -> bytes:
    """240 frames at 30 fps, GOP of 30; the packets 100 to 140 are noise, and the file's headers are whole."""
    data = write("mp4", Video(frames=steady(240), options=X264 | {"sc_threshold": "0"}))
    rng = np.random.default_rng(5)

    def edit(index: int, packet: av.Packet) -> av.Packet:
        if 100 <= index <= 140:
            noise = rng.integers(0, 256, packet.size, dtype=np.uint8).tobytes()
            packet.update(noise)
        return packet

    return remux(data, "matroska", edit)


def lost_packets() -> bytes:
    """60 frames at 30 fps, GOP of 15; a sixth of the transport stream is gone, at 40 % of it."""
    data = write("mpegts", Video(frames=steady(60), options=X264 | {"g": "15"}))
    packets = len(data) // 188
    begin, end = packets * 4 // 10, packets * 4 // 10 + packets // 6
    return data[: begin * 188] + data[end * 188 :]


def mutants(seeds: dict[str, bytes], count: int, seed: int) -> Iterator[tuple[str, bytes]]:
    """(what was done, bytes): flipped bits, cuts, swapped, repeated, zeroed or foreign stretches, in turn over the
    seeds. The same for the same arguments."""
    rng = random.Random(seed)
    names = sorted(seeds)
    for i in range(count):
        name = names[i % len(names)]
        data = bytearray(seeds[name])
        kinds = rng.sample(sorted(_MUTATIONS), k=rng.choice((1, 1, 2)))
        for kind in kinds:
            _MUTATIONS[kind](data, rng)
        yield f"{i}: {name}, {'+'.join(kinds)}", bytes(data)


def _flip(data: bytearray, rng: random.Random) -> None:
    for _ in range(rng.choice((1, 3, 10, 50))):
        data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)


def _flip_header(data: bytearray, rng: random.Random) -> None:
    for _ in range(rng.choice((1, 2, 4))):
        data[rng.randrange(min(512, len(data)))] = rng.choice((0, 1, 0x7F, 0x80, 0xFF, rng.randrange(256)))


def _flip_tail(data: bytearray, rng: random.Random) -> None:
    # Where an MP4 keeps its index.
    for _ in range(rng.choice((1, 2, 4))):
        data[-1 - rng.randrange(min(3000, len(data)))] = rng.choice(
            (0, 1, 0x7F, 0x80, 0xFF, rng.randrange(256))
        )


def _cut(data: bytearray, rng: random.Random) -> None:
    del data[max(1, rng.randrange(len(data))) :]


def _stretch(data: bytearray, rng: random.Random) -> tuple[int, int]:
    begin = rng.randrange(len(data))
    return begin, min(len(data), begin + rng.choice((4, 100, 2000)))


def _drop(data: bytearray, rng: random.Random) -> None:
    begin, end = _stretch(data, rng)
    del data[begin : min(end, begin + len(data) - 1)]


def _repeat(data: bytearray, rng: random.Random) -> None:
    begin, end = _stretch(data, rng)
    data[begin:begin] = data[begin:end]


def _swap(data: bytearray, rng: random.Random) -> None:
    begin, end = _stretch(data, rng)
    other, _ = _stretch(data, rng)
    length = min(end - begin, len(data) - other)
    data[begin : begin + length], data[other : other + length] = (
        data[other : other + length],
        data[begin : begin + length],
    )


def _fill(data: bytearray, rng: random.Random) -> None:
    begin, end = _stretch(data, rng)
    data[begin:end] = rng.choice((b"\0", b"\xff")) * (end - begin)


_MUTATIONS = {
    "bits": _flip, "header": _flip_header, "tail": _flip_tail, "cut": _cut, "drop": _drop, "repeat": _repeat,
    "swap": _swap, "fill": _fill,
}  # fmt: skip
