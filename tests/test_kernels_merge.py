"""Merging the head's lanes: the first of the largest logits of each row, over all threads."""

from __future__ import annotations

import numpy as np
import pytest

from core.runtime.kernels.compiler import unavailable_reason

if unavailable_reason():
    pytest.skip(unavailable_reason(), allow_module_level=True)

from core.runtime.kernels.merge import compiled_merge
from core.runtime.kernels.tiles import PANEL


@pytest.mark.parametrize(("seed", "threads", "levels"), [(0, 1, 1000), (1, 2, 3), (2, 4, 2), (3, 2, 1)])
def test_the_first_of_the_largest_is_found_among_ties(seed: int, threads: int, levels: int) -> None:
    rng = np.random.default_rng(seed)
    rows, count = 9, 7
    lanes = np.zeros((threads, rows, 3, PANEL), np.float32)
    lanes[:, :, 0] = rng.integers(0, levels, (threads, rows, PANEL)) - levels / 2
    numbers = lanes.view(np.int32)
    for row in range(rows):
        numbers[:, row, 1] = rng.permutation(threads * PANEL).reshape(threads, PANEL)
    lanes[0, 2, 2, 3] = np.nan
    tokens, values = np.empty(count, np.int64), np.empty(count, np.float32)
    assert not compiled_merge()(lanes, numbers, tokens, values)
    assert compiled_merge()(lanes, numbers, tokens[:2].copy(), values[:2].copy())
    for row in range(count):
        best = lanes[:, row, 0].max()
        assert tokens[row] == numbers[:, row, 1][lanes[:, row, 0] == best].min()
        assert np.isnan(values[row]) if row == 2 else values[row] == best
