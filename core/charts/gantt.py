"""Requests over time, one lane a request: in the queue, prefill, decode, preempted.

    r00412   ......####=============
    r00413     ........######====xxxx======
             queue . prefill # decode = preempted x           seconds on the engine's clock

A lane's spans follow from the times of its row: arrival, first admission, first token, end, and the spans without
blocks. They cover the lane's whole life without gap or overlap.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import pandas as pd

from core.charts import style
from core.charts.style import Theme
from core.snapshot import EngineSnapshot, RequestView

MAX_LANES = 60
LANE_PX = 8
MAX_QUEUED = 8
SPAN_TYPES = {"request": "category", "tenant": "category", "phase": "category", "from_s": "float32", "to_s": "float32"}
"""Narrow columns: these rows travel at every tick. Seconds are good to a millisecond for the first four hours."""

PHASES = ("queue", "prefill", "decode", "preempted")


def spans_of(row: RequestView, now_s: float) -> list[tuple[str, float, float]]:
    """(phase, from, to) of a request, s, in order of time."""
    end = row.finished_s if row.finished_s is not None else max(now_s, row.arrival_s)
    if row.admitted_s is None:
        return [("queue", row.arrival_s, end)]
    lost = [span for span in row.preempted_spans_s if span[1] > span[0]]
    first = row.first_token_s if row.first_token_s is not None else end
    pieces = [("queue", row.arrival_s, row.admitted_s), ("prefill", row.admitted_s, first), ("decode", first, end)]
    return [piece for span in pieces for piece in _without(span, lost) if piece[2] > piece[1]]


def _without(span: tuple[str, float, float], lost: Sequence[tuple[float, float]]) -> list[tuple[str, float, float]]:
    phase, start, end = span
    out: list[tuple[str, float, float]] = []
    for a, b in lost:
        a, b = max(a, start), min(b, end)
        if b <= a:
            continue
        out += [(phase, start, a), ("preempted", a, b)]
        start = b
    return [*out, (phase, start, end)]


def lanes(snapshot: EngineSnapshot, max_lanes: int = MAX_LANES) -> list[RequestView]:
    """All that run or are preempted, the head of the queue, and as many of the newest ended ones as have room."""
    live = [*snapshot.running, *snapshot.preempted, *snapshot.waiting[:MAX_QUEUED]]
    room = max(max_lanes - len(live), 0)
    ended = [row for row in snapshot.ended if row.status != "refused"]
    return sorted([*live, *ended[:room]], key=lambda r: (r.arrival_s, r.request_id))[-max_lanes:]


def gantt_frame(rows: Sequence[RequestView], now_s: float) -> pd.DataFrame:
    """Spans of the requests, one lane each in the given order."""
    spans = [
        (lane, row.request_id, row.tenant, phase, start, end)
        for lane, row in enumerate(rows)
        for phase, start, end in spans_of(row, now_s)
    ]
    frame = pd.DataFrame(spans, columns=["lane", "request", "tenant", "phase", "from_s", "to_s"])
    return frame.astype(SPAN_TYPES)


@lru_cache(maxsize=4)
def gantt_spec(theme: Theme) -> dict[str, Any]:
    """Lanes as thin bars; zooms and pans in time only."""
    return {
        "$schema": "https://vega.github.io/schema/vega-lite/v6.json",
        "height": LANE_PX * MAX_LANES,
        "params": [style.ZOOM],
        "mark": {"type": "bar", "height": LANE_PX - 2, "clip": True},
        "encoding": {
            "x": {
                "field": "from_s",
                "type": "quantitative",
                "title": "engine time (s)",
                "scale": {"zero": False, "nice": False},
                "axis": {"grid": True, "tickCount": 8, "labelExpr": style.THIN_GROUPS},
            },
            "x2": {"field": "to_s"},
            "y": {
                "field": "lane",
                "type": "quantitative",
                "title": "request, by arrival",
                "scale": {"domain": [-1, MAX_LANES], "reverse": True, "nice": False, "zero": False},
                "axis": {"labels": False, "grid": False},
            },
            **style.phase_channels(PHASES, theme),
            "tooltip": [
                {"field": "request", "type": "nominal"},
                {"field": "tenant", "type": "nominal"},
                {"field": "phase", "type": "nominal"},
                {"field": "from_s", "type": "quantitative", "format": ".3f", "title": "from (s)"},
                {"field": "to_s", "type": "quantitative", "format": ".3f", "title": "to (s)"},
            ],
        },
        "config": style.vega_config(theme),
    }
