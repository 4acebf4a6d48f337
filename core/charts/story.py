"""One request's life on a time axis: its phases as bars, its tokens as ticks, its turning points as marks.

queue | prefill chunks | decode          | preempted | decode
......  ## ## ##         ' ' ' ' ' ' ' '   xxxxxxxxx   ' ' ' '

blocks, one lane for each place of the table, from the moment it is taken until it is given back:

        ==================================             =======    place 0: block 4, then block 9
           ===============================             =======    place 1
                         =================                ====    place 2
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
_WORDS = dict.fromkeys(("row", "phase", "what", "detail"), "category")
_NARROW = {**_WORDS, "from_s": "float32", "to_s": "float32", "token": "int32"}
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
    """Rows of four kinds (column `row`): span, token, chunk, mark; times in seconds since the request's arrival.

    `token` is the number of an output token, 0 for the other rows. Columns are narrow: a row a token travels at every tick.
    """
    origin = story.events[0].time_s if story.events else 0.0
    rows: list[tuple[Any, ...]] = [("span", p, a - origin, b - origin, 0, "", "") for p, a, b in phases(story, now_s)]
    stride = max(len(story.token_times_s) // MAX_TICKS, 1)
    for i, time_s in enumerate(story.token_times_s[::stride]):
        rows.append(("token", "decode", time_s - origin, None, i * stride + 1, "", ""))
    for e in story.events:
        what = f"{e.kind.replace('_', ' ')}, step {e.step}"
        if e.kind == "chunk":
            rows.append(("chunk", "prefill", e.time_s - origin, None, 0, what, e.detail))
        elif e.kind in MARKS:
            rows.append(("mark", "", e.time_s - origin, None, 0, what, e.detail))
    return pd.DataFrame(rows, columns=["row", "phase", "from_s", "to_s", "token", "what", "detail"]).astype(_NARROW)


def held_blocks(story: Story, now_s: float) -> list[tuple[int, int, float, float]]:
    """(place in the table, physical block, taken at, given back at) of every block that the request held, in that order."""
    out: list[tuple[int, int, float, float]] = []
    table: list[tuple[int, float]] = []
    for e in story.events:
        if e.kind in ("preempted", *_ENDS):
            out += [(place, block, since, e.time_s) for place, (block, since) in enumerate(table)]
            table = []
        elif e.kind in ("admitted", "resumed"):
            table = [(block, e.time_s) for block in e.blocks]
        elif e.kind == "blocks":
            table += [(block, e.time_s) for block in e.blocks]
    return out + [(place, block, since, now_s) for place, (block, since) in enumerate(table)]


def blocks_frame(story: Story, now_s: float) -> pd.DataFrame:
    """One row a block and stay: place and the one below, block, from_s and to_s in seconds since the request's arrival."""
    origin = story.events[0].time_s if story.events else 0.0
    rows = [(place, place + 1, block, a - origin, b - origin) for place, block, a, b in held_blocks(story, now_s)]
    frame = pd.DataFrame(rows, columns=["place", "below", "block", "from_s", "to_s"])
    return frame.astype({"place": "int32", "below": "int32", "block": "int32", "from_s": "float32", "to_s": "float32"})


_LEFT_PX = 38
"""Room left of both charts, so that a time stands in the same place in both: the title of the axis lies within it."""

_TITLE_PX = 10


@lru_cache(maxsize=4)
def blocks_spec(theme: Theme) -> dict[str, Any]:
    """A lane for each place of the block table; a bar is one physical block in it."""
    return {
        "$schema": "https://vega.github.io/schema/vega-lite/v6.json",
        "height": 190,
        "params": [style.ZOOM],
        "mark": {"type": "rect", "stroke": theme.ground, "strokeWidth": 1},
        "encoding": {
            "x": {
                "field": "from_s",
                "type": "quantitative",
                "title": "time since arrival (s)",
                "scale": {"zero": True, "nice": False, "padding": 9},
                "axis": {"tickCount": 8},
            },
            "x2": {"field": "to_s"},
            "y": {
                "field": "place",
                "type": "quantitative",
                "title": "place in the block table",
                "scale": {"reverse": True, "nice": False, "zero": True},
                "axis": {
                    "tickMinStep": 1, "format": "d", "minExtent": _LEFT_PX, "maxExtent": _LEFT_PX, "titleX": _TITLE_PX - _LEFT_PX,
                },
            },
            "y2": {"field": "below"},
            "color": {"value": theme.decode},
            "tooltip": [
                {"field": "block", "type": "quantitative"},
                {"field": "place", "type": "quantitative", "title": "place in the table"},
                {"field": "from_s", "type": "quantitative", "format": ".3f", "title": "taken at (s)"},
                {"field": "to_s", "type": "quantitative", "format": ".3f", "title": "given back at (s)"},
            ],
        },
        "config": style.vega_config(theme),
    }  # fmt: skip


@lru_cache(maxsize=4)
def story_spec(theme: Theme) -> dict[str, Any]:
    """Bars for phases, ticks for tokens above, chunk ends below, triangles for turning points."""
    x: dict[str, Any] = {
        "field": "from_s",
        "type": "quantitative",
        "title": "time since arrival (s)",
        "scale": {"zero": True, "nice": False, "padding": 9},
        "axis": {"tickCount": 8},
    }
    tooltip = [
        {"field": "what", "type": "nominal", "title": "what"},
        {"field": "phase", "type": "nominal"},
        {"field": "from_s", "type": "quantitative", "format": ".3f", "title": "at (s)"},
        {"field": "detail", "type": "nominal"},
    ]

    def at(share: float) -> dict[str, str]:
        return {"expr": f"{share} * height"}

    return {
        "$schema": "https://vega.github.io/schema/vega-lite/v6.json",
        "height": 210,
        "padding": {**style.PADDING, "left": style.PADDING["left"] + _LEFT_PX},
        "encoding": {"x": x, "tooltip": tooltip},
        "layer": [
            {
                "params": [style.ZOOM],
                "transform": [{"filter": "datum.row === 'span'"}],
                "mark": {"type": "bar", "height": 34, "y": at(0.62), "clip": True},
                "encoding": {"x2": {"field": "to_s"}, **style.phase_channels(PHASES, theme)},
            },
            _ticks("token", at(0.31), 26, 1.2, theme.decode),
            _ticks("chunk", at(0.9), 18, 2.4, style.PREFILL),
            {
                "transform": [{"filter": "datum.row === 'mark'"}],
                "mark": {
                    "type": "point", "shape": "triangle-down", "filled": True, "size": 90, "y": at(0.06), "color": theme.text,
                    "clip": True,
                },
            },
        ],
        "config": style.vega_config(theme),
    }  # fmt: skip


def _ticks(row: str, y: dict[str, str], size: int, thickness: float, colour: str) -> dict[str, Any]:
    test = f"datum.row === '{row}'"
    return {
        "transform": [
            *style.seldom(test, "from_s"),
            {"calculate": "datum.token ? 'output token ' + datum.token : datum.what", "as": "what"},
        ],
        "mark": {"type": "tick", "y": y, "thickness": thickness, "color": colour, "clip": True, "opacity": 1},
        "encoding": {"size": style.seldom_size(test, size)},
    }
