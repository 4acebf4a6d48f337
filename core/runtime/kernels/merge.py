"""The likeliest token of each row from the lanes in which the threads' head products kept theirs."""

from __future__ import annotations

import math
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt

from core.runtime.kernels.compiler import jit
from core.runtime.kernels.tiles import PANEL

LARGEST, NUMBER, BROKEN = 0, 1, 2
"""Parts of a row's lanes: the largest logit seen, the token's number as int32 bits, 0 or NaN."""


def _merge(
    lanes: npt.NDArray[np.float32],
    numbers: npt.NDArray[np.int32],
    tokens: npt.NDArray[np.int64],
    values: npt.NDArray[np.float32],
) -> bool:
    finite = True
    for row in range(len(tokens)):
        best, first, broken = -math.inf, 2**31 - 1, np.float32(0.0)
        for thread in range(lanes.shape[0]):
            for lane in range(PANEL):
                value, number = lanes[thread, row, LARGEST, lane], numbers[thread, row, NUMBER, lane]
                broken += lanes[thread, row, BROKEN, lane]
                if value > best or (value == best and number < first):
                    best, first = value, number
        tokens[row] = first
        values[row] = best + broken
        finite &= math.isfinite(values[row])
    return finite


@cache
def compiled_merge() -> Any:
    """`merge(lanes, lanes as int32, tokens, values)`, compiled at once.

    lanes [threads, rows, 3, PANEL] float32; tokens [count] int64 and values [count] float32 are written, count <= rows.
    Of equal logits the first token is taken; a row with a NaN anywhere has the value NaN. It returns whether all values
    are finite.
    """
    merge = jit(_merge)
    lanes = np.zeros((1, 1, 3, PANEL), np.float32)
    merge(lanes, lanes.view(np.int32), np.zeros(1, np.int64), np.zeros(1, np.float32))
    return merge
