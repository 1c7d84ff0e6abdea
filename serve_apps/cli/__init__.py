"""`mmserve`: picks the command and runs it.

Each command is a module with `add_arguments(parser)` and `run(args) -> exit code`, imported only when it is asked
for, so that `mmserve --help` needs neither torch nor Ray.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from importlib import import_module
from typing import NoReturn

COMMANDS = {
    "serve": ("serve_apps.cli.serve", "serve a checkpoint over an OpenAI-compatible API"),
    "chat": ("serve_apps.cli.chat", "ask one question, about pictures too, and stream the answer"),
    "inspect": ("serve_apps.cli.inspect", "show what a model would get of a video or sound file"),
    "make-checkpoint": ("serve_apps.checkpoint", "write a small checkpoint with random weights"),
    "bench": ("serve_apps.cli.bench", "run a benchmark; the last line is one JSON object"),
}


class CliError(Exception):
    """A mistake of the user, or a failure they can act on: shown as one line, exit code 2."""


class Parser(argparse.ArgumentParser):
    """An ArgumentParser whose errors are one line."""

    def error(self, message: str) -> NoReturn:
        """Exit code 2 and one line."""
        self.exit(2, f"{self.prog}: {message} (see {self.prog} --help)\n")


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command line; returns the exit code."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    try:
        return _run(arguments)
    except CliError as error:
        print(f"mmserve: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130


def parse(prog: str, module: str, description: str, arguments: Sequence[str]) -> argparse.Namespace:
    """The arguments of a command or benchmark, by the module's own `add_arguments`."""
    parser = Parser(prog=prog, description=description, allow_abbrev=False)
    import_module(module).add_arguments(parser)
    return parser.parse_args(arguments)


def _run(arguments: list[str]) -> int:
    if not arguments or arguments[0] in ("-h", "--help"):
        print(_help(), file=sys.stdout if arguments else sys.stderr)
        return 0 if arguments else 2
    name, *rest = arguments
    if name not in COMMANDS:
        raise CliError(f"there is no command '{name}'; the commands are {', '.join(COMMANDS)}")
    module, summary = COMMANDS[name]
    args = parse(f"mmserve {name}", module, summary.capitalize() + ".", rest)
    code: int = import_module(module).run(args)
    return code


def _help() -> str:
    width = max(map(len, COMMANDS))
    lines = [f"  {name:<{width}}  {summary}" for name, (_, summary) in COMMANDS.items()]
    return "\n".join(
        ["usage: mmserve COMMAND ...", "", "commands:", *lines, "", "mmserve COMMAND --help tells more."]
    )
