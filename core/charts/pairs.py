"""Paired figures for print: each figure of two runs as two bars to one scale, with their values in words.

Output      first  ------------         412 tok/s
            second -----------------    632 tok/s
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pandas as pd

from core.charts import style
from core.charts.style import Theme

ROW_PX = 26
COLUMNS = ["figure", "run", "value", "unit", "share", "text"]


def pair_frame(rows: Sequence[tuple[str, str, str, float | None, str]]) -> pd.DataFrame:
    """Columns figure, run, value, unit, share (of the figure's larger value) and text.

    Args:
        rows: (figure, unit, run, value, value in words); a row without a value is left out.
    """
    top: dict[str, float] = {}
    for figure, unit, _, value, _ in rows:
        if value is not None:
            top[figure] = 1.0 if unit == "%" else max(top.get(figure, 0.0), abs(value))
    made = [
        (figure, run, value, unit, min(abs(value) / (top[figure] or 1.0), 1.0), text)
        for figure, unit, run, value, text in rows
        if value is not None
    ]
    return pd.DataFrame(made, columns=COLUMNS)


def pair_spec(theme: Theme, figures: int, runs: tuple[str, str], dashed: tuple[bool, bool]) -> dict[str, Any]:
    """Two bars a figure; dashed and hollow where a run is predicted, filled where it was measured."""
    colours = {"domain": list(runs), "range": [theme.muted, theme.decode]}
    y = {"field": "figure", "type": "nominal", "sort": None, "title": None, "axis": {"ticks": False, "labelLimit": 110}}
    offset = {"field": "run", "type": "nominal", "sort": list(runs)}
    share = {"field": "share", "type": "quantitative", "axis": None, "scale": {"domain": [0, 1.45]}}
    colour = {"field": "run", "type": "nominal", "title": None, "sort": list(runs), "scale": colours}
    quiet = {"field": "run", "type": "nominal", "title": None, "sort": list(runs)}
    dash = quiet | {"scale": {"domain": list(runs), "range": [[3, 2] if d else [1, 0] for d in dashed]}}
    fill = quiet | {"scale": {"domain": list(runs), "range": [0.15 if d else 1.0 for d in dashed]}}
    drawn = {"x": share, "stroke": colour, "fill": colour, "strokeDash": dash, "fillOpacity": fill}
    bars = {"mark": {"type": "bar"}, "encoding": drawn}
    words = {
        "mark": {"type": "text", "align": "left", "dx": 3, "fontSize": 9, "color": theme.text},
        "encoding": {"x": share, "text": {"field": "text"}},
    }
    return {
        "$schema": "https://vega.github.io/schema/vega-lite/v6.json",
        "height": max(ROW_PX * figures, 60),
        "usermeta": {"tall": True},
        "encoding": {"y": y, "yOffset": offset},
        "layer": [bars, words],
        "config": style.vega_config(theme),
    }
