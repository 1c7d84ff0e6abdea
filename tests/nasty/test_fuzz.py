"""Thousands of damaged files through probe and decode in a process of their own: none may hang, none may raise
anything but a MediaError, and nothing may be left behind. A decoder crash would cost that process, never this one.
"""

import json
import os
import queue
import subprocess
import sys
import threading
from functools import cache
from pathlib import Path

import pytest

from tests.media_files import SOUND_FILES, VIDEO_FILES, damage
from tests.nasty import fuzz_worker

ROOT = Path(__file__).parents[2]
DEADLINE_S = 30
SEED_VIDEOS = (
    "webm_vp9", "open_gop_hevc", "wrong_frame_count", "animated_gif", "animated_webp", "animated_png", "odd_size",
    "intra_refresh", "raw_h264", "edit_list",
)  # fmt: skip
SEED_SOUNDS = ("mp3_lame", "opus_ogg", "flac_48k", "aac_adts", "wav_11k", "opus_webm")


@cache
def seeds():
    made = {name: damage.small_movie(name) for name in damage.CONTAINERS}
    made |= {name: VIDEO_FILES[name]().data for name in SEED_VIDEOS}
    return made | {name: SOUND_FILES[name]().data for name in SEED_SOUNDS}


class Worker:
    """The decoder process: asks, waits with a deadline, and is replaced when it dies."""

    def __init__(self, folder):
        self.folder = folder
        self._start()

    def _start(self):
        environment = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONWARNINGS": "ignore"}
        self.process = subprocess.Popen(
            [sys.executable, "-m", fuzz_worker.__name__],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            env=environment,
            cwd=ROOT,
        )
        self.answers = queue.Queue()
        self.reader = threading.Thread(target=self._read, args=(self.process.stdout, self.answers))
        self.reader.start()

    @staticmethod
    def _read(stdout, answers):
        for line in stdout:
            answers.put(json.loads(line))
        answers.put(None)

    def ask(self, data, in_memory, num_threads=1000, deadline_s=DEADLINE_S):
        """The worker's answer; None when the process died over it. Raises queue.Empty at the deadline."""
        path = self.folder / "item"
        path.write_bytes(data)
        task = {"path": str(path), "in_memory": in_memory, "threads": num_threads}
        self.process.stdin.write(json.dumps(task) + "\n")
        self.process.stdin.flush()
        answer = self.answers.get(timeout=deadline_s)
        if answer is None:
            self.replace()
        return answer

    def replace(self):
        """A new process for one that died or hangs."""
        self.close()
        self._start()

    def close(self):
        self.process.kill()
        self.process.wait()
        self.reader.join()
        self.process.stdin.close()
        self.process.stdout.close()


@pytest.fixture(scope="module")
def worker(tmp_path_factory):
    made = Worker(tmp_path_factory.mktemp("fuzz"))
    yield made
    made.close()


def run(worker, count, seed):
    # Whole files first: libraries load, pools start, and what is there then may stay. Imports take their time.
    for data in seeds().values():
        for in_memory in (True, False):
            answer = worker.ask(data, in_memory, deadline_s=120)
            assert "unexpected" not in answer
    threads, files = answer["threads"], answer["files"]
    problems = []
    for i, (what, data) in enumerate(damage.mutants(seeds(), count, seed)):
        try:
            answer = worker.ask(data, in_memory=i % 4 != 3, num_threads=threads)
        except queue.Empty:
            worker.replace()
            problems.append(f"{what}: over {DEADLINE_S} s")
            continue
        if answer is None:
            problems.append(f"{what}: the decoder process died")
        elif "unexpected" in answer:
            problems.append(f"{what}: {answer['unexpected']}")
        elif answer["threads"] > threads or answer["files"] > files:
            problems.append(f"{what}: left {answer['threads']} threads, {answer['files']} open files")
            threads, files = max(threads, answer["threads"]), max(files, answer["files"])
    assert not problems, "\n".join(problems)


def test_damaged_files(worker):
    run(worker, count=105, seed=1)


@pytest.mark.slow
@pytest.mark.timeout(3000)
def test_two_thousand_damaged_files(worker):
    run(worker, count=2000, seed=2)


def test_a_dead_worker_is_replaced(worker):
    """The parent survives the process's death and the next file is decoded."""
    good = seeds()["animated_gif"]
    first = worker.ask(good, in_memory=True, deadline_s=120)
    worker.process.kill()
    worker.process.wait()
    assert worker.answers.get(timeout=10) is None
    worker.replace()
    again = worker.ask(good, in_memory=True, deadline_s=120)
    assert again["video"] == first["video"] == "10 frames, 0 mel frames"
