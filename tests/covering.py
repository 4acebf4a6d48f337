"""Covering arrays: few rows in which every combination of values of any `strength` factors occurs."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from itertools import combinations, product
from typing import Any


def covering_rows(
    factors: Mapping[str, Sequence[Any]], strength: int, seed: int = 0, candidates: int = 12
) -> list[dict[str, Any]]:
    """Greedy: each row starts from a combination that is missing and fills up with the best of a few random rows."""
    names = list(factors)
    levels = [range(len(factors[n])) for n in names]
    groups = list(combinations(range(len(names)), strength))
    missing = {(g, values) for g in groups for values in product(*(levels[i] for i in g))}
    order = sorted(missing)
    rng = random.Random(seed)
    rng.shuffle(order)
    rows: list[tuple[int, ...]] = []
    while missing:
        while order[-1] not in missing:
            order.pop()
        group, values = order[-1]
        best: tuple[int, ...] = ()
        best_gain = -1
        for _ in range(candidates):
            row = [rng.randrange(len(level)) for level in levels]
            for i, value in zip(group, values, strict=True):
                row[i] = value
            gain = sum((g, tuple(row[i] for i in g)) in missing for g in groups)
            if gain > best_gain:
                best, best_gain = tuple(row), gain
        rows.append(best)
        missing -= {(g, tuple(best[i] for i in g)) for g in groups}
    return [{n: factors[n][v] for n, v in zip(names, row, strict=True)} for row in rows]
