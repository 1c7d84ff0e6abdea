"""A server of a benchmark: it is waited for, and nothing it started outlives it."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import pytest

from serve_apps.bench import server

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
def test_waits_for_readiness_and_leaves_no_process(tmp_path: Path) -> None:
    port = server.free_port()
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
            server.wait_until_ready(
                process, f"http://127.0.0.1:{port}", time.perf_counter() + 60, tmp_path / "server.log"
            )
            assert is_running(child)
        finally:
            server.stop(process)
    assert not is_running(process.pid)
    # The signal is sent, but the kernel takes its time.
    deadline = time.monotonic() + 10
    while is_running(child) and time.monotonic() < deadline:
        time.sleep(0.01)
    assert not is_running(child)
