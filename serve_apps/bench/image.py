"""A large JPEG from bytes to patches, ours against PIL decoding plus transformers' Qwen2VLImageProcessor.

The peer is given its best form: both of its backends, with its own bicubic and with our bilinear filter, and the
fastest counts. All contestants take turns in each round, so that a busy machine slows them alike; medians count.
Makes its picture itself.
"""

from __future__ import annotations

import argparse
import io
import statistics
import time
from collections.abc import Callable
from typing import Any

import numpy as np
from PIL import Image

from mm_pipeline.image import ImageSettings, preprocess_image
from mm_pipeline.limits import MediaLimits
from serve_apps.bench import format_table

# A contestant returns the grid (t, h, w) of the patches it made.
Contestant = Callable[[bytes], tuple[int, ...]]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options of `mmserve bench image`."""
    parser.add_argument("--width", type=int, default=6000, help="pixels (default: %(default)s)")
    parser.add_argument("--height", type=int, default=4000, help="pixels (default: %(default)s)")
    parser.add_argument("--quality", type=int, default=90, help="of the JPEG, 1 to 95 (default: %(default)s)")
    parser.add_argument("--rounds", type=int, default=7, help="timed runs of each (default: %(default)s)")
    parser.add_argument("--peers", action="store_true", help="also time transformers")


def run(args: argparse.Namespace) -> dict[str, Any]:
    """Prints a table. `ratio_transformers`: the best peer's median time over ours; None without --peers.

    Raises ValueError for sizes or rounds under 1, and when a peer's output is of another size.
    """
    if min(args.width, args.height, args.rounds) < 1:
        raise ValueError(
            f"width {args.width}, height {args.height}, rounds {args.rounds}: each must be at least 1"
        )
    data = make_jpeg(args.width, args.height, args.quality)
    settings = ImageSettings()
    contestants: dict[str, Contestant] = {
        "ours": _ours(settings, "fast"),
        "ours, plain path": _ours(settings, "reference"),
    }
    if args.peers:
        contestants |= _peers(settings)
    seconds, grid = _take_turns(contestants, data, args.rounds)

    medians = {name: statistics.median(times) for name, times in seconds.items()}
    peers = {name: median for name, median in medians.items() if not name.startswith("ours")}
    best_peer = min(peers, key=peers.__getitem__) if peers else None
    print(
        f"{args.width} x {args.height} JPEG, {len(data) / 1e6:.1f} MB, to {grid[1] * grid[2]} patches; "
        f"{args.rounds} rounds, milliseconds"
    )
    rows = [
        [name, 1000 * medians[name], 1000 * min(times), medians[name] / medians["ours"]]
        for name, times in seconds.items()
    ]
    print(format_table(["bytes to patches", "median", "fastest", "over ours"], rows))
    return {
        "ratio_transformers": round(medians[best_peer] / medians["ours"], 3) if best_peer else None,
        "best_peer": best_peer,
        "ours_ms": round(1000 * medians["ours"], 1),
        "best_peer_ms": round(1000 * medians[best_peer], 1) if best_peer else None,
    }


def make_jpeg(width: int, height: int, quality: int) -> bytes:
    """A colour gradient with noise, so that neither flat areas nor noise alone decide the decoder's speed."""
    y, x = np.mgrid[0:height, 0:width].astype(np.float32)
    channels = (255 * x / width, 255 * y / height, 255 * (x + y) / (width + height))
    noise = np.random.default_rng(0).normal(0, 12, (height, width, 1)).astype(np.float32)
    pixels = np.clip(np.stack(channels, axis=-1) + noise, 0, 255).astype(np.uint8)
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, "JPEG", quality=quality)
    return buffer.getvalue()


def _ours(settings: ImageSettings, backend: Any) -> Contestant:
    limits = MediaLimits(max_image_pixels=1_000_000_000)
    return lambda data: preprocess_image(data, settings, limits, backend=backend).grid_thw


def _peers(settings: ImageSettings) -> dict[str, Contestant]:
    from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil
    from transformers.models.qwen2_vl.image_processing_qwen2_vl import Qwen2VLImageProcessor

    peers: dict[str, Contestant] = {}
    for backend, processor_class in (
        ("torchvision", Qwen2VLImageProcessor),
        ("PIL", Qwen2VLImageProcessorPil),
    ):
        for filter_name, resample in (
            ("bicubic", Image.Resampling.BICUBIC),
            ("bilinear", Image.Resampling.BILINEAR),
        ):
            processor = processor_class(
                patch_size=settings.patch_size,
                merge_size=settings.merge_size,
                temporal_patch_size=settings.temporal_patch_size,
                size={"shortest_edge": settings.min_pixels, "longest_edge": settings.max_pixels},
                resample=resample,
            )
            peers[f"PIL + transformers {backend} {filter_name}"] = _peer(processor)
    return peers


def _peer(processor: Any) -> Contestant:
    def contestant(data: bytes) -> tuple[int, ...]:
        made = processor(Image.open(io.BytesIO(data)), return_tensors="pt")
        return tuple(made["image_grid_thw"][0].tolist())

    return contestant


def _take_turns(
    contestants: dict[str, Contestant], data: bytes, rounds: int
) -> tuple[dict[str, list[float]], tuple[int, ...]]:
    """Seconds of every run, after one untimed run each, and the grid all agree on."""
    grids = {name: contestant(data) for name, contestant in contestants.items()}
    if len(set(grids.values())) != 1:
        raise ValueError(
            f"the contestants made different sizes: {grids}; choose a size that all resize alike"
        )
    seconds: dict[str, list[float]] = {name: [] for name in contestants}
    for _ in range(rounds):
        for name, contestant in contestants.items():
            started = time.perf_counter()
            contestant(data)
            seconds[name].append(time.perf_counter() - started)
    return seconds, grids["ours"]
