"""Latencies as cumulative curves: which share of the requests (or gaps) was at least as fast.

share 1 |        ____----        TTFT, ITL, TPOT, E2E on one logarithmic axis; the median is where a curve crosses 0.5
        |   __--
      0 +--------------- seconds, log
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import numpy as np
import pandas as pd

from core.charts import style
from core.charts.style import Theme
from core.records import RequestRecord

POINTS = 200
NAMES = ("TTFT", "ITL", "TPOT", "E2E")


def latency_values(requests: Sequence[RequestRecord]) -> dict[str, list[float]]:
    """Seconds by name; ITL is every single gap, E2E that of requests that finished."""
    return {
        "TTFT": [r.ttft_s for r in requests if r.ttft_s is not None],
        "ITL": [gap for r in requests for gap in r.itl_s],
        "TPOT": [r.tpot_s for r in requests if r.tpot_s is not None],
        "E2E": [r.e2e_s for r in requests if r.finish_reason in ("stop", "length", "capacity")],
    }


def latency_frame(requests: Sequence[RequestRecord]) -> pd.DataFrame:
    """Columns latency, seconds, share: at most POINTS quantiles a curve."""
    rows: list[tuple[str, float, float]] = []
    for name, values in latency_values(requests).items():
        seen = [v for v in values if v > 0]
        if not seen:
            continue
        shares = np.linspace(0.0, 1.0, min(len(seen), POINTS)) if len(seen) > 1 else np.array([1.0])
        rows += [(name, float(s), float(q)) for s, q in zip(np.quantile(seen, shares), shares, strict=True)]
    return pd.DataFrame(rows, columns=["latency", "seconds", "share"])


@lru_cache(maxsize=4)
def latency_spec(theme: Theme, height: int = 200) -> dict[str, Any]:
    """One curve a latency; the dashes repeat what the colour says."""
    colours = [style.PREFILL, theme.decode, style.USEFUL, theme.text]
    return {
        "$schema": "https://vega.github.io/schema/vega-lite/v6.json",
        "height": height,
        "params": [style.ZOOM],
        "mark": {"type": "line", "strokeWidth": 1.5, "clip": True},
        "encoding": {
            "x": {
                "field": "seconds",
                "type": "quantitative",
                "title": "seconds",
                "scale": {"type": "log", "nice": False},
                "axis": {"format": "~g", "tickCount": 6},
            },
            "y": {
                "field": "share",
                "type": "quantitative",
                "title": "share at most so long",
                "axis": {"format": "%", "tickCount": 5, "grid": True},
            },
            "color": {
                "field": "latency",
                "type": "nominal",
                "title": None,
                "sort": list(NAMES),
                "scale": {"domain": list(NAMES), "range": colours},
            },
            "strokeDash": {
                "field": "latency",
                "type": "nominal",
                "title": None,
                "sort": list(NAMES),
                "scale": {"domain": list(NAMES), "range": [[1, 0], [6, 2], [2, 2], [8, 2, 2, 2]]},
            },
            "tooltip": [
                {"field": "latency", "type": "nominal"},
                {"field": "seconds", "type": "quantitative", "format": ".3~s"},
                {"field": "share", "type": "quantitative", "format": ".1%"},
            ],
        },
        "config": style.vega_config(theme),
    }
