"""Sizes that the products share, and how rows are split into tiles."""

from __future__ import annotations

from core.runtime.kernels.compiler import part

FLOAT_BYTES = 4
PAIRS_BYTES = 2
"""Bytes of an input that is rounded to bfloat16 for the products of PAIRS; other inputs have FLOAT_BYTES."""

LINE_BYTES = 64
"""Of a cache line."""

PANEL = 16
"""Columns of a panel of packed weights."""

PANEL_BYTES = PANEL * FLOAT_BYTES


@part
def rows_of_tile(rows_left: int, most: int) -> int:
    """Split the rows into equal tiles of at most `most`: 16 rows are 6 + 5 + 5, not 6 + 6 + 4."""
    tiles = (rows_left + most - 1) // most
    return (rows_left + tiles - 1) // tiles
