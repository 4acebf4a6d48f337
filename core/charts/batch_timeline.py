"""What each step was made of: prefill, decode and idle tokens under the budget, and the size of the batch.

    tokens   ---------------- max_num_batched_tokens ----------------   marks above: admitted ^ preempted v finished o
             ####  idle  #######
             prefill, decode stacked

Specifications are constant, so the browser keeps zoom and pan while only data change. Rows come wide and
are folded in the browser: 300 steps are 300 rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd
import pyarrow as pa

from core.charts import style
from core.charts.style import Theme
from core.records import StepRecord

MAX_STEPS = 600
HEADROOM = 1.3  # of the budget: the strip above the line holds the marks
_MARKS = ("admitted", "preempted", "finished")
_PARTS = ("schedule", "prepare", "forward", "sample", "transfer", "update")


def composition_frame(history: Sequence[StepRecord]) -> pd.DataFrame:
    """One row a step: tokens by kind, the budget, and what happened."""
    return pd.DataFrame(_composition(history))


def composition_table(history: Sequence[StepRecord]) -> pa.Table:
    """The same as an Arrow table: it travels at every tick, and a data frame on the way would cost more than the columns."""
    return pa.table(_composition(history))


def _composition(history: Sequence[StepRecord]) -> dict[str, npt.NDArray[np.unsignedinteger]]:
    """Columns as narrow as their largest value allows."""
    records = history[-MAX_STEPS:]
    columns: dict[str, list[int]] = {
        "step": [r.step for r in records],
        "prefill": [r.prefill_tokens for r in records],
        "decode": [r.decode_tokens for r in records],
        "padding": [r.padded_tokens for r in records],
        "idle": [max(r.budget_tokens - r.prefill_tokens - r.decode_tokens - r.padded_tokens, 0) for r in records],
        "budget": [r.budget_tokens for r in records],
        "admitted": [r.admitted for r in records],
        "preempted": [r.preempted for r in records],
        "finished": [r.finished for r in records],
    }
    return {name: np.asarray(values, dtype=np.min_scalar_type(max(values, default=0))) for name, values in columns.items()}


def batch_frame(history: Sequence[StepRecord]) -> pd.DataFrame:
    """One row a step: requests running, waiting and preempted, and the seats."""
    records = history[-MAX_STEPS:]
    return pd.DataFrame(
        {
            "step": [r.step for r in records],
            "running": [r.num_running for r in records],
            "waiting": [r.num_waiting for r in records],
            "preempted": [r.num_preempted for r in records],
            "seats": [r.max_num_seqs for r in records],
            "bound": [r.bound_by for r in records],
        }
    )


def times_frame(history: Sequence[StepRecord]) -> pd.DataFrame:
    """One row a step: milliseconds by part; `rest` is what no part accounts for."""
    records = history[-MAX_STEPS:]
    columns: dict[str, list[float]] = {"step": [r.step for r in records]}
    for part in _PARTS:
        columns[part] = [1e3 * getattr(r, f"{part}_s") for r in records]
    known = [sum(getattr(r, f"{part}_s") for part in _PARTS) for r in records]
    columns["rest"] = [1e3 * max(r.duration_s - k, 0.0) for r, k in zip(records, known, strict=True)]
    return pd.DataFrame(columns)


def _step_axis(title: str | None = "engine step") -> dict[str, Any]:
    return {
        "field": "step",
        "type": "quantitative",
        "title": title,
        "scale": {"zero": False, "nice": False},
        "axis": {"labelExpr": style.THIN_GROUPS, "tickMinStep": 1, "tickCount": 8},
    }


def _stack(series: Sequence[str], colours: Sequence[str], unit: str, theme: Theme, *, opacity: float = 1.0) -> dict[str, Any]:
    return {
        "transform": [{"fold": list(series), "as": ["kind", "amount"]}],
        "mark": {"type": "area", "interpolate": "step-after", "line": False, "opacity": opacity},
        "encoding": {
            "x": _step_axis(),
            "y": {
                "field": "amount",
                "type": "quantitative",
                "stack": "zero",
                "title": unit,
                "scale": {"nice": False},
                "axis": {"tickCount": 5, "grid": True},
            },
            "color": {
                "field": "kind",
                "type": "nominal",
                "title": None,
                "sort": list(series),
                "scale": {"domain": list(series), "range": list(colours)},
            },
            "order": {"field": "order", "type": "quantitative"},
        },
    }


def _rank(series: Sequence[str]) -> dict[str, str]:
    return {"calculate": f"indexof({list(series)!r}, datum.kind)", "as": "order"}


@lru_cache(maxsize=8)
def composition_spec(theme: Theme, height: int = 262) -> dict[str, Any]:
    """Stacked tokens by kind under the budget line, with marks in the strip above it for what happened in a step."""
    series = ("decode", "prefill", "padding", "idle")
    quiet = "#343E49" if theme.name == "dark" else "#DCE1E7"
    colours = [theme.decode, style.PREFILL, style.IDLE, quiet]
    stack = _stack(series, colours, "tokens in the step", theme)
    stack["transform"].append(_rank(series))
    stack["params"] = [style.ZOOM]
    del stack["encoding"]["x"]  # all layers share one: the spec is sent at every tick
    budget = {
        "mark": {"type": "line", "interpolate": "step-after", "strokeWidth": 1.2, "color": theme.text},
        "encoding": {"y": {"field": "budget", "type": "quantitative"}},
    }
    headroom = {
        "transform": [{"calculate": f"datum.budget * {HEADROOM}", "as": "top"}],
        "mark": {"type": "point", "opacity": 0, "size": 0},
        "encoding": {"y": {"field": "top", "type": "quantitative"}},
    }
    marks = [_event_layer(kind, y, theme) for kind, y in zip(_MARKS, (5, 16, 27), strict=True)]
    hover = {
        "mark": {"type": "rule", "strokeWidth": 3, "opacity": 0},
        "encoding": {
            "tooltip": [
                {"field": name, "type": "quantitative", "format": ",d"}
                for name in ("step", "prefill", "decode", "padding", "idle", "budget", "admitted", "preempted", "finished")
            ],
        },
    }
    return {
        "$schema": "https://vega.github.io/schema/vega-lite/v6.json",
        "height": height,
        "encoding": {"x": _step_axis()},
        "layer": [stack, budget, headroom, *marks, hover],
        "config": style.vega_config(theme),
    }


def _event_layer(kind: str, y: int, theme: Theme) -> dict[str, Any]:
    shape = style.MARK_SHAPES[kind]
    paint = theme.muted if kind == "admitted" else style.colour(kind, theme)
    return {
        "transform": style.seldom(f"datum.{kind} > 0"),
        "mark": {"type": "point", "shape": shape, "filled": kind != "admitted", "color": paint, "opacity": 0.9},
        "encoding": {"y": {"value": y}, "size": style.seldom_size(f"datum.{kind} > 0", 22)},
    }


@lru_cache(maxsize=8)
def batch_spec(theme: Theme, height: int = 200) -> dict[str, Any]:
    """Requests running, waiting and preempted as lines, seats as a thin rule."""
    series = ("running", "waiting", "preempted", "seats")
    colours = [theme.decode, theme.waiting, style.PREEMPTED, theme.muted]
    return {
        "$schema": "https://vega.github.io/schema/vega-lite/v6.json",
        "height": height,
        "transform": [{"fold": list(series), "as": ["set", "requests"]}],
        "params": [style.ZOOM],
        "mark": {"type": "line", "interpolate": "step-after", "strokeWidth": 1.4},
        "encoding": {
            "x": _step_axis(),
            "y": {"field": "requests", "type": "quantitative", "title": "requests", "axis": {"tickCount": 5}},
            "color": {
                "field": "set",
                "type": "nominal",
                "title": None,
                "sort": list(series),
                "scale": {"domain": list(series), "range": colours},
            },
            "strokeDash": {
                "field": "set",
                "type": "nominal",
                "title": None,
                "sort": list(series),
                "scale": {"domain": list(series), "range": [[1, 0], [1, 0], [5, 2], [1, 3]]},
            },
            "tooltip": [
                {"field": "step", "type": "quantitative", "format": ",d"},
                {"field": "set", "type": "nominal"},
                {"field": "requests", "type": "quantitative"},
                {"field": "bound", "type": "nominal", "title": "bound by"},
            ],
        },
        "config": style.vega_config(theme),
    }


@lru_cache(maxsize=8)
def times_spec(theme: Theme, height: int = 200) -> dict[str, Any]:
    """Milliseconds of a step, stacked by part; the forward pass is quiet so that host time stands out."""
    series = ("forward", "schedule", "prepare", "sample", "update", "transfer", "rest")
    forward = "#2A323B" if theme.name == "dark" else "#DDE2E8"
    colours = [forward, *style.CIVIDIS[-1:1:-2][:5], style.IDLE]
    spec = _stack(series, colours, "ms a step", theme)
    spec["transform"].append(_rank(series))
    return {
        "$schema": "https://vega.github.io/schema/vega-lite/v6.json",
        "height": height,
        "params": [style.ZOOM],
        **spec,
        "config": style.vega_config(theme),
    }
