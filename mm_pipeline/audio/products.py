"""How many rows of a matrix product go together.

OpenBLAS, which numpy multiplies with, spreads larger products over threads of its own. Where decoding keeps the
cores busy, those wait for each other many times longer than they work; so every product here stays below that.
"""

from __future__ import annotations

# Multiplications; OpenBLAS takes a second thread at twice as many.
_ONE_THREAD = 1 << 18


def rows_together(row_cost: int) -> int:
    """Rows of `row_cost` multiplications each that one thread computes, at least 1."""
    return max(1, _ONE_THREAD // row_cost)


def even_rows_together(num_rows: int, row_cost: int) -> int:
    """The same, so that `num_rows` fall into groups of one size."""
    most = min(num_rows, rows_together(row_cost))
    return max(size for size in range(1, most + 1) if num_rows % size == 0)
