"""A sick run beside a cured one: the same load, drawn over the time since each run began."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import numpy as np
import pandas as pd

from core.charts import style
from core.charts.style import Theme
from core.records import StepRecord

PARTS = ("prefill", "decode", "padding")
BINS = 160


def span_s(records: Sequence[StepRecord]) -> float:
    """Time from the start of a run's first step to the end of its last."""
    return records[-1].start_s + records[-1].duration_s - records[0].start_s if records else 0.0


def lane_frame(records: Sequence[StepRecord], axis_s: float) -> pd.DataFrame:
    """Columns at_s, part, tokens_per_s: tokens of each part in equal slices of the axis.

    Args:
        axis_s: length of the time axis; give both lanes the longer run's span, so that they can be compared.
    """
    width_s = max(axis_s / BINS, 1e-9)
    totals = {part: np.zeros(BINS) for part in PARTS}
    for r in records:
        at = min(int((r.start_s - records[0].start_s) / width_s), BINS - 1)
        totals["prefill"][at] += r.prefill_tokens
        totals["decode"][at] += r.decode_tokens
        totals["padding"][at] += r.padded_tokens
    rows = [(i * width_s, part, float(value) / width_s) for part in PARTS for i, value in enumerate(totals[part]) if value]
    rows.append((axis_s, "decode", 0.0))  # holds the axis to its length
    return pd.DataFrame(rows, columns=["at_s", "part", "tokens_per_s"])


@lru_cache(maxsize=4)
def lane_spec(theme: Theme) -> dict[str, Any]:
    """One run over its time; padding and held rows in grey."""
    return {
        "$schema": "https://vega.github.io/schema/vega-lite/v6.json",
        "height": 110,
        "mark": {"type": "bar", "width": 4},
        "encoding": {
            "x": {
                "field": "at_s",
                "type": "quantitative",
                "title": "time since the run began (s)",
                "scale": {"nice": False, "zero": True},
            },
            "y": {
                "field": "tokens_per_s",
                "type": "quantitative",
                "title": "tokens/s",
                "stack": "zero",
                "axis": {"labelExpr": "isNaN(datum.value) ? '' : format(datum.value, '~s')"},  # a run that has not begun
            },
            "color": {
                "field": "part",
                "type": "nominal",
                "title": None,
                "scale": {"domain": list(PARTS), "range": [style.PREFILL, theme.decode, style.IDLE]},
            },
            "tooltip": [
                {"field": "part", "type": "nominal"},
                {"field": "at_s", "type": "quantitative", "format": ".2f", "title": "at (s)"},
                {"field": "tokens_per_s", "type": "quantitative", "format": ".3s", "title": "tokens/s"},
            ],
        },
        "config": style.vega_config(theme),
    }
