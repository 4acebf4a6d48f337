"""The input of a decode step gathered by one compiled call, and its tokens put back by another.

`core.runtime.input_batch` does the same in numpy where there are no kernels; two dozen small calls, each cold after a
forward pass, cost more there than all rows here.
"""

from __future__ import annotations

from functools import cache

import numpy as np
import numpy.typing as npt

from core.runtime.input_batch import RowCalls
from core.runtime.kernels.compiler import jit

Int32 = npt.NDArray[np.int32]
Int64 = npt.NDArray[np.int64]


def _gather(
    rows: Int64, starts: Int64, held_tokens: Int32, held_counts: Int64, held_blocks: Int64, held_tables: Int32, block_size: int,
    token_ids: Int32, positions: Int32, slots: Int64, contexts: Int32, tables: Int32,
) -> bool:  # fmt: skip
    width = tables.shape[1]
    for at in range(len(rows)):
        row, start = rows[at], starts[at]
        if start < 0 or start + 1 != held_counts[row] or start >= held_blocks[row] * block_size:
            return False
        token_ids[at] = held_tokens[row, start]
        positions[at] = start
        contexts[at] = start + 1
        slots[at] = np.int64(held_tables[row, start // block_size]) * block_size + start % block_size
        for column in range(width):
            tables[at, column] = held_tables[row, column]
    return True


def _put(rows: Int64, tokens: Int64, held_tokens: Int32, held_counts: Int64) -> bool:
    for at in range(len(rows)):
        if held_counts[rows[at]] >= held_tokens.shape[1]:
            return False
    for at in range(len(rows)):
        row = rows[at]
        held_tokens[row, held_counts[row]] = tokens[at]
        held_counts[row] += 1
    return True


@cache
def compiled_rows() -> RowCalls:
    """Both calls, compiled at once; see `RowCalls`."""
    gather, put = jit(_gather), jit(_put)
    wide, narrow, table = np.zeros(1, np.int64), np.zeros(1, np.int32), np.zeros((1, 1), np.int32)
    gather(wide, wide, table, wide + 1, wide + 1, table, 1, narrow, narrow.copy(), wide.copy(), narrow.copy(), table.copy())
    put(wide, wide, table, wide.copy())
    return RowCalls(gather, put)
