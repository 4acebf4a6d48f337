"""Points of a sweep in two planes, with the front that no other point beats.

throughput against latency        goodput against cost        front: line and rings, best under the SLO: star
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any, Protocol

import pandas as pd

from core.charts import formats, style
from core.charts.kv import Spec, base

MAX_POINTS = 1900


class RowLike(Protocol):
    """One point of a sweep (`core.sweep.SweepRow`)."""

    @property
    def settings(self) -> tuple[tuple[str, str], ...]: ...

    def figure(self, name: str) -> float | None: ...


def plane_frame(
    rows: Sequence[RowLike], x: str, y: str, front: Sequence[RowLike], best: RowLike | None, colour_by: str
) -> pd.DataFrame:
    """Columns x, y, group, words, front (0 or 1), best (0 or 1), rank of the group; points without both figures are left out.

    Args:
        colour_by: knob whose value names the group; the first knob if it is not an axis.
    """
    on_front = {id(r) for r in front}
    found = []
    for row in rows:
        a, b = row.figure(x), row.figure(y)
        if a is None or b is None or a <= 0 or b <= 0:
            continue
        settings = dict(row.settings)
        group = settings.get(colour_by) or next(iter(settings.values()), "")
        words = ", ".join(f"{k} {v}" for k, v in row.settings)
        found.append((a, b, group, words, int(id(row) in on_front), int(row is best)))
    kept = sorted(found, key=lambda r: -r[4])[:MAX_POINTS]
    frame = pd.DataFrame(kept, columns=["x", "y", "group", "words", "front", "best"])
    rank = {name: place for place, name in enumerate(sorted(set(frame["group"]), key=_by_number))}
    return frame.assign(rank=frame["group"].map(rank))


def _by_number(name: str) -> tuple[float, str]:
    """Numbers by their size, then words."""
    try:
        return float(name), ""
    except ValueError:
        return float("inf"), name


@lru_cache(maxsize=8)
def plane_spec(theme: style.Theme, x_title: str, y_title: str, groups: str = "") -> Spec:
    """Log-log scatter of the points; front as a line with rings, the best as a star with its settings.

    Args:
        groups: what the colours stand for, the legend's title.
    """
    log = {"type": "log", "nice": False, "padding": 18}
    x = {
        "field": "x",
        "type": "quantitative",
        "scale": log,
        "axis": {"title": x_title, "format": ".3~s", "tickCount": 5, "grid": True},
    }
    y = {
        "field": "y",
        "type": "quantitative",
        "scale": log,
        "axis": {"title": y_title, "format": ".3~s", "tickCount": 5, "grid": True},
    }
    tip = [
        {"field": "words", "type": "nominal", "title": "settings"},
        {"field": "x", "type": "quantitative", "format": ".3~s", "title": x_title},
        {"field": "y", "type": "quantitative", "format": ".3~s", "title": y_title},
    ]
    group: dict[str, Any] = {
        "field": "group",
        "type": "nominal",
        "title": groups or None,
        "sort": {"field": "rank", "op": "min"},
        "legend": {"orient": "bottom", "columns": 3, "titleOrient": "left"},
        "scale": {"range": [theme.decode, style.PREFILL, style.SHARED, style.USEFUL, style.PREEMPTED, theme.waiting, style.IDLE]},
    }
    points = {
        "params": [{**style.ZOOM, "select": {**style.ZOOM["select"], "encodings": ["x", "y"]}}],
        "mark": {"type": "point", "filled": True, "size": 34, "opacity": 0.6},
        "encoding": {"x": x, "y": y, "color": group, "tooltip": tip},
    }
    line = {
        "transform": [{"filter": "datum.front > 0"}],
        "mark": {"type": "line", "color": theme.text, "strokeWidth": 1, "strokeDash": style.LINE_DASH["predicted"]},
        "encoding": {"x": x, "y": y, "order": {"field": "x", "type": "quantitative"}},
    }
    rings = {
        "transform": [{"filter": "datum.front > 0"}],
        "mark": {"type": "point", "size": 90, "stroke": theme.text, "strokeWidth": 1.2},
        "encoding": {"x": x, "y": y, "tooltip": tip},
    }
    star = {
        "transform": [{"filter": "datum.best > 0"}],
        "mark": {"type": "point", "shape": "M0,-1L0.3,-0.3L1,-0.3L0.4,0.15L0.6,0.9L0,0.45L-0.6,0.9L-0.4,0.15L-1,-0.3L-0.3,-0.3Z",
                 "size": 260, "filled": True, "color": style.USEFUL, "stroke": theme.ground},
        "encoding": {"x": x, "y": y, "tooltip": tip},
    }  # fmt: skip
    return {**base(theme, 340), "layer": [line, points, rings, star]}


def rows_frame(rows: Sequence[RowLike], figures: Sequence[tuple[str, str, str]], problem: bool = True) -> pd.DataFrame:
    """One row a point: its settings, then (figure, label, unit) as words; what could not run says why."""
    out = []
    for row in rows:
        line: dict[str, str] = dict(row.settings)
        for name, label, unit in figures:
            value = row.figure(name)
            words = formats.seconds(value) if unit == "s" else formats.percent(value) if unit == "%" else formats.figures(value)
            line[label] = words
        if problem:
            line["problem"] = str(getattr(row, "problem", ""))
        out.append(line)
    return pd.DataFrame(out)
