"""One `mmserve serve` for all end-to-end tests, and a web server with pictures beside it."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from serve_apps.checkpoint import make_checkpoint
from tests.e2e.media import web_server

ROOT = Path(__file__).parents[2]
HEALTH_TIMEOUT_S = 2.0


@dataclass(frozen=True)
class RunningServer:
    """A server process, its address, and where its output goes."""

    process: subprocess.Popen[bytes]
    url: str
    checkpoint: Path
    log: Path

    def stop(self) -> None:
        """Ctrl-C, and its end."""
        self.process.send_signal(signal.SIGINT)
        self.process.wait(60)

    def health(self) -> tuple[int, dict]:
        """Status and body of GET /health."""
        try:
            with urllib.request.urlopen(f"{self.url}/health", timeout=30) as response:
                return response.status, json.load(response)
        except urllib.error.HTTPError as error:
            with error:
                return error.code, json.load(error)

    def wait_for(self, condition: Callable[[dict], bool], timeout_s: float) -> dict:
        """The engine's numbers once they meet the condition."""
        deadline = time.monotonic() + timeout_s
        while True:
            status, body = self.health()
            if status == 200 and condition(body["engine"]):
                return body["engine"]
            assert time.monotonic() < deadline, f"it never came to that: {status} {body}"
            time.sleep(0.1)

    def replica_pid(self, deployment: str) -> int:
        """The process of a replica, found by the title Ray gives it."""
        (pid,) = self.pids(f"ray::ServeReplica:mm-pipeline:{deployment}")
        return pid

    def pids(self, title: str) -> list[int]:
        """This server's processes whose title begins so. Ray's processes are titled by what they run."""
        found = []
        for path in Path("/proc").glob("[0-9]*/cmdline"):
            try:
                pid = int(path.parent.name)
                if path.read_bytes().startswith(title.encode()) and self._started(pid):
                    found.append(pid)
            except (FileNotFoundError, ProcessLookupError):
                continue
        return found

    def _started(self, pid: int) -> bool:
        """Whether the process belongs to this server and not to another on the machine."""
        while pid > 1:
            if pid == self.process.pid:
                return True
            status = Path(f"/proc/{pid}/status").read_text()
            pid = int(next(line for line in status.splitlines() if line.startswith("PPid:")).split()[1])
        return False


def free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])


@pytest.fixture(scope="session")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("checkpoint") / "tiny"
    make_checkpoint(folder, "tiny")
    return folder


@contextlib.contextmanager
def running_server(checkpoint: Path, log: Path, **more: object) -> Iterator[RunningServer]:
    """A server from its ready line to its end. more: options of `mmserve serve`, such as disk_store=folder."""
    port = free_port()
    options = {
        "--port": port,
        "--dtype": "float32",
        "--num-threads": 1,
        "--kv-memory-mib": 64,
        "--health-timeout-s": HEALTH_TIMEOUT_S,
        **{f"--{name.replace('_', '-')}": value for name, value in more.items()},
    }
    command = [sys.executable, "-m", "serve_apps.cli", "serve", checkpoint, "--allow-private-hosts"]
    command += [item for option in options.items() for item in option]
    with log.open("wb") as output:
        process = subprocess.Popen(
            list(map(str, command)),
            cwd=ROOT,
            stdout=output,
            stderr=subprocess.STDOUT,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            start_new_session=True,
        )
    running = RunningServer(process, f"http://127.0.0.1:{port}", checkpoint, log)
    try:
        _wait_until_ready(running)
        yield running
    finally:
        try:
            running.stop()
        finally:
            # Reaches what outlived the server, and nobody else: the group is its own.
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
    # Nothing but the ready line: Ray's own messages stay in its log files.
    ready, *rest = log.read_text().splitlines()
    assert ready == f"Ready: {running.url}/v1  model tiny"
    # A test kills the engine's process, which Ray reports in its own words.
    assert all("(raylet)" in line or "OOM" in line or "Some common causes" in line for line in rest), rest
    assert process.returncode == 0


@pytest.fixture(scope="session")
def server(checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    with running_server(checkpoint, tmp_path_factory.mktemp("server") / "log") as running:
        yield running


def _wait_until_ready(running: RunningServer) -> None:
    deadline = time.monotonic() + 150
    while "Ready:" not in running.log.read_text():
        assert running.process.poll() is None, running.log.read_text()
        assert time.monotonic() < deadline, "the server did not become ready"
        time.sleep(0.2)


@pytest.fixture(scope="session")
def web() -> Iterator[str]:
    with web_server() as url:
        yield url
