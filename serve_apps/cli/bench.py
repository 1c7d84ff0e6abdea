"""`mmserve bench NAME`: runs one benchmark and prints its result as JSON, last."""

from __future__ import annotations

import argparse
import json
from importlib import import_module

from serve_apps.bench import BENCHES
from serve_apps.cli import CliError, parse


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds NAME; what follows it belongs to the benchmark."""
    parser.add_argument("name", metavar="NAME", help=f"one of: {', '.join(BENCHES)}")
    parser.add_argument("rest", metavar="...", nargs=argparse.REMAINDER, help="see mmserve bench NAME --help")


def run(args: argparse.Namespace) -> int:
    """The benchmark prints its table; the last line is its result as one JSON object."""
    if args.name not in BENCHES:
        raise CliError(f"there is no benchmark '{args.name}'; the benchmarks are {', '.join(BENCHES)}")
    module = BENCHES[args.name]
    parsed = parse(f"mmserve bench {args.name}", module, f"Benchmark: {args.name}.", args.rest)
    try:
        result = import_module(module).run(parsed)
    except ValueError as error:
        raise CliError(str(error)) from error
    print(json.dumps(result, allow_nan=False), flush=True)
    return 0
