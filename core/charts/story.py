"""One request's life on a time axis: its phases as bars, its tokens as ticks, its turning points as marks.

queue | prefill chunks | decode          | preempted | decode
......  ## ## ##         ' ' ' ' ' ' ' '   xxxxxxxxx   ' ' ' '
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import pandas as pd

from core.charts import style
from core.charts.style import Theme
from core.story import Story

PHASES = ("queue", "prefill", "decode", "preempted")
MARKS = {"submitted", "admitted", "first_token", "preempted", "resumed", "finished", "cancelled", "refused", "priority"}
MAX_TICKS = 1200
_AFTER = {"submitted": "queue", "admitted": "prefill", "resumed": "prefill", "first_token": "decode", "preempted": "preempted"}
_ENDS = ("finished", "cancelled", "refused")


def phases(story: Story, now_s: float) -> list[tuple[str, float, float]]:
    """(phase, from, to) over the whole life, in order, without gap or overlap.

    A resumed request recomputes what it had: prefill until its next token.
    """
    spans: list[tuple[str, float, float]] = []
    phase, since = "", 0.0
    turns = [(e.time_s, _AFTER[e.kind]) for e in story.events if e.kind in _AFTER]
    resumed = [e.time_s for e in story.events if e.kind == "resumed"]
    for time_s in resumed:
        following = next((t for t in story.token_times_s if t > time_s), None)
        if following is not None:
            turns.append((following, "decode"))
    end = next((e.time_s for e in story.events if e.kind in _ENDS), None)
    for time_s, name in sorted(turns, key=lambda turn: turn[0]):
        if phase and time_s > since:
            spans.append((phase, since, time_s))
        phase, since = name, time_s
    last = now_s if end is None else end
    if phase and last > since:
        spans.append((phase, since, last))
    return spans


def story_frame(story: Story, now_s: float) -> pd.DataFrame:
    """Rows of three kinds (column `row`): span, token, mark; times in seconds since the request's arrival."""
    origin = story.events[0].time_s if story.events else 0.0
    rows: list[tuple[Any, ...]] = [("span", p, a - origin, b - origin, "", "") for p, a, b in phases(story, now_s)]
    stride = max(len(story.token_times_s) // MAX_TICKS, 1)
    for i, time_s in enumerate(story.token_times_s[::stride]):
        rows.append(("token", "decode", time_s - origin, None, f"output token {i * stride + 1}", ""))
    for e in story.events:
        what = f"{e.kind.replace('_', ' ')}, step {e.step}"
        if e.kind == "chunk":
            rows.append(("chunk", "prefill", e.time_s - origin, None, what, e.detail))
        elif e.kind in MARKS:
            rows.append(("mark", "", e.time_s - origin, None, what, e.detail))
    return pd.DataFrame(rows, columns=["row", "phase", "from_s", "to_s", "what", "detail"])


@lru_cache(maxsize=4)
def story_spec(theme: Theme) -> dict[str, Any]:
    """Bars for phases, ticks for tokens above, chunk ends below, triangles for turning points."""
    quiet = "#46515D" if theme.name == "dark" else "#CBD2DA"
    x: dict[str, Any] = {
        "field": "from_s",
        "type": "quantitative",
        "title": "time since arrival (s)",
        "scale": {"zero": True, "nice": False},
    }
    colour = {
        "field": "phase",
        "type": "nominal",
        "title": None,
        "scale": {"domain": list(PHASES), "range": [quiet, style.PREFILL, theme.decode, style.PREEMPTED]},
    }
    tooltip = [
        {"field": "what", "type": "nominal", "title": "what"},
        {"field": "phase", "type": "nominal"},
        {"field": "from_s", "type": "quantitative", "format": ".3f", "title": "at (s)"},
        {"field": "detail", "type": "nominal"},
    ]

    def only(row: str) -> list[dict[str, str]]:
        return [{"filter": f"datum.row === '{row}'"}]

    return {
        "$schema": "https://vega.github.io/schema/vega-lite/v6.json",
        "height": 190,
        "encoding": {"x": x, "tooltip": tooltip},
        "layer": [
            {
                "params": [{"name": "zoom", "select": {"type": "interval", "encodings": ["x"]}, "bind": "scales"}],
                "transform": only("span"),
                "mark": {"type": "bar", "height": 34, "y": 105},
                "encoding": {"x2": {"field": "to_s"}, "color": colour},
            },
            {"transform": only("token"), "mark": {"type": "tick", "y": 62, "size": 26, "thickness": 1.2, "color": theme.decode}},
            {"transform": only("chunk"), "mark": {"type": "tick", "y": 148, "size": 22, "thickness": 2, "color": style.PREFILL}},
            {
                "transform": only("mark"),
                "mark": {"type": "point", "shape": "triangle-down", "filled": True, "size": 90, "y": 26, "color": theme.text},
            },
        ],
        "config": style.vega_config(theme),
    }
