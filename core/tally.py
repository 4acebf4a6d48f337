"""Histograms that grow with the run and are never thinned: how many values fell between which bounds, and their sum.

    value v  ->  the first bucket whose bound is >= v, or the open one above them all

Counts and sum are exact from the start (or the last reset) on, so a reader who comes seldom misses nothing.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable
from dataclasses import dataclass

from core.slots import by_slots

SECONDS = (0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0, 160.0)
TOKENS = (1.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0, 512.0, 1024.0, 2048.0, 4096.0, 8192.0, 16384.0)


@dataclass(frozen=True, slots=True)
class Tally:
    """A histogram at one moment: counts[i] values are <= bounds[i] and above the bound before; the last has no bound.

    `total` is the sum of all values, in their unit.
    """

    bounds: tuple[float, ...]
    counts: tuple[int, ...]
    total: float = 0.0

    @property
    def count(self) -> int:
        """Number of values."""
        return sum(self.counts)


@dataclass(frozen=True, slots=True)
class Tallies:
    """All histograms of an engine: gaps and first tokens in seconds, steps in tokens."""

    ttft: Tally = Tally(SECONDS, (0,) * (len(SECONDS) + 1))
    itl: Tally = Tally(SECONDS, (0,) * (len(SECONDS) + 1))
    step_tokens: Tally = Tally(TOKENS, (0,) * (len(TOKENS) + 1))


NOTHING = Tallies()


class GrowingTally:
    """The one that is written; `now()` gives what a reader may keep."""

    __slots__ = ("_bounds", "_counts", "_total")

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self._bounds = bounds
        self._counts = [0] * (len(bounds) + 1)
        self._total = 0.0

    def extend(self, values: Iterable[float]) -> None:
        """Take values in."""
        bounds, counts = self._bounds, self._counts
        for value in values:
            counts[bisect_left(bounds, value)] += 1
            self._total += value

    def add(self, value: float, times: int) -> None:
        """Take the same value in `times` times."""
        self._counts[bisect_left(self._bounds, value)] += times
        self._total += times * value

    def now(self) -> Tally:
        """What was taken in so far."""
        return _tally(self._bounds, tuple(self._counts), self._total)


_tally = by_slots(Tally)
