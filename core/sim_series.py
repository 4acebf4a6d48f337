"""Two summaries of a simulated run in bounded memory: token gaps by their logarithm, and means over stretches of time."""

from __future__ import annotations

from array import array
from dataclasses import dataclass

import numpy as np

from core.snapshot import Percentiles

_BINS_PER_DECADE = 231  # 10 ** (1 / 231) = 1.01
_LOWEST_S, _DECADES = 1e-7, 13


class GapHistogram:
    """Token gaps by logarithm; a percentile is the geometric middle of its bin, so within 0.5 %."""

    def __init__(self) -> None:
        self._counts = np.zeros(_BINS_PER_DECADE * _DECADES + 1, np.int64)
        self._pending: array[float] = array("d")

    def extend(self, gaps_s: tuple[float, ...]) -> None:
        """Take gaps in, s."""
        self._pending.extend(gaps_s)
        if len(self._pending) > 65_536:
            self._settle()

    def _settle(self) -> None:
        if len(self._pending):
            values = np.maximum(np.frombuffer(self._pending), _LOWEST_S)
            at = np.minimum((np.log10(values / _LOWEST_S) * _BINS_PER_DECADE).astype(np.int64), len(self._counts) - 1)
            self._counts += np.bincount(at, minlength=len(self._counts))
            self._pending = array("d")

    def percentiles(self) -> Percentiles:
        """p50, p95, p99, s."""
        self._settle()
        total = int(self._counts.sum())
        if not total:
            return Percentiles()
        edges = np.cumsum(self._counts)

        def at(share: float) -> float:
            index = int(np.searchsorted(edges, share * (total - 1), side="right"))
            return float(_LOWEST_S * 10 ** ((index + 0.5) / _BINS_PER_DECADE))

        return Percentiles(total, at(0.50), at(0.95), at(0.99))


@dataclass(frozen=True, slots=True)
class SeriesPoint:
    """Means over one stretch of time: requests running and waiting, live share of the pool, output tokens/s."""

    time_s: float
    running: float
    waiting: float
    kv_usage: float
    output_tokens_per_s: float


class ThinnedSeries:
    """Time-weighted means in equal stretches; when there are too many, neighbours are merged and stretches double."""

    def __init__(self, max_points: int = 1024, width_s: float = 1e-3) -> None:
        self._max = max_points
        self._width_s = width_s
        self._start_s: float | None = None
        self._sums: list[list[float]] = []  # seconds, running, waiting, usage (each times seconds), tokens

    def add(self, start_s: float, duration_s: float, running: int, waiting: int, usage: float, tokens: int) -> None:
        """Take one step in."""
        if self._start_s is None:
            self._start_s = start_s
        index = int((start_s - self._start_s) / self._width_s)
        while index >= self._max:
            self._merge()
            index = int((start_s - self._start_s) / self._width_s)
        sums = self._sums
        while len(sums) <= index:
            sums.append([0.0, 0.0, 0.0, 0.0, 0.0])
        at = sums[index]
        at[0] += duration_s
        at[1] += running * duration_s
        at[2] += waiting * duration_s
        at[3] += usage * duration_s
        at[4] += tokens

    def _merge(self) -> None:
        if len(self._sums) % 2:
            self._sums.append([0.0] * 5)
        pairs = zip(self._sums[::2], self._sums[1::2], strict=True)
        self._sums = [[a + b for a, b in zip(left, right, strict=True)] for left, right in pairs]
        self._width_s *= 2

    def points(self) -> tuple[SeriesPoint, ...]:
        """The series, oldest first; stretches in which nothing ran are left out."""
        start, width = self._start_s or 0.0, self._width_s
        return tuple(
            SeriesPoint(start + i * width, s[1] / s[0], s[2] / s[0], s[3] / s[0], s[4] / max(width, s[0]))
            for i, s in enumerate(self._sums)
            if s[0] > 0
        )
