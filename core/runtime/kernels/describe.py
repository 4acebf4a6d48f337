"""The description of a decode step, written by one compiled call: addresses of its arrays, and its attention items.

The items of a decode step are its rows, long contexts first; `core.runtime.kernels.buffers` does the same for other steps.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt

from core.runtime.kernels.compiler import jit
from core.runtime.kernels.description import STEP_WORDS, Word

MOST_SORTED = 256
"""Rows that are put in order here, by insertion; more are left to a better sort."""

_TOKEN_IDS, _POSITIONS, _SLOTS = int(Word.TOKEN_IDS), int(Word.POSITIONS), int(Word.SLOT_MAPPING)
_TABLES, _CONTEXTS, _LOGITS = int(Word.BLOCK_TABLES), int(Word.CONTEXT_LENS), int(Word.LOGITS_INDICES)
_ROW, _FIRST, _COUNT, _ITEMS = int(Word.ITEM_ROW), int(Word.ITEM_FIRST), int(Word.ITEM_TOKENS), int(Word.ITEMS)
_TOKENS, _TABLE_BYTES, _LOGITS_COUNT = int(Word.TOKENS), int(Word.TABLE_BYTES), int(Word.LOGITS_COUNT)

Int32 = npt.NDArray[np.int32]
Int64 = npt.NDArray[np.int64]


def _describe(
    description: Int64, token_ids: Int32, positions: Int32, slots: Int64, tables: Int32, contexts: Int32, logits: Int64,
    order: Int32, ones: Int32,
) -> None:  # fmt: skip
    description[_TOKEN_IDS] = token_ids.ctypes.data
    description[_POSITIONS] = positions.ctypes.data
    description[_SLOTS] = slots.ctypes.data
    description[_TABLES] = tables.ctypes.data
    description[_CONTEXTS] = contexts.ctypes.data
    description[_LOGITS] = logits.ctypes.data
    description[_ROW] = order.ctypes.data
    description[_FIRST] = order.ctypes.data
    description[_COUNT] = ones.ctypes.data
    rows = len(contexts)
    description[_TOKENS] = description[_ITEMS] = rows
    description[_TABLE_BYTES] = tables.strides[0]
    description[_LOGITS_COUNT] = len(logits)
    for row in range(rows):
        at = row
        while at > 0 and contexts[order[at - 1]] < contexts[row]:
            order[at] = order[at - 1]
            at -= 1
        order[at] = row


@cache
def compiled_describe() -> Any:
    """`describe(description, token_ids, positions, slots, tables, contexts, logits, order, ones)`, compiled at once.

    order [rows or more] int32 is written and, as all arrays, must live until the step has run.
    """
    describe = jit(_describe)
    one, wide = np.ones(1, np.int32), np.ones(1, np.int64)
    describe(np.zeros(STEP_WORDS, np.int64), one, one, wide, one.reshape(1, 1), one, wide, one.copy(), one)
    return describe
