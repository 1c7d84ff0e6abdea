"""The plain way to read a video: decode everything, in order, on one thread. Knows no sampling."""

from __future__ import annotations

import io
from dataclasses import dataclass

import av
import av.error
import numpy as np

from tests.media_files.picture import read_number


@dataclass(frozen=True, kw_only=True)
class Oracle:
    """times_s: from the first frame. numbers: None where the picture is not readable."""

    times_s: tuple[float, ...]
    numbers: tuple[int | None, ...]
    num_bad_packets: int


def full_decode(data: bytes, stream: int = 0) -> Oracle:
    """Every frame that decodes of the given video stream; bad packets are skipped."""
    times: list[float] = []
    numbers: list[int | None] = []
    bad = 0
    with av.open(io.BytesIO(data), metadata_errors="replace") as file:
        video = file.streams.video[stream]
        video.codec_context.thread_count = 1
        packets = file.demux(video)
        while True:
            try:
                packet = next(packets, None)
                if packet is None:
                    break
                frames = packet.decode()
            except av.error.FFmpegError:
                bad += 1
                continue
            for frame in frames:
                times.append(float(frame.pts * frame.time_base) if frame.pts is not None else float("nan"))
                numbers.append(number_of(frame.to_ndarray(format="rgb24")))
    origin = times[0] if times else 0.0
    return Oracle(times_s=tuple(time - origin for time in times), numbers=tuple(numbers), num_bad_packets=bad)


def number_of(rgb: np.ndarray) -> int | None:
    """The painted number, None where it is not readable."""
    try:
        return read_number(rgb)
    except ValueError:
        return None
