"""Tenants: the service that each received beside the share that its weight entitles it to."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import pandas as pd

from core.charts import style
from core.charts.style import Theme
from core.snapshot import TenantView

SERVED, ENTITLED = "served", "entitled by weight"


def shares_frame(tenants: Sequence[TenantView]) -> pd.DataFrame:
    """Columns tenant, what, share; shares of each kind add up to 1 over the tenants."""
    weights = sum(t.weight for t in tenants)
    rows = []
    for t in sorted(tenants, key=lambda t: t.name):
        rows.append((t.name, SERVED, t.share))
        rows.append((t.name, ENTITLED, t.weight / weights if weights else 0.0))
    return pd.DataFrame(rows, columns=["tenant", "what", "share"])


@lru_cache(maxsize=4)
def shares_spec(theme: Theme) -> dict[str, Any]:
    """Two bars a tenant; the tick is what its weight entitles it to."""
    y = {"field": "tenant", "type": "nominal", "title": None, "axis": {"labelLimit": 160}}
    x = {
        "field": "share",
        "type": "quantitative",
        "title": "share of the tokens",
        "axis": {"format": "%", "tickCount": 5},
        "scale": {"domain": [0, 1]},
    }
    tooltip = [
        {"field": "tenant", "type": "nominal"},
        {"field": "what", "type": "nominal"},
        {"field": "share", "type": "quantitative", "format": ".1%"},
    ]
    return {
        "$schema": "https://vega.github.io/schema/vega-lite/v6.json",
        "height": 160,
        "encoding": {"y": y, "x": x, "tooltip": tooltip},
        "layer": [
            {
                "transform": [{"filter": f"datum.what === '{SERVED}'"}],
                "mark": {"type": "bar", "height": {"band": 0.6}, "color": style.USEFUL},
            },
            {
                "transform": [{"filter": f"datum.what === '{ENTITLED}'"}],
                "mark": {"type": "tick", "thickness": 3, "size": 26, "color": theme.text},
            },
        ],
        "config": style.vega_config(theme),
    }
