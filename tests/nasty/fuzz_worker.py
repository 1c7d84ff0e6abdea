"""Decodes one file after another, as a decoder process of the server does, and tells how each went.

stdin: lines of JSON, {"path": file, "in_memory": bool, "threads": how many may stay}. stdout: a line of JSON for
each: outcomes by modality, and the process's threads and open files afterwards.
"""

import json
import os
import sys
import threading
import time
import traceback
from pathlib import Path

import numpy as np

from mm_pipeline.decoding import FramePart, MediaDecoder, MelPart
from mm_pipeline.errors import MediaError
from mm_pipeline.limits import MediaLimits
from mm_pipeline.options import MediaOptions
from mm_pipeline.video import VideoDecoder, VideoSettings, plan_frames, probe_video

LIMITS = MediaLimits(max_video_pixels=4096 * 2304, max_media_duration_s=3600)
OPTIONS = MediaOptions(fps=30, max_frames=48, max_pixels=128 * 128)
CONFIG = {"audio_config": {}, "processor_config": {}}


def outcome(data: bytes, modality: str) -> str:
    """What the server's decoder makes of the bytes: parts, or the name of a MediaError. Anything else is raised."""
    decoder = MediaDecoder(CONFIG, LIMITS)
    frames = mels = 0
    try:
        for part in decoder.decode(data, modality, OPTIONS, threading.Event()):
            if isinstance(part, FramePart):
                frames += part.frames.shape[0]
            elif isinstance(part, MelPart):
                assert np.isfinite(part.mel).all()
                mels += part.mel.shape[0]
    except MediaError as error:
        if not error.message or "Errno" in error.message:
            raise ValueError(f"a message for nobody: {error.message!r}") from error
        return type(error).__name__
    return f"{frames} frames, {mels} mel frames"


def outcome_of_file(path: Path) -> str:
    """The same of a video that is read from disk and given up after the first chunk."""
    try:
        plan = plan_frames(
            probe_video(path, LIMITS), VideoSettings(fps=30, max_frames=48, max_pixels=128 * 128)
        )
        chunks = VideoDecoder(path, plan, limits=LIMITS).chunks()
        next(chunks)
        chunks.close()
    except MediaError as error:
        return type(error).__name__
    return "first chunk"


def num_threads(allowed: int) -> int:
    """Threads of this process, once there are no more than allowed or a second has passed: a thread that has been
    joined takes a moment to leave the system's list."""
    deadline = time.monotonic() + 1
    while (count := len(os.listdir("/proc/self/task"))) > allowed and time.monotonic() < deadline:
        time.sleep(0.001)
    return count


def main() -> None:
    for line in sys.stdin:
        task = json.loads(line)
        path = Path(task["path"])
        try:
            if task["in_memory"]:
                data = path.read_bytes()
                answer = {name: outcome(data, name) for name in ("video", "audio")}
            else:
                answer = {"file": outcome_of_file(path)}
        except Exception as error:
            place = traceback.extract_tb(error.__traceback__)[-1]
            where = f"{Path(place.filename).name}:{place.lineno}"
            answer = {"unexpected": f"{type(error).__name__} at {where}: {error}"}
        answer |= {"threads": num_threads(task["threads"]), "files": len(os.listdir("/proc/self/fd"))}
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
