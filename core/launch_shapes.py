"""What late joins do to the shape of a step: decided rows, launched rows, and the captured size that each would need.

    decided 7 rows -> prepared -> 2 join late -> launched 9 rows: the prepared batch is void, prepared again
    captured sizes 1 2 4 8 16 24 ...:      8  ->                     16: a captured graph is void as well

The sizes are the default ones of vLLM: 1, 2, 4, then every 8 up to 256, every 16 above.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from core.records import StepRecord


def capture_size(rows: int) -> int:
    """Rows of the smallest captured graph that holds `rows` decode rows; 0 for none."""
    for size in (0, 1, 2, 4):
        if rows <= size:
            return size
    grain = 8 if rows <= 256 else 16
    return -(-rows // grain) * grain


@dataclass(frozen=True, slots=True)
class ShapeChange:
    """One step that requests joined after its shape was decided.

    Attributes:
        decided_rows, launched_rows: before and after the joins.
        decided_size, launched_size: captured sizes for them.
        discarded_s: time of the batch that was prepared in vain; 0 where nothing is prepared ahead.
    """

    step: int
    joined: int
    decided_rows: int
    launched_rows: int
    decided_size: int
    launched_size: int
    discarded_s: float


@dataclass(frozen=True, slots=True)
class ShapeFigures:
    """Counts over some steps.

    Attributes:
        steps: that ran rows.
        joined: of them, steps that requests joined late.
        void: of those, steps that had rows before the joins, so that a shape was lost.
        resized: of those, steps whose captured size changed too.
        discarded_s: time spent on void batches.
    """

    steps: int
    joined: int
    void: int
    resized: int
    discarded_s: float


def shape_changes(records: Iterable[StepRecord]) -> list[ShapeChange]:
    """Steps that were joined late, in the order given."""
    out: list[ShapeChange] = []
    for r in records:
        if r.late_joins:
            rows = r.prefill_requests + r.decode_requests
            sizes = capture_size(r.decided_rows), capture_size(rows)
            out.append(ShapeChange(r.step, r.late_joins, r.decided_rows, rows, *sizes, r.discarded_s))
    return out


def shape_figures(records: Sequence[StepRecord]) -> ShapeFigures:
    """Sums over `records`."""
    changes = shape_changes(records)
    void = [c for c in changes if c.decided_rows]
    return ShapeFigures(
        steps=sum(r.prefill_requests + r.decode_requests > 0 for r in records),
        joined=len(changes),
        void=len(void),
        resized=sum(c.decided_size != c.launched_size for c in void),
        discarded_s=sum(r.discarded_s for r in records),
    )
