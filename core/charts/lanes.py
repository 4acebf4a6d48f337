"""Two runs of the same requests as lanes over one time axis: who ran, and what was computed for nothing.

    rows  8 |PPDDDDDDDDDDD....           P prefill, D decode, # padding and rows that have ended, | the end of the run
            |PPDDDDDD#########|
            +--------------------- seconds since the run began

A step's rows are split by its tokens: a padded position is as much work as a real one.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import numpy as np
import pandas as pd

from core.charts import formats, style
from core.charts.before_after import span_s
from core.charts.kv import Spec, base
from core.records import StepRecord

PARTS = ("decode", "prefill", "wasted")
BINS = 220
STROKE_EVERY = 3
WASTED = "padding, ended rows"


def lane_frame(records: Sequence[StepRecord], axis_s: float) -> pd.DataFrame:
    """Columns at_s, part, rows (mean rows of a slice of time), base and top (of a stroke of the hatch over wasted rows, else
    equal), and words (one row holds the run's end).

    Args:
        axis_s: length of the time axis; the longer run's span for both lanes, so that they can be compared.
    """
    width_s = max(axis_s / BINS, 1e-9)
    totals = {part: np.zeros(BINS) for part in PARTS}
    start = records[0].start_s if records else 0.0
    for r in records:
        tokens = r.prefill_tokens + r.decode_tokens
        computed = tokens + r.padded_tokens
        if not computed:
            continue
        rows = r.prefill_requests + r.decode_requests
        if not r.prefill_requests:
            rows += r.padded_tokens  # one query token a row: a padded one is a row that has ended
        share = {
            "decode": r.decode_tokens / computed,
            "prefill": r.prefill_tokens / computed,
            "wasted": r.padded_tokens / computed,
        }
        _spread(totals, {part: rows * s for part, s in share.items()}, r.start_s - start, r.duration_s, width_s)
    at = [i * width_s for i in range(BINS)]
    parts = [pd.DataFrame({"at_s": at, "part": part, "rows": totals[part] / width_s}) for part in PARTS]
    base = (totals["decode"] + totals["prefill"]) / width_s
    strokes = np.arange(BINS) % STROKE_EVERY == 0
    parts[-1] = parts[-1].assign(base=base, top=base + np.where(strokes, totals["wasted"] / width_s, 0.0))
    end = span_s(records)
    mark = pd.DataFrame({"at_s": [end], "part": ["end"], "rows": [0.0], "words": [f"{formats.seconds(end)}" if records else ""]})
    return pd.concat([*parts, mark], ignore_index=True).fillna({"words": "", "base": 0.0, "top": 0.0})


def _spread(totals: dict[str, Any], rows: dict[str, float], start_s: float, duration_s: float, width_s: float) -> None:
    """Add a step to the slices of time that it covers, each by the seconds that it covers of it."""
    first, last = int(start_s / width_s), int((start_s + duration_s) / width_s)
    for i in range(first, min(last, BINS - 1) + 1):
        covered = min(start_s + duration_s, (i + 1) * width_s) - max(start_s, i * width_s)
        for part, amount in rows.items():
            totals[part][i] += amount * max(covered, 0.0)


@lru_cache(maxsize=8)
def lane_spec(theme: style.Theme, seats: int, axis_s: float) -> Spec:
    """One lane; both lanes of a comparison get the same seats and the same axis."""
    x = {
        "field": "at_s",
        "type": "quantitative",
        "title": None,
        "scale": {"domain": [0, axis_s * 1.06], "nice": False},
        "axis": {"tickCount": 8},
    }
    y = {
        "field": "rows",
        "type": "quantitative",
        "stack": "zero",
        "title": "rows",
        "scale": {"domain": [0, seats], "nice": False},
        "axis": {"tickCount": 4},
    }
    names = list(PARTS)
    shades = {"domain": ["decode", "prefill", WASTED], "range": [theme.decode, style.PREFILL, style.IDLE]}
    area = {
        "transform": [
            {"filter": "datum.part !== 'end'"},
            {"calculate": f"indexof({names!r}, datum.part)", "as": "order"},
            {"calculate": f"datum.part === 'wasted' ? '{WASTED}' : datum.part", "as": "work"},
        ],
        "mark": {"type": "area", "interpolate": "step-after", "opacity": 0.95},
        "encoding": {
            "x": x,
            "y": y,
            "order": {"field": "order", "type": "quantitative"},
            "color": {
                "field": "work",
                "type": "nominal",
                "title": None,
                "scale": shades,
            },
            "tooltip": [
                {"field": "work", "type": "nominal"},
                {"field": "at_s", "type": "quantitative", "format": ".2f", "title": "at (s)"},
                {"field": "rows", "type": "quantitative", "format": ".1f"},
            ],
        },
    }
    slant = axis_s / BINS * 2
    hatch = {
        "transform": [
            {"filter": "datum.part === 'wasted' && datum.top - datum.base > 0.05"},
            {"calculate": f"datum.at_s + {slant}", "as": "to_s"},
        ],
        "mark": {"type": "rule", "color": theme.ground, "strokeWidth": 1.2, "clip": True},
        "encoding": {
            "x": x, "x2": {"field": "to_s"},
            "y": {"field": "base", "type": "quantitative", "title": "rows"}, "y2": {"field": "top"},
        },
    }  # fmt: skip
    end = {
        "transform": [{"filter": "datum.part === 'end' && datum.words !== ''"}],
        "encoding": {"x": x},
        "layer": [
            {"mark": {"type": "rule", "color": style.USEFUL, "strokeWidth": 2}},
            {
                "mark": {"type": "text", "align": "right", "dx": -5, "color": theme.text, "fontWeight": 600, "fontSize": 12},
                "encoding": {"y": {"value": 10}, "text": {"field": "words", "type": "nominal"}},
            },
        ],
    }
    return {**base(theme, 130), "layer": [area, hatch, end]}
