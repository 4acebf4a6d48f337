"""Tokens a second at each stop of the tour, as bars."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache

import pandas as pd

from core.charts import formats, style
from core.charts.kv import Spec, base
from core.tour import STOPS, Measured


def stops_frame(found: Mapping[int, Measured]) -> pd.DataFrame:
    """Columns stop ("1 One sequence"), tokens_per_s (0 where not visited), label."""
    rows = []
    for number, stop in enumerate(STOPS):
        m = found.get(number)
        rows.append(
            (f"{number + 1}  {stop.title}", m.tokens_per_s if m else 0.0, formats.rate(m.tokens_per_s, "tok") if m else "")
        )
    return pd.DataFrame(rows, columns=["stop", "tokens_per_s", "label"])


@lru_cache(maxsize=4)
def stops_spec(theme: style.Theme) -> Spec:
    """One bar a stop, its value beside it."""
    y: Spec = {
        "field": "stop",
        "type": "nominal",
        "sort": None,
        "axis": {"title": None, "labelLimit": 240, "domain": False, "ticks": False},
    }
    x: Spec = {
        "field": "tokens_per_s",
        "type": "quantitative",
        "axis": {"title": "output tokens/s", "grid": True, "tickCount": 5},
    }
    return {
        **base(theme, 26 * len(STOPS)),
        "encoding": {"y": y, "x": x},
        "layer": [
            {"mark": {"type": "bar", "height": {"band": 0.6}, "color": theme.decode}},
            {"mark": {"type": "text", "align": "left", "dx": 5, "color": theme.text}, "encoding": {"text": {"field": "label"}}},
        ],
    }
