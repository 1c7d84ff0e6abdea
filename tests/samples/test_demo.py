"""The demo's own promises: it says what failed, and nothing it started outlives it."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import pytest

from samples import demo

ROOT = Path(__file__).parents[2]

SLEEPY_SERVER = """
import http.server, subprocess, sys, time

class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(503 if time.monotonic() < ready else 200)
        self.end_headers()

ready = time.monotonic() + 1
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
print(child.pid, flush=True)
http.server.HTTPServer(("127.0.0.1", int(sys.argv[1])), Handler).serve_forever()
"""


def is_running(pid: int) -> bool:
    stat = Path(f"/proc/{pid}/stat")
    return stat.exists() and stat.read_text().rpartition(")")[2].split()[0] != "Z"


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_waits_for_readiness_and_leaves_no_process() -> None:
    port = demo.free_port()
    with subprocess.Popen(
        [sys.executable, "-c", SLEEPY_SERVER, str(port)],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        start_new_session=True,
    ) as process:
        assert process.stdout is not None
        child = int(process.stdout.readline())
        try:
            demo.wait_until_ready(process, f"http://127.0.0.1:{port}")
            assert is_running(child)
        finally:
            demo.stop(process)
    assert not is_running(process.pid)
    # The signal is sent, but the kernel takes its time.
    deadline = time.monotonic() + 10
    while is_running(child) and time.monotonic() < deadline:
        time.sleep(0.01)
    assert not is_running(child)


def test_a_server_that_cannot_start_fails_the_demo_and_shows_why(tmp_path: Path) -> None:
    result = subprocess.run(
        [sys.executable, "samples/demo.py", "--checkpoint", str(tmp_path / "nothing")],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert result.returncode == 1
    assert "the server stopped with exit code 2 before it was ready" in result.stderr
    assert "there is no folder" in result.stderr
