"""Small clips and the plain way to decode them, for the tests of this folder."""

from __future__ import annotations

import io
import zlib

import av
import numpy as np

from mm_pipeline.video import VideoDecoder
from tests.media_files.encode import Video, steady, write

# Every GOP of 24 frames has B-frames, also ones that others refer to.
GOPS = {"g": "24", "bf": "3", "b_strategy": "0", "sc_threshold": "0", "preset": "veryfast"}


def clip(num_frames=96, container="mp4", **options):
    return write(container, Video(frames=steady(num_frames), options={**GOPS, **options}))


def digest(frame):
    checksum = 0
    for plane in frame.planes:
        checksum = zlib.crc32(plane, checksum)
    return frame.pts, checksum


def plain_digests(data):
    """By display time: checksum of every frame of a full decode on one thread."""
    with av.open(io.BytesIO(data)) as container:
        stream = container.streams.video[0]
        stream.thread_type = "NONE"
        return dict(digest(frame) for frame in container.decode(stream))


def decoded_digests(data, plan, num_threads):
    """(display time, checksum) of every sampled frame, before scaling."""

    def converter():
        return lambda frame: np.array(digest(frame), dtype="<i8").view(np.uint8), (16,)

    decoder = VideoDecoder(data, plan, num_threads=num_threads, converter=converter)
    return [tuple(pair) for chunk in decoder.chunks() for pair in chunk.frames.view("<i8").tolist()]
