"""Encoders in batches across clients against one by one: the same encoders, items and clients in the same run.

Items are prepared beforehand, so that only encoding is timed. Both take turns in each round; medians of the ratios
count. Makes a small checkpoint itself unless one is given.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from llm_core.weights import CheckpointFolder
from mm_pipeline.encoders import (
    BatchedEncoders,
    Caller,
    Encoder,
    SegmentedAudioEncoder,
    create_audio_encoder,
    create_image_encoder,
)
from mm_pipeline.image import ImageInput
from serve_apps.bench import format_table
from serve_apps.checkpoint import make_checkpoint
from serve_apps.checkpoint.audio_tokenizer import open_audio_tokenizer

_SMALL_PIXELS = (96, 448)
_LARGE_PIXELS = (896, 960)
_SOUND_FRAMES = (100, 500)
_PATCH_VALUES, _NUM_MELS = 1536, 128


@dataclass(frozen=True, kw_only=True)
class Item:
    """A prepared picture, or the log mel of a sound."""

    image: ImageInput | None = None
    mel: torch.Tensor | None = None


Encode = Callable[[int, Item], torch.Tensor]
"""A client's number and its item to the item's embeddings."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options of `mmserve bench encoder`."""
    parser.add_argument("--checkpoint", type=Path, help="folder in hub format (default: a tiny random one)")
    parser.add_argument("--clients", type=int, default=32, help="at once (default: %(default)s)")
    parser.add_argument("--items", type=int, default=64, help="small ones in a round (default: %(default)s)")
    parser.add_argument("--rounds", type=int, default=5, help="timed runs of each (default: %(default)s)")


def run(args: argparse.Namespace) -> dict[str, Any]:
    """Prints a table. `batched_over_serial`: items per second with all clients, pictures of 96 to 448 px and sounds
    of 1 to 5 s; `batched_over_serial_large` the same for pictures of 896 px and more.
    `single_client_p99_overhead`: how much longer one client's slowest items take in batches, as a share.

    Raises ValueError for numbers under 1, and for a checkpoint that cannot be read.
    """
    if min(args.clients, args.items, args.rounds) < 1:
        raise ValueError(
            f"clients {args.clients}, items {args.items}, rounds {args.rounds}: each must be at least 1"
        )
    rng = np.random.default_rng(0)
    small = _items(rng, args.items, _SMALL_PIXELS, with_sounds=True)
    large = _items(rng, max(2, args.items // 6), _LARGE_PIXELS, with_sounds=False)
    with tempfile.TemporaryDirectory() as scratch:
        folder = args.checkpoint
        if folder is None:
            folder = Path(scratch) / "tiny"
            make_checkpoint(folder, "tiny")
        image, audio = _encoders(folder)
    with BatchedEncoders(image, audio) as encoders:
        serial, batched = _one_by_one(image, audio), _in_batches(encoders)
        for encode in (serial, batched):
            _items_per_s(encode, small, args.clients)
        speeds = [
            [
                _items_per_s(encode, items, args.clients)
                for items in (small, large)
                for encode in (serial, batched)
            ]
            for _ in range(args.rounds)
        ]
        tails = [[_p99_s(encode, small) for encode in (serial, batched)] for _ in range(args.rounds)]
    rows = [
        [what, *(statistics.median(speed[at + i] for speed in speeds) for i in (0, 1)), _ratio(speeds, at)]
        for what, at in (("96-448 px, 1-5 s", 0), ("896 px and more", 2))
    ]
    print(
        f"{args.clients} clients, {args.rounds} rounds, {torch.get_num_threads()} threads; items per second"
    )
    print(format_table(["items", "one by one", "in batches", "ratio"], rows))
    overhead = statistics.median(in_batches / alone - 1 for alone, in_batches in tails)
    print(f"one client, 99th percentile: {100 * overhead:+.1f}% in batches")
    return {
        "batched_over_serial": round(_ratio(speeds, 0), 3),
        "batched_over_serial_large": round(_ratio(speeds, 2), 3),
        "single_client_p99_overhead": round(overhead, 3),
        "clients": args.clients,
    }


def _ratio(speeds: Sequence[Sequence[float]], at: int) -> float:
    return statistics.median(speed[at + 1] / speed[at] for speed in speeds)


def _encoders(folder: Path) -> tuple[Encoder, SegmentedAudioEncoder]:
    config = json.loads((folder / "config.json").read_text())
    source = CheckpointFolder(folder)
    image = create_image_encoder(config, source, torch.float32, "cpu")
    audio = create_audio_encoder(config, source, *open_audio_tokenizer(folder), torch.float32, "cpu")
    return image, audio


def _items(rng: np.random.Generator, count: int, pixels: tuple[int, int], *, with_sounds: bool) -> list[Item]:
    """Pictures of so many pixels a side; with sounds, every third one is a sound of 1 to 5 s."""
    made = []
    for number in range(count):
        if with_sounds and number % 3 == 2:
            frames = int(rng.integers(*_SOUND_FRAMES))
            values = rng.normal(-4, 2, (frames, _NUM_MELS)).astype(np.float32)
            made.append(Item(mel=torch.from_numpy(values)))
            continue
        rows, columns = (int(rng.integers(pixels[0], pixels[1] + 1)) // 32 * 2 for _ in range(2))
        values = rng.normal(0, 1, (rows * columns, _PATCH_VALUES)).astype(np.float32)
        made.append(
            Item(
                image=ImageInput(
                    patches=torch.from_numpy(values),
                    grid_thw=(1, rows, columns),
                    num_tokens=rows * columns // 4,
                )
            )
        )
    return made


def _one_by_one(image: Encoder, audio: SegmentedAudioEncoder) -> Encode:
    lock = threading.Lock()

    def encode(_client: int, item: Item) -> torch.Tensor:
        with lock:
            if item.image is not None:
                return image.encode([item.image])[0]
            assert item.mel is not None
            return audio.encode([[item.mel]])[0]

    return encode


def _in_batches(encoders: BatchedEncoders) -> Encode:
    def encode(client: int, item: Item) -> torch.Tensor:
        caller = Caller(owner=str(client))
        if item.image is not None:
            return encoders.images(caller).encode([item.image])[0]
        sounds = encoders.sounds(caller)
        assert sounds is not None
        assert item.mel is not None
        return sounds.encode([[item.mel]])[0]

    return encode


def _items_per_s(encode: Encode, items: Sequence[Item], clients: int) -> float:
    """Each client has one item under way at a time."""
    begin = time.perf_counter()
    with ThreadPoolExecutor(clients) as pool:
        done = [pool.submit(encode, number % clients, item) for number, item in enumerate(items)]
        for future in done:
            future.result()
    return len(items) / (time.perf_counter() - begin)


def _p99_s(encode: Encode, items: Sequence[Item]) -> float:
    seconds = []
    for item in items:
        begin = time.perf_counter()
        encode(0, item)
        seconds.append(time.perf_counter() - begin)
    return float(np.percentile(seconds, 99))
