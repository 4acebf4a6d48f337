"""The sets as a figure for print: one bar a request, running ones first, then the head of the queue.

r00412  [prompt ######][output =====][left of max_tokens .....]
r00431  [waiting ::::::::]                                         tokens to one scale
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from typing import Any

import pandas as pd

from core.charts import style
from core.charts.style import Theme
from core.snapshot import EngineSnapshot, RequestView

MAX_RUNNING, MAX_WAITING = 48, 12
PARTS = ("prompt, computed", "prompt, not yet", "output", "left of max_tokens", "waiting", "preempted")
_ROW_PX = 10


def _bars(row: RequestView) -> Iterator[tuple[str, int]]:
    if row.status in ("waiting", "preempted"):
        yield row.status, row.prompt_tokens + row.output_tokens
        return
    computed = min(row.computed_tokens, row.prompt_tokens)
    yield "prompt, computed", computed
    yield "prompt, not yet", row.prompt_tokens - computed
    yield "output", row.output_tokens
    yield "left of max_tokens", max(row.max_tokens - row.output_tokens, 0)


def sets_frame(snapshot: EngineSnapshot) -> pd.DataFrame:
    """Columns request, tenant, set, part, from_tokens, to_tokens; running, preempted, waiting, each in its order."""
    shown = (*snapshot.running[:MAX_RUNNING], *snapshot.preempted[:MAX_WAITING], *snapshot.waiting[:MAX_WAITING])
    rows = []
    for row in shown:
        at = 0
        for part, tokens in _bars(row):
            if tokens:
                rows.append((row.request_id, row.tenant, row.status, part, at, at + tokens))
            at += tokens
    return pd.DataFrame(rows, columns=["request", "tenant", "set", "part", "from_tokens", "to_tokens"])


def sets_figure(snapshot: EngineSnapshot, theme: Theme) -> tuple[dict[str, Any], pd.DataFrame]:
    """Specification and data, as high as its rows."""
    frame = sets_frame(snapshot)
    return sets_spec(theme, max(frame["request"].nunique(), 6)), frame


@lru_cache(maxsize=16)
def sets_spec(theme: Theme, requests: int = 32) -> dict[str, Any]:
    """Bars of requests, as many as the figure has room for."""
    colours = [style.PREFILL, theme.grid, theme.decode, theme.ground, theme.waiting, style.PREEMPTED]
    return {
        "$schema": "https://vega.github.io/schema/vega-lite/v6.json",
        "height": max(_ROW_PX * requests, 60),
        "usermeta": {"tall": True},
        "mark": {"type": "bar", "stroke": theme.line, "strokeWidth": 0.4},
        "encoding": {
            "y": {"field": "request", "type": "nominal", "sort": None, "title": None, "axis": {"ticks": False, "labelLimit": 90}},
            "x": {"field": "from_tokens", "type": "quantitative", "title": "tokens", "axis": {"labelExpr": style.THIN_GROUPS}},
            "x2": {"field": "to_tokens"},
            "color": {
                "field": "part",
                "type": "nominal",
                "title": None,
                "sort": list(PARTS),
                "legend": {"columns": 3},
                "scale": {"domain": list(PARTS), "range": colours},
            },
        },
        "config": style.vega_config(theme),
    }
