"""A server in a process of its own for the length of a benchmark or a demo. Knows how to start and end it."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from urllib.error import URLError
from urllib.request import ProxyHandler, build_opener

_START_S = 240.0
_STOP_S = 30.0
_POLL_S = 0.1
_LOG_LINES = 20


class ServerError(ValueError):
    """The server ended, or was never ready; the message has its last lines."""


@dataclass(frozen=True, kw_only=True)
class RunningServer:
    """ready_s: from the start of the process until GET /health says 200."""

    url: str
    ready_s: float


@contextmanager
def running_server(checkpoint: Path, log: Path) -> Iterator[RunningServer]:
    """`mmserve serve` on a free port of this machine, with its output in `log`; always taken down.

    Raises ServerError when it ends before it is ready, or never is.
    """
    port = free_port()
    command = [sys.executable, "-m", "serve_apps.cli", "serve", str(checkpoint)]
    begin = time.perf_counter()
    with log.open("wb") as output:
        process = subprocess.Popen(
            [*command, "--host", "127.0.0.1", "--port", str(port)],
            stdout=output,
            stderr=subprocess.STDOUT,
            stdin=subprocess.DEVNULL,
            env={**os.environ, "RAY_USAGE_STATS_ENABLED": "0"},
            start_new_session=True,
        )
    try:
        url = f"http://127.0.0.1:{port}"
        wait_until_ready(process, url, begin + _START_S, log)
        yield RunningServer(url=url, ready_s=time.perf_counter() - begin)
    finally:
        stop(process)


def free_port() -> int:
    """Of this machine, free just now."""
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])


def wait_until_ready(process: subprocess.Popen[bytes], url: str, deadline: float, log: Path) -> None:
    """Until GET /health says 200. deadline: on `time.perf_counter`. Raises ServerError, with its last lines."""
    # A proxy that is set for the outside world does not know this machine's own addresses.
    opener = build_opener(ProxyHandler({}))
    while time.perf_counter() < deadline:
        if process.poll() is not None:
            raise ServerError(
                f"the server ended with status {process.returncode} before it was ready:\n{_tail(log)}"
            )
        try:
            with opener.open(f"{url}/health", timeout=5):
                return
        except (URLError, OSError):
            time.sleep(_POLL_S)
    raise ServerError(f"the server was not ready after {_START_S:.0f} s:\n{_tail(log)}")


def stop(process: subprocess.Popen[bytes]) -> None:
    """Asks the server to end; whatever of it is left after a while is killed."""
    process.terminate()
    try:
        process.wait(_STOP_S)
    except subprocess.TimeoutExpired:
        print(f"the server did not end within {_STOP_S:.0f} s of SIGTERM; killing it", file=sys.stderr)
    # Its own process group, so this reaches workers that outlived it and nobody else.
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        return
    process.wait()


def _tail(log: Path) -> str:
    return "\n".join(log.read_text(errors="replace").splitlines()[-_LOG_LINES:])
