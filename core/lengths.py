"""Length distributions: how many tokens a prompt has and how many it asks for.

    fixed      n
    uniform    whole numbers from low to high, both included
    lognormal  exp(N(ln median, sigma)), rounded and clamped to [low, high]; mean = median * exp(sigma^2 / 2)
    empirical  one of the given values, each as likely as the next

A `LengthSpec` is a frozen description; drawing takes the random generator as an argument, so the same
generator gives the same lengths.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import StrEnum

import numpy as np

from core.errors import ConfigError

MAX_TOKENS = 1_048_576
MAX_VALUES = 1_000_000


class LengthKind(StrEnum):
    """Family of a length distribution."""

    FIXED = "fixed"
    UNIFORM = "uniform"
    LOGNORMAL = "lognormal"
    EMPIRICAL = "empirical"


def _need(ok: bool, message: str) -> None:
    if not ok:
        raise ConfigError(message)


def _tokens(name: str, value: object) -> None:
    ok = isinstance(value, int) and not isinstance(value, bool) and 1 <= value <= MAX_TOKENS
    _need(ok, f"{name} is {value!r}; give a whole number of tokens from 1 to {MAX_TOKENS}")


@dataclass(frozen=True, slots=True)
class LengthSpec:
    """A distribution of lengths in tokens; use the constructors `fixed`, `uniform`, `lognormal`, `empirical`.

    Attributes:
        low, high: bounds of every draw, both included (fixed: both are the value).
        median: median before clamping, lognormal only.
        sigma: standard deviation of the logarithm, lognormal only; 0 is a fixed length.
        values: the observed lengths, empirical only.
    """

    kind: LengthKind = LengthKind.FIXED
    low: int = 64
    high: int = 64
    median: float = 0.0
    sigma: float = 0.0
    values: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        try:
            object.__setattr__(self, "kind", LengthKind(self.kind))
        except ValueError:
            raise ConfigError(f"length kind is {self.kind!r}; choose one of: {', '.join(LengthKind)}") from None
        if self.kind is LengthKind.EMPIRICAL:
            self._check_values()
            return
        _tokens("the shortest length", self.low)
        _tokens("the longest length", self.high)
        _need(self.low <= self.high, f"the shortest length {self.low} is above the longest {self.high}; swap them")
        if self.kind is LengthKind.FIXED:
            _need(self.low == self.high, f"a fixed length has one value, found {self.low} and {self.high}")
        if self.kind is LengthKind.LOGNORMAL:
            ok = math.isfinite(self.median) and 1 <= self.median <= MAX_TOKENS
            _need(ok, f"the median length is {self.median!r}; give a number from 1 to {MAX_TOKENS}")
            ok = math.isfinite(self.sigma) and 0 <= self.sigma <= 5
            _need(ok, f"sigma is {self.sigma!r}; give a number from 0 (all the same) to 5")

    def _check_values(self) -> None:
        object.__setattr__(self, "values", tuple(self.values))
        _need(bool(self.values), "an empirical length distribution needs at least one value, found none")
        _need(len(self.values) <= MAX_VALUES, f"{len(self.values)} lengths are too many; give at most {MAX_VALUES}")
        for value in self.values:
            _tokens("a length of the list", value)
        object.__setattr__(self, "low", min(self.values))
        object.__setattr__(self, "high", max(self.values))

    @staticmethod
    def fixed(tokens: int) -> LengthSpec:
        """Every length is `tokens`."""
        return LengthSpec(LengthKind.FIXED, tokens, tokens)

    @staticmethod
    def uniform(low: int, high: int) -> LengthSpec:
        """Whole numbers from `low` to `high`, both included."""
        return LengthSpec(LengthKind.UNIFORM, low, high)

    @staticmethod
    def lognormal(median: float, sigma: float, low: int = 1, high: int = MAX_TOKENS) -> LengthSpec:
        """Right-skewed lengths as real prompts have, clamped to [low, high]."""
        return LengthSpec(LengthKind.LOGNORMAL, low, high, float(median), float(sigma))

    @staticmethod
    def empirical(values: tuple[int, ...] | list[int]) -> LengthSpec:
        """Draws from observed lengths."""
        return LengthSpec(LengthKind.EMPIRICAL, values=tuple(values))

    def sample(self, rng: np.random.Generator) -> int:
        """Draw one length, tokens."""
        if self.kind is LengthKind.FIXED:
            return self.low
        if self.kind is LengthKind.UNIFORM:
            return int(rng.integers(self.low, self.high + 1))
        if self.kind is LengthKind.EMPIRICAL:
            return self.values[int(rng.integers(len(self.values)))]
        drawn = self.median * math.exp(self.sigma * float(rng.standard_normal()))
        return min(max(round(drawn), self.low), self.high)

    @property
    def mean(self) -> float:
        """Expected length, tokens; the lognormal's before clamping, held inside [low, high]."""
        if self.kind is LengthKind.EMPIRICAL:
            return sum(self.values) / len(self.values)
        if self.kind is LengthKind.LOGNORMAL:
            return min(max(self.median * math.exp(self.sigma**2 / 2), self.low), self.high)
        return (self.low + self.high) / 2

    @property
    def label(self) -> str:
        """A few words for a page: "fixed 64", "lognormal, median 120 (8-512)"."""
        if self.kind is LengthKind.FIXED:
            return f"fixed {self.low}"
        if self.kind is LengthKind.UNIFORM:
            return f"uniform {self.low}-{self.high}"
        if self.kind is LengthKind.EMPIRICAL:
            return f"{len(self.values)} observed lengths ({self.low}-{self.high})"
        return f"lognormal, median {self.median:g} ({self.low}-{self.high})"
