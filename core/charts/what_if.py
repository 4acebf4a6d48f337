"""Figures of a prediction: KV use of both runs over time, what each knob is worth, how far the law is off.

KV use    ....base....                 sensitivity   max_num_seqs   down <--|----> up
          --what-if--                                block_size        <|>
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any, Protocol

import numpy as np
import pandas as pd

from core.charts import formats, style
from core.charts.kv import Spec, base
from core.sim_series import SeriesPoint
from core.step_residuals import Residual

BASE, NEW = "as live", "what-if"
MAX_POINTS = 400


def series_frame(first: Sequence[SeriesPoint], second: Sequence[SeriesPoint]) -> pd.DataFrame:
    """Columns at_s (since each run began), run, kv, running, waiting; at most `MAX_POINTS` rows a run."""
    parts = []
    for name, points in ((BASE, first), (NEW, second)):
        step = max(-(-len(points) // MAX_POINTS), 1)
        kept = points[::step]
        start = points[0].time_s if points else 0.0
        parts.append(
            pd.DataFrame(
                {
                    "at_s": [p.time_s - start for p in kept],
                    "run": [name] * len(kept),
                    "kv": [p.kv_usage for p in kept],
                    "running": [p.running for p in kept],
                    "waiting": [p.waiting for p in kept],
                }
            )
        )
    return pd.concat(parts, ignore_index=True)


@lru_cache(maxsize=8)
def series_spec(theme: style.Theme, field: str, percent: bool, height: int = 150) -> Spec:
    """One figure of both runs over time, predicted and therefore dashed; the base is grey."""
    axis: dict[str, Any] = {"title": None, "tickCount": 4, "tickMinStep": 1, "format": "~s", "grid": True}
    scale: dict[str, Any] = {"nice": False, "zero": True, "domain": {"unionWith": [0, 1]}}  # zero everywhere is at the foot
    if percent:
        axis = {**axis, "tickMinStep": 0.25, "format": "%"}
        scale["domain"] = [0, 1]
    return {
        **base(theme, height),
        "params": [style.ZOOM],
        "mark": {"type": "line", "interpolate": "step-after", "strokeWidth": 1.6, "clip": True},
        "encoding": {
            "x": {"field": "at_s", "type": "quantitative", "title": "s since the first arrival", "scale": {"nice": False}},
            "y": {"field": field, "type": "quantitative", "axis": axis, "scale": scale},
            "color": {
                "field": "run",
                "type": "nominal",
                "title": None,
                "scale": {"domain": [BASE, NEW], "range": [theme.muted, theme.decode]},
                "legend": {"symbolType": "stroke", "symbolSize": 300},
            },
            "strokeDash": {
                "field": "run",
                "type": "nominal",
                "title": None,
                "scale": {"domain": [BASE, NEW], "range": [[2, 3], style.LINE_DASH["predicted"]]},
            },
            "tooltip": [
                {"field": "run", "type": "nominal"},
                {"field": "at_s", "type": "quantitative", "format": ".3~g", "title": "at (s)"},
                {"field": "kv", "type": "quantitative", "format": ".1%", "title": "KV use"},
                {"field": "running", "type": "quantitative", "format": ".1f"},
                {"field": "waiting", "type": "quantitative", "format": ".1f"},
            ],
        },
    }


class NotchLike(Protocol):
    """One knob moved a notch: its value there and the goal's figure (`core.whatif.Notch`)."""

    @property
    def value(self) -> Any: ...

    @property
    def figure(self) -> float | None: ...


class SensitivityLike(Protocol):
    """A knob with the notches below and above its value (`core.whatif.Sensitivity`)."""

    @property
    def knob(self) -> str: ...

    @property
    def value(self) -> Any: ...

    @property
    def down(self) -> NotchLike | None: ...

    @property
    def up(self) -> NotchLike | None: ...


def _value_words(value: Any) -> str:
    if isinstance(value, bool):
        return "on" if value else "off"
    return formats.si(value) if isinstance(value, float) or value >= 10_000 else str(value)


def sensitivity_frame(found: Sequence[SensitivityLike], goal_base: float | None) -> pd.DataFrame:
    """Columns knob, notch, change (share of the base figure), words; a notch that cannot run has no row."""
    rows = []
    for s in found:
        for name, notch in (("a notch down", s.down), ("a notch up", s.up)):
            if notch is None or notch.figure is None or not goal_base:
                continue
            words = f"{_value_words(s.value)} to {_value_words(notch.value)}"
            rows.append((s.knob, name, notch.figure / goal_base - 1.0, words))
    return pd.DataFrame(rows, columns=["knob", "notch", "change", "words"])


@lru_cache(maxsize=4)
def sensitivity_spec(theme: style.Theme) -> Spec:
    """Diverging bars: what a notch of each knob does to the goal."""
    notch = ["a notch down", "a notch up"]
    y = {"field": "knob", "type": "nominal", "title": None, "sort": None, "axis": {"labelLimit": 200}}
    x = {
        "field": "change",
        "type": "quantitative",
        "axis": {"title": "change of the goal", "format": "+.1~%", "tickCount": 5, "grid": True},
        "scale": {"padding": 70, "nice": False},
    }
    offset = {"field": "notch", "type": "nominal", "scale": {"domain": notch}}
    bars = {
        "mark": {"type": "bar", "height": {"band": 0.85}, "minBandSize": 3},
        "encoding": {
            "y": y,
            "x": x,
            "yOffset": offset,
            "color": {
                "field": "notch",
                "type": "nominal",
                "title": None,
                "scale": {"domain": notch, "range": [theme.muted, theme.decode]},
                "legend": {"symbolType": "square"},
            },
            "tooltip": [
                {"field": "knob", "type": "nominal"},
                {"field": "words", "type": "nominal", "title": "from, to"},
                {"field": "change", "type": "quantitative", "format": "+.1%"},
            ],
        },
    }
    words = [
        {
            "transform": [{"filter": f"datum.change {side} 0"}],
            "mark": {"type": "text", "fontSize": 10, "color": theme.muted, "align": align, "dx": dx},
            "encoding": {"y": y, "x": x, "yOffset": offset, "text": {"field": "words", "type": "nominal"}},
        }
        for side, align, dx in ((">=", "left", 4), ("<", "right", -4))
    ]
    return {**base(theme, 330), "layer": [bars, *words]}


def residual_frame(residuals: Sequence[Residual]) -> pd.DataFrame:
    """Columns measured_ms, predicted_ms, kind, rows, error; at most 800 steps, evenly picked."""
    step = max(-(-len(residuals) // 800), 1)
    kept = residuals[::step]
    return pd.DataFrame(
        {
            "measured_ms": [1e3 * r.measured_s for r in kept],
            "predicted_ms": [1e3 * r.predicted_s for r in kept],
            "kind": [r.kind for r in kept],
            "rows": [r.rows for r in kept],
            "tokens": [r.query_tokens for r in kept],
            "error": [r.error for r in kept],
        }
    )


@lru_cache(maxsize=4)
def residual_spec(theme: style.Theme) -> Spec:
    """Predicted against measured step time on logarithmic axes; the diagonal is a perfect prediction."""
    log = {"type": "log", "nice": False}
    x = {"field": "measured_ms", "type": "quantitative", "scale": log, "axis": {"title": "measured, ms", "tickCount": 5}}
    y = {"field": "predicted_ms", "type": "quantitative", "scale": log, "axis": {"title": "predicted, ms", "tickCount": 5}}
    kinds = ["decode", "mixed", "prefill"]
    dots = {
        "mark": {"type": "point", "filled": True, "size": 22, "opacity": 0.55},
        "encoding": {
            "x": x,
            "y": y,
            "color": {
                "field": "kind",
                "type": "nominal",
                "title": None,
                "scale": {"domain": kinds, "range": [theme.decode, style.IDLE, style.PREFILL]},
            },
            "shape": {
                "field": "kind",
                "type": "nominal",
                "title": None,
                "scale": {"domain": kinds, "range": ["circle", "diamond", "square"]},
            },
            "tooltip": [
                {"field": "kind", "type": "nominal", "title": "step"},
                {"field": "rows", "type": "quantitative"},
                {"field": "tokens", "type": "quantitative", "title": "query tokens"},
                {"field": "measured_ms", "type": "quantitative", "format": ".3~g"},
                {"field": "predicted_ms", "type": "quantitative", "format": ".3~g"},
                {"field": "error", "type": "quantitative", "format": "+.1%"},
            ],
        },
    }
    line = {
        "transform": [{"aggregate": [{"op": op, "field": "measured_ms", "as": op} for op in ("min", "max")]},
                      {"calculate": "[datum.min, datum.max]", "as": "measured_ms"}, {"flatten": ["measured_ms"]},
                      {"calculate": "datum.measured_ms", "as": "predicted_ms"}],
        "mark": {"type": "line", "color": theme.muted, "strokeWidth": 1, "strokeDash": [3, 3]},
        "encoding": {"x": x, "y": y},
    }  # fmt: skip
    return {**base(theme, 320), "layer": [line, dots]}


def share_within(residuals: Sequence[Residual], error: float) -> float:
    """Share of the steps whose prediction is off by at most `error`."""
    return float(np.mean([abs(r.error) <= error for r in residuals])) if residuals else 0.0
