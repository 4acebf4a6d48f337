"""The picture of continuous batching: seats over time, each bar a request that took a seat and gave it back.

    seat 1  ###========|##=====
    seat 2  ##==============|#===        # prefill  = decode      a gap is a seat that nobody held
    seat 3     ####====[]===         [] preempted: hollow, a seat that its request had lost

Seats have no number in the scheduler; a request is drawn in the lowest lane that was free when it was admitted, so
lanes show how many seats were taken and how soon one is taken again. The window begins where the rows at hand are
complete: at the earliest end among the newest ended requests, if those fill their list.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import pandas as pd

from core.charts import style
from core.charts.gantt import SPAN_TYPES, spans_of
from core.charts.style import Theme
from core.snapshot import EngineSnapshot, RequestView

MAX_SEATS = 64
ENDED_KEPT = 50
PHASES = ("prefill", "decode", "preempted")


def assign_seats(rows: Sequence[RequestView], now_s: float) -> list[tuple[int, RequestView]]:
    """(seat, request) for every admitted request; two requests in one lane never overlap in time."""
    admitted = sorted((r for r in rows if r.admitted_s is not None), key=lambda r: (r.admitted_s or 0.0, r.request_id))
    free: list[int] = []
    held: list[tuple[float, int]] = []
    used, out = 0, []
    for row in admitted:
        start = row.admitted_s or 0.0
        while held and held[0][0] <= start:
            heapq.heappush(free, heapq.heappop(held)[1])
        if free:
            seat = heapq.heappop(free)
        else:
            seat, used = used, used + 1
        heapq.heappush(held, (row.finished_s if row.finished_s is not None else now_s + 1.0, seat))
        out.append((seat, row))
    return out


def window_start_s(snapshot: EngineSnapshot) -> float:
    """From when on the rows of a picture tell of every request that held a seat, engine time in s."""
    ends = [row.finished_s for row in snapshot.ended if row.finished_s is not None]
    if len(snapshot.ended) >= ENDED_KEPT and ends:
        return min(ends)
    starts = [row.arrival_s for row in (*snapshot.running, *snapshot.ended)]
    return min(starts, default=snapshot.time_s)


def seat_frame(snapshot: EngineSnapshot) -> pd.DataFrame:
    """Prefill, decode and preempted spans by seat within the window."""
    start_s, now_s = window_start_s(snapshot), snapshot.time_s
    rows = (*snapshot.running, *snapshot.preempted, *snapshot.ended)
    spans = [
        (seat, row.request_id, row.tenant, phase, max(begin, start_s), end)
        for seat, row in assign_seats(rows, now_s)
        for phase, begin, end in spans_of(row, now_s)
        if phase != "queue" and end > start_s and seat < MAX_SEATS
    ]
    frame = pd.DataFrame(spans, columns=["seat", "request", "tenant", "phase", "from_s", "to_s"])
    return frame.astype({**SPAN_TYPES, "seat": "int16"})


@lru_cache(maxsize=4)
def seat_spec(theme: Theme, height: int = 300) -> dict[str, Any]:
    """Lanes of seats over time; a thin ground-coloured edge parts one request from the next."""
    return {
        "$schema": "https://vega.github.io/schema/vega-lite/v6.json",
        "height": height,
        "params": [style.ZOOM],
        "transform": [{"calculate": "datum.seat + 0.86", "as": "below"}],
        "mark": {"type": "bar", "clip": True},
        "encoding": {
            "x": {
                "field": "from_s",
                "type": "quantitative",
                "title": "engine time (s)",
                "scale": {"zero": False, "nice": False},
                "axis": {"tickCount": 8, "labelExpr": style.THIN_GROUPS},
            },
            "x2": {"field": "to_s"},
            "y": {
                "field": "seat",
                "type": "quantitative",
                "title": "seat in the batch",
                "scale": {"reverse": True, "zero": True, "nice": False},
                "axis": {"tickMinStep": 1, "tickCount": 6, "grid": False, "format": "d"},
            },
            "y2": {"field": "below"},
            **style.phase_channels(PHASES, theme),
            "tooltip": [
                {"field": "request", "type": "nominal"},
                {"field": "tenant", "type": "nominal"},
                {"field": "phase", "type": "nominal"},
                {"field": "from_s", "type": "quantitative", "format": ".2f", "title": "from (s)"},
                {"field": "to_s", "type": "quantitative", "format": ".2f", "title": "to (s)"},
            ],
        },
        "config": style.vega_config(theme),
    }
