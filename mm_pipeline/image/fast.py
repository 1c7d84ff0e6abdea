"""The same patches as `resize.patches_reference`, several times faster on a CPU.

Works on row bands with numpy, whose calls run on the calling thread and release the GIL: torch's small parallel
operations lose most of their time at barriers as soon as another thread wants the cores.
Shape letters as in resize.py.
"""

from __future__ import annotations

import mmap
import os
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from mm_pipeline.image.settings import ImageSettings

Float32 = npt.NDArray[np.float32]
Int64 = npt.NDArray[np.int64]

# Below this many output values one thread is as fast as two.
_THREADED_VALUES = 1 << 21
_HUGE_PAGE_VALUES = 1 << 23
_PAGE_BYTES = 4096


def patches_fast(
    pixels: torch.Tensor, height: int, width: int, settings: ImageSettings, out: torch.Tensor | None = None
) -> torch.Tensor:
    """uint8 [3, H, W] to float32 [N, 3 * T * P * P]; cheapest when `pixels` is a view of contiguous [H, W, 3].

    Without antialias an output pixel reads 2 x 2 source pixels, so one band of output rows (one row of tokens) is
    made at a time: vertical blend of the two source rows of each output row, a column gather that already puts the
    columns in patch order, horizontal blend with the normalisation in its weights, and a gather of 16-value runs
    that orders the rows and repeats the time slices. No float copy of the source exists.
    `out`: contiguous float32 [N * 3 * T * P * P] to fill, from `empty_patches`.
    """
    source = pixels.permute(1, 2, 0).contiguous().numpy().reshape(pixels.shape[1], -1)
    plan = _plan(pixels.shape[1], pixels.shape[2], height, width, settings)
    num_bands = height // settings.factor
    if out is None:
        out = empty_patches(height, width, settings)
    target = out.numpy().reshape(num_bands, -1, settings.patch_size)

    num_threads = min(2, os.cpu_count() or 1) if out.numel() >= _THREADED_VALUES else 1
    if num_threads == 1:
        _fill(source, plan, target, range(num_bands))
    else:
        with ThreadPoolExecutor(num_threads) as pool:
            shares = [range(first, num_bands, num_threads) for first in range(num_threads)]
            for done in [pool.submit(_fill, source, plan, target, share) for share in shares]:
                done.result()
    return out.view(-1, settings.patch_values)


@dataclass(frozen=True, kw_only=True)
class _Plan:
    """Which source pixels make which output values, with what weights. Column arrays are in the order (token, patch
    in token, channel, x in patch) and index a source row of (x, channel)."""

    top: Int64
    bottom: Int64
    row_weight: Float32
    left: Int64
    right: Int64
    left_scale: Float32
    right_scale: Float32
    offset: Float32
    # Order of the runs of P values: (token, patch row, patch column, channel, time, y).
    run_order: Int64


def _plan(source_height: int, source_width: int, height: int, width: int, settings: ImageSettings) -> _Plan:
    patch, merge, slices = settings.patch_size, settings.merge_size, settings.temporal_patch_size
    top, bottom, row_weight = _taps(source_height, height)
    left, right, column_weight = _taps(source_width, width)
    channel = np.arange(3, dtype=np.int64).reshape(3, 1)
    mean, std = (255 * np.array(v, dtype=np.float32).reshape(3, 1) for v in (settings.mean, settings.std))
    weight = column_weight.reshape(-1, 1, patch)
    tokens = width // settings.factor
    runs = np.arange(settings.factor * tokens * merge * 3, dtype=np.int64)
    runs = runs.reshape(merge, patch, tokens, merge, 3).transpose(2, 0, 3, 4, 1)[:, :, :, :, None]
    return _Plan(
        top=top,
        bottom=bottom,
        row_weight=row_weight,
        left=(3 * left.reshape(-1, 1, patch) + channel).ravel(),
        right=(3 * right.reshape(-1, 1, patch) + channel).ravel(),
        left_scale=((1 - weight) / std).ravel(),
        right_scale=(weight / std).ravel(),
        offset=np.broadcast_to(-mean / std, (width // patch, 3, patch)).ravel(),
        run_order=np.broadcast_to(runs, (tokens, merge, merge, 3, slices, patch)).ravel(),
    )


def _taps(source: int, target: int) -> tuple[Int64, Int64, Float32]:
    """For each of `target` outputs: first and second source index and the weight of the second.

    Float32 step by step as torch's interpolate computes it: at 6000 columns another rounding of the coordinate
    would move a sharp edge by more than the tolerance.
    """
    scale = np.float32(source) / np.float32(target)
    position = scale * (np.arange(target, dtype=np.float32) + np.float32(0.5)) - np.float32(0.5)
    position = np.maximum(position, np.float32(0))
    first = np.minimum(position.astype(np.int64), source - 1)
    weight = np.clip(position - first.astype(np.float32), 0, 1).astype(np.float32)
    return first, np.minimum(first + 1, source - 1), weight


def _fill(source: npt.NDArray[np.uint8], plan: _Plan, target: Float32, bands: range) -> None:
    """Fills target[band], runs of P values, for the given bands."""
    band_rows = plan.top.size // target.shape[0]
    upper = np.empty((band_rows, source.shape[1]), dtype=np.float32)
    lower = np.empty_like(upper)
    values = np.empty((band_rows, plan.left.size), dtype=np.float32)
    right = np.empty_like(values)
    for band in bands:
        span = slice(band * band_rows, (band + 1) * band_rows)
        for row, (above, below) in enumerate(zip(plan.top[span], plan.bottom[span], strict=True)):
            upper[row] = source[above]
            lower[row] = source[below]
        lower -= upper
        lower *= plan.row_weight[span, None]
        upper += lower
        # mode="clip" lets numpy write straight into `out`; every index is in range.
        np.take(upper, plan.left, axis=1, out=values, mode="clip")
        np.take(upper, plan.right, axis=1, out=right, mode="clip")
        values *= plan.left_scale
        values += plan.offset
        right *= plan.right_scale
        values += right
        np.take(values.reshape(-1, target.shape[2]), plan.run_order, axis=0, out=target[band], mode="clip")


def empty_patches(height: int, width: int, settings: ImageSettings) -> torch.Tensor:
    """Uninitialised float32 [N * 3 * T * P * P] for an image of that resized size."""
    num_values = height * width * 3 * settings.temporal_patch_size
    if num_values < _HUGE_PAGE_VALUES or not hasattr(mmap, "MADV_HUGEPAGE"):
        return torch.empty(num_values)
    region = mmap.mmap(-1, 4 * num_values, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    region.madvise(mmap.MADV_HUGEPAGE)
    return torch.frombuffer(region, dtype=torch.float32)


def touch_pages(values: torch.Tensor) -> threading.Thread | None:
    """Starts a thread that makes the system hand over the pages of a large buffer, and returns it.

    For 200 MB this costs as much as the resize, and it can run while the JPEG decoder holds another core. A small
    buffer is not worth a thread: None.
    """
    if values.numel() < _HUGE_PAGE_VALUES:
        return None
    pages = values.numpy().view(np.uint8)[::_PAGE_BYTES]
    thread = threading.Thread(target=pages.fill, args=(0,), name="touch-pages")
    thread.start()
    return thread
