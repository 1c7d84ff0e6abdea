"""Benchmarks: one module each, with `add_arguments(parser)` and `run(args) -> dict`.

`run` prints a table and returns the result under the benchmark's fixed keys; `mmserve bench` prints it as one
JSON line, last. Modules are imported when they are run.
"""

from __future__ import annotations

from collections.abc import Sequence

BENCHES = {
    "audio": "serve_apps.bench.audio",
    "cache": "serve_apps.bench.cache",
    "decode": "serve_apps.bench.decode",
    "demo": "serve_apps.bench.demo",
    "encoder": "serve_apps.bench.encoder",
    "image": "serve_apps.bench.image",
    "prefix": "serve_apps.bench.prefix",
    "schedule": "serve_apps.bench.schedule",
    "video": "serve_apps.bench.video",
}


def format_table(header: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """Columns aligned: the first to the left, the others to the right. Floats get three significant digits."""
    cells = [list(header), *([_cell(value) for value in row] for row in rows)]
    widths = [max(len(row[i]) for row in cells) for i in range(len(header))]
    return "\n".join(
        "  ".join(
            cell.ljust(width) if i == 0 else cell.rjust(width)
            for i, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in cells
    )


def _cell(value: object) -> str:
    if value is None:
        return "-"
    return f"{value:.3g}" if isinstance(value, float) and abs(value) < 1000 else _plain(value)


def _plain(value: object) -> str:
    return f"{value:.0f}" if isinstance(value, float) else str(value)
