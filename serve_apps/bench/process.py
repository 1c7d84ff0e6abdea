"""One contestant of a benchmark in a process of its own, so that its speed and its memory are its own.

Knows no contestant. Linux only: it reads /proc.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

_PACKAGES = {"cv2": "opencv-python-headless"}


class ContestantError(Exception):
    """The contestant did not run to its end; the message is the last thing it said."""


def run_contestant(module: str, name: str, argument: str) -> dict[str, Any]:
    """Runs `python -m module name argument`; what its last line of output says in JSON. Raises ContestantError."""
    with tempfile.TemporaryDirectory() as folder:
        environment = dict(os.environ)
        if name.startswith("torchcodec"):
            environment["LD_LIBRARY_PATH"] = _ffmpeg_libraries(Path(folder))
        done = subprocess.run(
            [sys.executable, "-m", module, name, argument],
            capture_output=True,
            text=True,
            check=False,
            env=environment,
        )
    if done.returncode:
        lines = done.stderr.strip().splitlines() or [f"exit status {done.returncode}"]
        missing = re.fullmatch(r"ModuleNotFoundError: No module named '(\w+)'", lines[-1])
        raise ContestantError(
            f"pip install {_PACKAGES.get(missing[1], missing[1])}" if missing else lines[-1]
        )
    result: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return result


def peak_rss_mb() -> float:
    """Of this process alone; getrusage would count the one that started it."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) / 1024
    raise RuntimeError("/proc/self/status tells no VmHWM; this benchmark needs Linux")


def _ffmpeg_libraries(folder: Path) -> str:
    """A path on which torchcodec finds an FFmpeg: the system's, then PyAV's under the names it looks for."""
    # Here, since contestants import this module too, and their memory counts.
    import av

    bundled = Path(av.__file__).parent.parent / "av.libs"
    for library in bundled.glob("lib[as][vw]*.so.*"):
        # libavcodec-5e6b81c2.so.62.28.102 is wanted as libavcodec.so.62.
        stem, _, version = library.name.partition(".so.")
        (folder / f"{stem.split('-')[0]}.so.{version.split('.')[0]}").symlink_to(library)
    return os.pathsep.join([*filter(None, [os.environ.get("LD_LIBRARY_PATH")]), str(folder), str(bundled)])
