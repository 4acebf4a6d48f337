"""How every benchmark reports: a table for people, then one JSON line for machines."""

from __future__ import annotations

import json
from collections.abc import Sequence


def print_table(headers: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
    """Print a plain table: the first column to the left, numbers to the right."""
    cells = [[_cell(value) for value in row] for row in rows]
    widths = [max(len(header), *(len(row[i]) for row in cells), 0) for i, header in enumerate(headers)]
    for line in [list(headers), ["-" * w for w in widths], *cells]:
        print("  ".join(c.ljust(w) if i == 0 else c.rjust(w) for i, (c, w) in enumerate(zip(line, widths, strict=True))))


def print_json_line(values: dict[str, object]) -> None:
    """Print the closing line; it must be the last line of the benchmark."""
    print(json.dumps(values, allow_nan=False), flush=True)


def _cell(value: object) -> str:
    if value is None:
        return "-"
    if isinstance(value, float):
        return f"{value:,.1f}" if abs(value) >= 100 else f"{value:.4g}"
    return f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else str(value)
