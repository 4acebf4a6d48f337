"""What a reader found in a file and what it made of it: shown to the person, never kept to itself.

rows in the file = rows used + rows skipped, and each skipped row is counted under one reason.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from core.errors import TraceError


@dataclass(frozen=True, slots=True)
class SkippedRows:
    """Rows that were left out for one reason, with the first of them as an example."""

    reason: str
    count: int
    first_line: int
    example: str


@dataclass(frozen=True, slots=True)
class TraceReport:
    """The account of one reading.

    Attributes:
        format_label: the format in words; `format_note` says how it was recognised.
        time_unit: "s", "ms", "us", "ns", "wall clock" or "none"; `time_note` says if it was stated or inferred, and from what.
        origin: the first arrival as the file writes it; arrivals are counted from it.
        reordered: rows that came before an earlier row's time and were sorted in.
        truncated: the file holds more rows than the limit.
        notes: what else was assumed, e.g. token counts estimated from characters.
    """

    name: str
    format_label: str
    format_note: str
    rows_used: int
    rows_skipped: int
    skipped: tuple[SkippedRows, ...] = ()
    time_unit: str = "none"
    time_note: str = ""
    origin: str = ""
    reordered: int = 0
    truncated: bool = False
    notes: tuple[str, ...] = ()

    def lines(self) -> tuple[str, ...]:
        """The account as sentences for a page."""
        out = [f"{self.format_label}: {self.format_note}", f"{self.rows_used} rows used, {self.rows_skipped} left out"]
        out += [
            f"{s.count} row{'s' if s.count > 1 else ''} left out: {s.reason}; first on line {s.first_line}: {s.example}"
            for s in self.skipped
        ]
        if self.time_note:
            out.append(f"time in {self.time_unit}: {self.time_note}")
        if self.origin:
            out.append(f"arrivals are counted from the first one, at {self.origin}")
        if self.reordered:
            out.append(f"{self.reordered} rows were out of order and have been sorted by time")
        if self.truncated:
            out.append(f"the file holds more rows; only the first {self.rows_used + self.rows_skipped} were read")
        return (*out, *self.notes)


@dataclass(slots=True)
class SkipCounter:
    """Counts skipped rows by reason while a file is read."""

    _counts: dict[str, int] = field(default_factory=dict)
    _first: dict[str, tuple[int, str]] = field(default_factory=dict)

    def add(self, reason: str, line: int, example: object) -> None:
        """Count one row; the first of a reason is kept as an example, cut to 80 characters."""
        self._counts[reason] = self._counts.get(reason, 0) + 1
        if reason not in self._first:
            text = str(example).strip()
            self._first[reason] = (line, text if len(text) <= 80 else text[:77] + "...")

    @property
    def total(self) -> int:
        return sum(self._counts.values())

    def rows(self) -> tuple[SkippedRows, ...]:
        """Reasons, most frequent first."""
        order = sorted(self._counts, key=lambda r: (-self._counts[r], r))
        return tuple(SkippedRows(r, self._counts[r], *self._first[r]) for r in order)

    def no_usable_row(self, name: str) -> TraceError:
        """The error of a file of which nothing is left."""
        found = "; ".join(f"{s.count} x {s.reason} (first on line {s.first_line}: {s.example})" for s in self.rows())
        return TraceError(f"{name} holds no usable row: {found or 'it is empty'}")


class BadRow(Exception):
    """One row cannot be used; the message is the reason under which it is counted."""


@dataclass(frozen=True, slots=True)
class UnitOption:
    """One way to read a column of numbers as time."""

    unit: str
    span_s: float
    rate_per_s: float


class TimeUnitNeeded(TraceError):
    """The unit of the time column cannot be told from the numbers; the caller must ask.

    Attributes:
        options: each possible unit with the length and the mean rate that the trace would have.
    """

    def __init__(self, name: str, options: tuple[UnitOption, ...]) -> None:
        listed = "; ".join(f"{o.unit}: {o.span_s:.4g} s long, {o.rate_per_s:.3g} requests/s" for o in options)
        super().__init__(f"the unit of time of {name} cannot be told from its numbers; say which one is right: {listed}")
        self.options = options
