"""Ways to get chosen frames out of a video file, each run in a process of its own by `mmserve bench video`.

Every contestant gets the same file, frame numbers and target size and hands over small RGB frames. Imports happen
before the clock starts; opening the file counts. Peers are used in their documented way of fetching many frames.
"""

from __future__ import annotations

import argparse
import importlib
import json
import time
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from serve_apps.bench.process import peak_rss_mb


@dataclass(frozen=True, kw_only=True)
class Job:
    """numbers: wanted frames of the file, ascending. gop: frames between its keyframes. height, width: of results,
    which is what smart resize makes of the file's size under max_pixels."""

    path: Path
    numbers: list[int]
    gop: int
    height: int
    width: int
    max_pixels: int


@dataclass(kw_only=True)
class Outcome:
    """frames: how many came out. digests: (pts, checksum of the pixels before scaling) of each, where asked for.
    excluded_s: time spent on checksums."""

    frames: int = 0
    digests: list[tuple[int, int]] | None = None
    excluded_s: float = 0.0


def ours(job: Job, outcome: Outcome) -> Callable[[], None]:
    return _ours(job, outcome, None)


def ours_checked(job: Job, outcome: Outcome) -> Callable[[], None]:
    """Not timed against anybody: takes checksums of the decoded frames instead of scaling them."""

    def converter() -> tuple[Callable[[Any], npt.NDArray[np.uint8]], tuple[int, ...]]:
        return lambda frame: np.array(_digest(frame), dtype="<i8").view(np.uint8), (16,)

    return _ours(job, outcome, converter)


def _ours(job: Job, outcome: Outcome, converter: Any) -> Callable[[], None]:
    from mm_pipeline.video import VideoDecoder, VideoSettings, plan_frames, probe_video

    num_frames = len(job.numbers)
    settings = VideoSettings(
        fps=1000.0, min_frames=num_frames, max_frames=num_frames, max_pixels=job.max_pixels
    )

    def work() -> None:
        plan = plan_frames(probe_video(job.path), settings)
        assert plan.size == (job.height, job.width), "the bench chose a size that smart resize gives"
        decoder = VideoDecoder(job.path, plan, converter=converter)
        for chunk in decoder.chunks():
            outcome.frames += len(chunk.frames)
            if converter is not None:
                pairs = chunk.frames.view("<i8").tolist()
                outcome.digests = [*(outcome.digests or []), *(tuple(pair) for pair in pairs)]

    return work


def plain_loop(job: Job, outcome: Outcome) -> Callable[[], None]:
    """PyAV, one thread, every frame decoded, the wanted ones scaled."""
    import av

    wanted = set(job.numbers)

    def work() -> None:
        outcome.digests = []
        with av.open(str(job.path)) as container:
            stream = container.streams.video[0]
            stream.thread_type = "NONE"
            for number, frame in enumerate(container.decode(stream)):
                if number in wanted:
                    frame.reformat(width=job.width, height=job.height, format="rgb24").to_ndarray()
                    outcome.frames += 1
                    started = time.perf_counter()
                    outcome.digests.append(_digest(frame))
                    outcome.excluded_s += time.perf_counter() - started
                if number == job.numbers[-1]:
                    break

    return work


def decord(job: Job, outcome: Outcome) -> Callable[[], None]:
    library: Any = importlib.import_module("decord")

    def work() -> None:
        reader = library.VideoReader(str(job.path), width=job.width, height=job.height)
        for numbers in _batches(job.numbers):
            outcome.frames += len(reader.get_batch(numbers).asnumpy())

    return work


def opencv(job: Job, outcome: Outcome) -> Callable[[], None]:
    """Seeks where the next frame is more than a keyframe interval away, else reads on."""
    import cv2

    def work() -> None:
        capture = cv2.VideoCapture(str(job.path))
        at = 0
        for number in job.numbers:
            if number - at > job.gop:
                capture.set(cv2.CAP_PROP_POS_FRAMES, number)
                at = number
            while at < number:
                capture.grab()
                at += 1
            is_there, frame = capture.read()
            at += 1
            if is_there:
                small = cv2.resize(frame, (job.width, job.height), interpolation=cv2.INTER_LINEAR)
                cv2.cvtColor(small, cv2.COLOR_BGR2RGB)
                outcome.frames += 1
        capture.release()

    return work


def torchcodec_default(job: Job, outcome: Outcome) -> Callable[[], None]:
    return _torchcodec(job, outcome, {})


def torchcodec_best(job: Job, outcome: Outcome) -> Callable[[], None]:
    """Its settings for speed: approximate seeking, all threads."""
    return _torchcodec(job, outcome, {"seek_mode": "approximate", "num_ffmpeg_threads": 0})


def _torchcodec(job: Job, outcome: Outcome, options: dict[str, Any]) -> Callable[[], None]:
    decoders: Any = importlib.import_module("torchcodec.decoders")
    resize = importlib.import_module("torchcodec.transforms").Resize((job.height, job.width))

    def work() -> None:
        decoder = decoders.VideoDecoder(str(job.path), transforms=[resize], **options)
        for numbers in _batches(job.numbers):
            outcome.frames += len(decoder.get_frames_at(numbers).data)

    return work


CONTESTANTS: dict[str, Callable[[Job, Outcome], Callable[[], None]]] = {
    "ours": ours,
    "plain loop": plain_loop,
    "decord": decord,
    "OpenCV": opencv,
    "torchcodec default": torchcodec_default,
    "torchcodec best": torchcodec_best,
    "ours checked": ours_checked,
}


def _batches(numbers: list[int], size: int = 32) -> Iterator[list[int]]:
    for first in range(0, len(numbers), size):
        yield numbers[first : first + size]


def _digest(frame: Any) -> tuple[int, int]:
    checksum = 0
    for plane in frame.planes:
        checksum = zlib.crc32(plane, checksum)
    return frame.pts, checksum


def main() -> None:
    """Runs one contestant and prints one JSON line: seconds, peak_rss_mb, frames, digests."""
    parser = argparse.ArgumentParser()
    parser.add_argument("contestant", choices=CONTESTANTS)
    parser.add_argument("job", help="the fields of Job as JSON")
    args = parser.parse_args()
    fields = json.loads(args.job)
    job, outcome = Job(**fields | {"path": Path(fields["path"])}), Outcome()
    work = CONTESTANTS[args.contestant](job, outcome)
    started = time.perf_counter()
    work()
    seconds = time.perf_counter() - started - outcome.excluded_s
    print(
        json.dumps(
            {
                "seconds": seconds,
                "peak_rss_mb": peak_rss_mb(),
                "frames": outcome.frames,
                "digests": outcome.digests,
            }
        )
    )


if __name__ == "__main__":
    main()
