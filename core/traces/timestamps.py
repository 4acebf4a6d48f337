"""Time columns: numbers in some unit, or wall-clock text with 0 to 9 fraction digits and perhaps a zone.

    text -> whole nanoseconds -> minus the first row -> seconds, so gaps are exact to a nanosecond
    numbers -> minus the first row, exactly -> times the unit

A column of numbers whose unit nobody stated is read by two rules. Values between 1e9 and 1e19 that fit a Unix
time of the years 2001 to 2100 are one, in the unit that their size tells. Otherwise the unit is the one that gives a
plausible mean rate (0.05 to 200 requests/s); if several do, or none, the caller has to ask.
"""

from __future__ import annotations

import re
from datetime import date
from decimal import Decimal, InvalidOperation

from core.errors import TraceError
from core.traces.report import BadRow, TimeUnitNeeded, UnitOption

UNIT_SECONDS = {"s": 1.0, "ms": 1e-3, "us": 1e-6, "ns": 1e-9}
PLAUSIBLE_RATES_PER_S = (0.05, 200.0)
_EPOCH_2001, _EPOCH_2100 = 978_307_200, 4_102_444_800
_NS = 1_000_000_000
_TEXT = re.compile(
    r"(\d{4})-(\d{1,2})-(\d{1,2})[T ](\d{1,2}):(\d{2})(?::(\d{2})(?:[.,](\d{0,9}))?)?\s*(Z|z|UTC|[+-]\d{2}:?(?:\d{2})?)?"
)


def parse_wall_clock(text: str) -> tuple[int, bool]:
    """(nanoseconds, has a zone) of `2023-11-16 18:15:46.6805900`, with T or a blank, Z, +02:00 or no zone.

    With a zone the nanoseconds are UTC; without one they are the local figure as written.

    Raises:
        BadRow: if the text is not such a time.
    """
    match = _TEXT.fullmatch(text.strip())
    if match is None:
        raise BadRow("time is neither a number nor a date and time")
    year, month, day, hour, minute, second, fraction, zone = match.groups()
    try:
        days = date(int(year), int(month), int(day)).toordinal()
    except ValueError:
        raise BadRow("time names a day that does not exist") from None
    h, m, s = int(hour), int(minute), int(second or 0)
    if h > 23 or m > 59 or s > 60:  # 60 is a leap second
        raise BadRow("time names an hour, minute or second that does not exist")
    nanoseconds = (((days * 24 + h) * 60 + m) * 60 + s) * _NS + int((fraction or "").ljust(9, "0"))
    return nanoseconds - _zone_seconds(zone) * _NS, zone is not None


def _zone_seconds(zone: str | None) -> int:
    if zone is None or zone in ("Z", "z", "UTC"):
        return 0
    digits = zone[1:].replace(":", "").ljust(4, "0")
    seconds = (int(digits[:2]) * 60 + int(digits[2:])) * 60
    return -seconds if zone[0] == "-" else seconds


def to_number(value: object, decimal_comma: bool = False) -> Decimal | int | None:
    """A finite number exactly, or None if `value` is none."""
    if isinstance(value, bool) or value is None:
        return None
    if isinstance(value, int):
        return value
    text = str(value).strip()
    if decimal_comma:
        text = text.replace(",", ".")
    try:
        number = Decimal(text)
    except InvalidOperation:
        return None
    return number if number.is_finite() else None


class TimeColumn:
    """Turns the time cells of one file into offsets from the first row that has one."""

    def __init__(self, name: str, decimal_comma: bool = False) -> None:
        self._name = name
        self._decimal_comma = decimal_comma
        self._kind = ""  # "number", "clock", "clock with zone"
        self._first: Decimal | int | None = None
        self.origin = ""

    @property
    def is_text(self) -> bool:
        """True if the column holds wall-clock text: offsets are seconds already."""
        return self._kind.startswith("clock")

    def offset(self, value: object, line: int) -> float:
        """Offset from the first time: seconds for text, raw units for numbers.

        Raises:
            BadRow: for a cell that is no time.
            TraceError: if times with and without a zone, or numbers and text, are mixed: no order exists between them.
        """
        if value is None or (isinstance(value, str) and not value.strip()):
            raise BadRow("time is missing")
        number = to_number(value, self._decimal_comma)
        at: Decimal | int
        if number is not None:
            kind, at = "number", number
        elif isinstance(value, str):
            at, zoned = parse_wall_clock(value)
            kind = "clock with zone" if zoned else "clock"
        else:
            raise BadRow("time is neither a number nor a date and time")
        if not self._kind:
            self._kind, self._first, self.origin = kind, at, str(value).strip()
        elif kind != self._kind:
            raise TraceError(
                f"{self._name} mixes two kinds of time: line {line} has {str(value)[:40]!r} ({kind}), the first row"
                f" {self.origin!r} ({self._kind}); give all rows a zone, or none, and one format"
            )
        assert self._first is not None
        difference = at - self._first
        return float(difference) / _NS if self.is_text else float(difference)

    def unit(self, stated: str | None, usual: str | None, rows: int, span: float) -> tuple[str, str]:
        """(unit, how it is known) for a column of numbers that spans `span` raw units over `rows` rows.

        Args:
            stated: what the person said; wins.
            usual: the unit that the format's own documentation states, if it does.

        Raises:
            TraceError: for a unit that is not known.
            TimeUnitNeeded: if the numbers fit several units.
        """
        if self.is_text:
            return "wall clock", "read as dates and times" + (", converted to UTC" if "zone" in self._kind else ", no zone")
        if stated is not None and stated not in UNIT_SECONDS:
            raise TraceError(f"time unit {stated!r} is not known; choose one of: {', '.join(UNIT_SECONDS)}")
        options = tuple(
            UnitOption(unit, span * each, (rows - 1) / (span * each) if span else float("inf"))
            for unit, each in UNIT_SECONDS.items()
        )
        if stated is not None:
            return stated, _rate_note("as stated", stated, options)
        epoch = self._epoch_unit()
        if epoch is not None:
            return epoch, f"inferred: {self.origin} is a Unix time in {epoch}"
        if usual is not None:
            return usual, _rate_note("the format's own unit", usual, options)
        fitting = _plausible(options)
        if len(fitting) == 1:
            found = fitting[0]
            return found.unit, (
                f"inferred: only {found.unit} gives a plausible mean rate ({found.rate_per_s:.3g} requests/s over"
                f" {found.span_s:.4g} s)"
            )
        if span == 0:
            return "s", "all rows have one time, so the unit does not matter"
        raise TimeUnitNeeded(self._name, options)

    def _epoch_unit(self) -> str | None:
        assert self._first is not None
        for unit, factor in (("s", 1), ("ms", 10**3), ("us", 10**6), ("ns", 10**9)):
            if _EPOCH_2001 * factor <= self._first <= _EPOCH_2100 * factor:
                return unit
        return None


def _plausible(options: tuple[UnitOption, ...]) -> list[UnitOption]:
    low, high = PLAUSIBLE_RATES_PER_S
    return [o for o in options if low <= o.rate_per_s <= high]


def _rate_note(why: str, unit: str, options: tuple[UnitOption, ...]) -> str:
    """What a unit makes of the column, and which one would make more sense where that is a strange rate."""
    option = next(o for o in options if o.unit == unit)
    if not option.span_s:
        return why
    note = f"{why}; mean rate {option.rate_per_s:.4g} requests/s"
    fitting = _plausible(options)
    if option in fitting or not fitting:
        return note
    others = ", ".join(f"{o.rate_per_s:.3g} in {o.unit}" for o in fitting)
    return f"{note}, which is unusual: it would be {others}; choose another unit if this file was written in one"
