"""Ray and the application on this machine, started and stopped together, without Ray's chatter."""

from __future__ import annotations

import logging
import os
import re
import socket

from serve_apps.settings import ServerSettings

# Both are read when Ray is imported.
os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
os.environ.setdefault("RAY_SERVE_LOG_TO_STDERR", "0")

import ray
from ray import serve
from ray.serve.schema import LoggingConfig

from serve_apps.app import build_app

APP_NAME = "mm-pipeline"
QUIET = LoggingConfig(log_level="WARNING", enable_access_log=False)
"""Of Serve's own logs."""

_EXCEPTION_NAME = re.compile(r"^[\w.]+: ")


class StartError(Exception):
    """The server did not come up; one line for the terminal."""


class Server:
    """One Ray instance with one application. `stop` is safe at any time and more than once."""

    def __init__(self, settings: ServerSettings) -> None:
        self._settings = settings.resolved()

    def start(self) -> None:
        """Returns once requests are served. Raises StartError."""
        _require_free_port(self._settings.host, self._settings.port)
        start_ray()
        serve.start(
            proxy_location="HeadOnly",
            http_options={"host": self._settings.host, "port": self._settings.port},
            logging_config=QUIET,
        )
        try:
            serve.run(build_app(self._settings), name=APP_NAME, route_prefix="/", logging_config=QUIET)
        except RuntimeError as error:
            raise StartError(f"the server did not start: {_reason() or error}") from error

    def stop(self) -> None:
        """Ends requests, replicas and Ray."""
        if not ray.is_initialized():
            return
        try:
            # Lets the replicas end what they are at. Serve's own shutdown prints an error of its controller.
            serve.delete(APP_NAME)
        finally:
            ray.shutdown()


def start_ray() -> None:
    """Ray on this machine alone, which says nothing on the terminal; `ray.shutdown` ends it."""
    _quiet()
    ray.init(
        address="local",
        include_dashboard=False,
        log_to_driver=False,
        configure_logging=False,
        logging_level=logging.ERROR,
    )
    _quiet()


def _quiet() -> None:
    for name in ("ray", "ray.serve"):
        logging.getLogger(name).setLevel(logging.ERROR)


def _require_free_port(host: str, port: int) -> None:
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        with socket.socket(family, kind, protocol) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(address)
    except OSError as error:
        raise StartError(
            f"cannot listen on {host} port {port}: {error.strerror}; choose another with --host and --port"
        ) from error


def _reason() -> str:
    """What went wrong inside the replicas, or an empty string: the last line of each traceback Ray hands on."""
    messages = [d.message for d in serve.status().applications[APP_NAME].deployments.values()]
    lines = [text.strip().rpartition("\n")[2] for text in messages if "Traceback" in text]
    # Replicas that fail for the same reason say the same.
    return "; ".join(dict.fromkeys(_EXCEPTION_NAME.sub("", line) for line in lines))
