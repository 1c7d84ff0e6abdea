"""What the suite asks of the pipeline, in a form that tests can compare with the truth."""

from __future__ import annotations

import io
from bisect import bisect_right
from dataclasses import dataclass

import av
import numpy as np

from mm_pipeline.video import (
    DecodeReport,
    FramePlan,
    VideoDecoder,
    VideoSettings,
    plan_frames,
    probe_video,
)
from tests.media_files import VideoFile
from tests.media_files.picture import NUM_BITS, is_upright, read_number, read_patches, to_rgb

# Samples every frame at a constant rate.
EVERY_FRAME = VideoSettings(fps=1000.0)


@dataclass(frozen=True, kw_only=True)
class Sampled:
    """frames: uint8 [n, H, W, 3]; times_s: one for each."""

    plan: FramePlan
    report: DecodeReport
    frames: np.ndarray
    times_s: tuple[float, ...]

    @property
    def numbers(self) -> list[int | None]:
        """The painted numbers; None where there is no readable, upright picture of ours."""
        return [painted(frame) for frame in self.frames]


def painted(rgb: np.ndarray) -> int | None:
    """The number in a frame, None where it is not readable or not upright."""
    try:
        return read_number(rgb) if is_upright(rgb) else None
    except ValueError:
        return None


def sample(data: bytes, settings: VideoSettings = EVERY_FRAME, num_threads: int | None = None) -> Sampled:
    """Probe, plan, decode; checks what holds for every video."""
    plan = plan_frames(probe_video(data), settings)
    decoder = VideoDecoder(data, plan, num_threads=num_threads)
    frames, times = [], []
    for chunk in decoder.chunks():
        assert chunk.first_frame == len(times)
        assert len(chunk.times_s) == len(chunk.frames)
        assert tuple(chunk.frames.shape[1:]) == (3, *plan.size)
        frames.append(chunk.frames.transpose(0, 2, 3, 1))
        times += chunk.times_s
    assert tuple(times) == plan.frame_times_s
    assert len(times) == plan.num_units * plan.temporal_patch_size
    assert times == sorted(times)
    return Sampled(plan=plan, report=decoder.report, frames=np.concatenate(frames), times_s=tuple(times))


def displayed_at(file: VideoFile, time_s: float) -> int:
    """The number a player shows at a time."""
    at = bisect_right(file.times_s, time_s + file.time_error_s) - 1
    return file.numbers[max(at, 0)] % (1 << NUM_BITS)


def decoded_patches(file: VideoFile) -> np.ndarray:
    """float64 [4, 3]: the patches' colours in the first frame, by the file's matrix and range written out, without
    a scaler: the mean codes of each patch's middle, luma and chroma apart."""
    with av.open(io.BytesIO(file.data)) as container:
        frame = next(container.decode(video=0))
    kind = np.dtype("u1" if file.bits == 8 else "<u2")
    planes = [
        np.frombuffer(plane, kind).reshape(-1, plane.line_size // kind.itemsize)[:, : plane.width]
        for plane in frame.planes
    ]
    # Every plane as three equal channels: read_patches works on shares of the size.
    codes = np.stack([read_patches(plane[..., None].repeat(3, -1))[:, 0] for plane in planes], axis=-1)
    return to_rgb(codes, file.matrix, file.full_range, file.bits)
