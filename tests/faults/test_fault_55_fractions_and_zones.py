"""Fault 55: times with seven fraction digits do not parse, or on some Python versions only."""

from __future__ import annotations

from pathlib import Path

import pytest

from core.errors import TraceError
from core.traces.reader import read_trace
from core.traces.timestamps import parse_wall_clock

HEADER = "TIMESTAMP,ContextTokens,GeneratedTokens\n"


@pytest.mark.parametrize(
    ("fraction", "nanoseconds"),
    [
        ("", 0),
        (".5", 500_000_000),
        (".123", 123_000_000),
        (".123456", 123_456_000),
        (".1234567", 123_456_700),
        (".123456789", 123_456_789),
    ],
)
@pytest.mark.parametrize("zone", ["", "Z", "+02:00", "-0530", "+00"])
def test_fractions_and_zones(fraction: str, nanoseconds: int, zone: str) -> None:
    at, zoned = parse_wall_clock(f"2023-11-16 18:15:46{fraction}{zone}")
    base, _ = parse_wall_clock("2023-11-16T18:15:46")
    hours = {"": 0, "Z": 0, "+02:00": -2, "-0530": 5.5, "+00": 0}[zone]
    assert at - base == nanoseconds + hours * 3600 * 10**9
    assert zoned == bool(zone)


def test_first_gap_of_the_real_code_trace(shared_traces: Path) -> None:
    trace = read_trace(shared_traces / "azure_llm_2023_code_first5000.csv")
    assert round(trace.arrival_s[1] * 1e3) == 52
    with (shared_traces / "azure_llm_2023_code_first5000.csv").open(encoding="utf-8") as lines:
        next(lines)
        seconds = [float(next(lines).split(",")[0].rsplit(":", 1)[1]) for _ in range(2)]
    assert trace.arrival_s[1] == pytest.approx(seconds[1] - seconds[0], abs=1e-6)


def test_midnight_and_a_change_of_offset_keep_gaps_exact() -> None:
    rows = "2024-02-29 23:59:59.9999999+01:00,1,1\n2024-03-01 01:00:00.0000001+02:00,1,1\n"
    trace = read_trace((HEADER + rows).encode())
    assert trace.arrival_s[1] == pytest.approx(2e-7, abs=1e-12)


def test_mixed_zones_are_refused_with_the_line() -> None:
    rows = "2023-11-16 18:15:46.68,1,1\n2023-11-16 18:15:50.99Z,1,1\n"
    with pytest.raises(TraceError, match=r"line 3 has '2023-11-16 18:15:50\.99Z' \(clock with zone\)"):
        read_trace((HEADER + rows).encode())


@pytest.mark.parametrize(
    "text", ["2023-13-01 00:00:00", "2023-02-30 00:00:00", "2023-02-03 24:00:00", "16/11/2023", "now", "2023-11-16"]
)
def test_what_is_no_time_is_counted(text: str) -> None:
    trace = read_trace(f"{HEADER}2023-11-16 18:15:46,1,1\n{text},1,1\n".encode())
    assert trace.report.rows_skipped == 1
    assert trace.report.skipped[0].reason.startswith("time ")
