"""Figures of the KV cache: the pool over steps, what is wasted in it, what a non-paged cache would reserve.

    records or cells in -> data frame + constant Vega-Lite specification out

A specification holds no number of the run, so the browser keeps zoom and pan while the data change under it.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import numpy as np
import pandas as pd

from core.block_view import BlockColumns, Reservation, columns, tokens_in_blocks
from core.charts import style
from core.records import StepRecord
from core.snapshot import BlockMapView

Spec = dict[str, Any]

GROUPED = f"replace(format(datum.value, ',d'), regexp(',', 'g'), '{chr(0x202F)}')"
"""Axis label of a whole number with thin spaces between groups of three."""

ZOOM: Spec = {
    "name": "zoom",
    "select": {"type": "interval", "encodings": ["x"], "zoom": "wheel![event.shiftKey]", "clear": "dblclick"},
    "bind": "scales",
}
"""Drag pans, shift + wheel zooms (a plain wheel scrolls the page), a double click follows the newest step again."""

HOW_TO_ZOOM = "Drag pans, shift + wheel zooms, double click resets."

_STATES = ("live", "cached", "free")


def step_axis(title: str = "step") -> Spec:
    """The x channel of every figure over steps."""
    return {
        "field": "step",
        "type": "quantitative",
        "scale": {"zero": False, "nice": False},
        "axis": {"title": title, "labelExpr": GROUPED, "tickMinStep": 1, "tickCount": 6},
    }


def base(theme: style.Theme, height: int) -> Spec:
    """What every figure starts from."""
    return {
        "$schema": "https://vega.github.io/schema/vega-lite/v6.json",
        "height": height,
        "config": style.vega_config(theme),
    }


def pool_frame(history: Sequence[StepRecord]) -> pd.DataFrame:
    """Columns step, live, cached, free (blocks) and preempted (requests)."""
    return pd.DataFrame(
        {
            "step": [r.step for r in history],
            "live": [r.blocks_live for r in history],
            "cached": [r.blocks_cached for r in history],
            "free": [r.blocks_free for r in history],
            "preempted": [r.preempted for r in history],
        }
    )


@lru_cache(maxsize=4)
def pool_spec(theme: style.Theme) -> Spec:
    """Blocks by state over steps, stacked to the size of the pool; a triangle marks a preemption."""
    free = theme.grid if theme.name == "print" else theme.line  # lines are dark on paper
    shades = [style.colour("useful", theme), style.colour("cached", theme), free]
    state = {
        "field": "state",
        "type": "nominal",
        "title": None,
        "scale": {"domain": list(_STATES), "range": shades},
        "legend": {"labelExpr": "datum.label == 'cached' ? 'cached, reusable' : datum.label"},
    }
    area = {
        "transform": [
            {"fold": list(_STATES), "as": ["state", "blocks"]},
            {"calculate": "indexof(['live', 'cached', 'free'], datum.state)", "as": "order"},
        ],
        "mark": {"type": "area", "line": {"strokeWidth": 1}, "opacity": 0.7, "interpolate": "step-after"},
        "encoding": {
            "x": step_axis(),
            "y": {"field": "blocks", "type": "quantitative", "stack": "zero", "axis": {"title": "blocks", "labelExpr": GROUPED}},
            "color": state,
            "order": {"field": "order", "type": "quantitative"},
            "tooltip": [
                {"field": "step", "type": "quantitative", "format": ",d"},
                {"field": "state", "type": "nominal"},
                {"field": "blocks", "type": "quantitative", "format": ",d"},
            ],
        },
        "params": [ZOOM],
    }
    marks = {
        "transform": style.seldom("datum.preempted > 0"),
        "mark": {"type": "point", "shape": style.MARK_SHAPES["preempted"], "filled": True, "yOffset": -6},
        "encoding": {
            "size": style.seldom_size("datum.preempted > 0", 50),
            "x": step_axis(),
            "y": {"value": 0},
            "color": {"value": style.colour("preempted", theme)},
            "tooltip": [
                {"field": "step", "type": "quantitative", "format": ",d"},
                {"field": "preempted", "type": "quantitative", "title": "preempted"},
            ],
        },
    }
    return {**base(theme, 200), "layer": [area, marks], "resolve": {"scale": {"color": "independent"}}}


def fragmentation_frame(history: Sequence[StepRecord], block_size: int) -> pd.DataFrame:
    """Columns step, wasted: share of live token slots that hold no token, 0 to 1; steps without a live block are left out."""
    rows = [(r.step, min(max(1.0 - r.kv_slots_used / (r.blocks_live * block_size), 0.0), 1.0)) for r in history if r.blocks_live]
    return pd.DataFrame(rows, columns=["step", "wasted"])


@lru_cache(maxsize=4)
def fragmentation_spec(theme: style.Theme) -> Spec:
    """Internal fragmentation over steps."""
    return {
        **base(theme, 140),
        "params": [ZOOM],
        "mark": {
            "type": "area",
            "line": {"color": theme.text, "strokeWidth": 1.2},
            "color": style.colour("wasted", theme),
            "opacity": 0.35,
        },
        "encoding": {
            "x": step_axis(),
            "y": {
                "field": "wasted",
                "type": "quantitative",
                "axis": {"title": "empty share", "format": ".2~p", "tickCount": 4},
            },
            "tooltip": [
                {"field": "step", "type": "quantitative", "format": ",d"},
                {"field": "wasted", "type": "quantitative", "format": ".3p", "title": "wasted"},
            ],
        },
    }


def reservation_frame(rows: Sequence[Reservation]) -> pd.DataFrame:
    """Columns label, order, part ("holds a token", "reserved, empty"), tokens, share (of this way's reservation)."""
    out: list[tuple[str, int, str, int, float]] = []
    for order, r in enumerate(rows):
        used_share = 1.0 - r.wasted_share if r.reserved_tokens else 0.0
        out.append((r.label, order, _USED, r.used_tokens, used_share))
        out.append((r.label, order, _EMPTY, r.wasted_tokens, r.wasted_share))
    return pd.DataFrame(out, columns=["label", "order", "part", "tokens", "share"])


_USED, _EMPTY = "holds a token", "reserved, empty"


@lru_cache(maxsize=4)
def reservation_spec(theme: style.Theme) -> Spec:
    """Token slots reserved by each way of allocating, split into used and empty."""
    y = {
        "field": "label",
        "type": "nominal",
        "sort": None,
        "axis": {"title": None, "labelLimit": 220, "domain": False, "ticks": False},
    }
    bars = {
        "mark": {"type": "bar", "height": {"band": 0.6}},
        "encoding": {
            "y": y,
            "x": {
                "field": "tokens",
                "type": "quantitative",
                "axis": {"title": "token slots reserved", "labelExpr": GROUPED, "grid": True, "tickCount": 5},
            },
            "color": {
                "field": "part",
                "type": "nominal",
                "title": None,
                "scale": {"domain": [_USED, _EMPTY], "range": [style.colour("useful", theme), style.colour("wasted", theme)]},
            },
            "order": {"field": "part", "type": "nominal", "sort": "ascending"},
            "tooltip": [
                {"field": "label", "type": "nominal", "title": "allocation"},
                {"field": "part", "type": "nominal"},
                {"field": "tokens", "type": "quantitative", "format": ",d"},
                {"field": "share", "type": "quantitative", "format": ".3p", "title": "of the reservation"},
            ],
        },
    }
    words = {
        "transform": [
            {"joinaggregate": [{"op": "sum", "field": "tokens", "as": "total"}], "groupby": ["label"]},
            {"filter": f"datum.part == '{_EMPTY}'"},
            {"calculate": "' ' + format(datum.share, '.3p') + ' empty'", "as": "words"},
        ],
        "mark": {"type": "text", "align": "left", "dx": 4, "color": theme.muted},
        "encoding": {"y": y, "x": {"field": "total", "type": "quantitative"}, "text": {"field": "words", "type": "nominal"}},
    }
    return {**base(theme, 120), "layer": [bars, words]}


def _log2_bins(values: Sequence[float], low: float) -> list[tuple[float, float]]:
    """Bins that double from `low` and cover the values."""
    top = max(values, default=low)
    count = max(1, math.ceil(math.log2(max(top / low, 1.0)) + 1e-9) + 1)
    edges = [0.0, *(low * 2**k for k in range(count))]
    return list(itertools.pairwise(edges))


def _span_label(low: float, high: float, unit: str) -> str:
    def short(value: float) -> str:
        return f"{value:.0f}" if value >= 10 or value == int(value) else f"{value:.2g}"

    return f"< {short(high)}{unit}" if low == 0 else f"{short(low)}-{short(high)}{unit}"


def holding_frame(held_s: Sequence[float]) -> pd.DataFrame:
    """Columns label, order, blocks: how many blocks were held for how long, in bins that double."""
    rows = []
    for order, (low, high) in enumerate(_log2_bins(held_s, 0.25)):
        rows.append((_span_label(low, high, " s"), order, sum(low <= value < high for value in held_s)))
    return pd.DataFrame(rows, columns=["label", "order", "blocks"])


def age_frame(view: BlockMapView) -> pd.DataFrame:
    """Columns label, order, state, blocks: steps since last use, for live and for cached blocks, in bins that double."""
    c: BlockColumns = columns(view)
    ages = c.last_use.astype(np.float64)
    used = [("live", ages[c.live]), ("cached", ages[c.cached])]
    rows: list[tuple[str, int, str, int]] = []
    top = max((float(a.max()) for _, a in used if a.size), default=1.0)
    for order, (low, high) in enumerate(_log2_bins([top], 1.0)):
        for state, values in used:
            inside = int(((values >= low) & (values < high)).sum())
            rows.append((_span_label(low, high, "") if order else "this step", order, state, inside))
    return pd.DataFrame(rows, columns=["label", "order", "state", "blocks"])


@lru_cache(maxsize=8)
def histogram_spec(theme: style.Theme, title: str, *, by_state: bool) -> Spec:
    """Counts of blocks in labelled bins; live and cached are stacked where `by_state`."""
    encoding: Spec = {
        "x": {"field": "label", "type": "nominal", "sort": None, "axis": {"title": title, "labelAngle": 0}},
        "y": {"field": "blocks", "type": "quantitative", "axis": {"title": "blocks", "labelExpr": GROUPED, "tickMinStep": 1}},
        "tooltip": [
            {"field": "label", "type": "nominal", "title": title},
            {"field": "blocks", "type": "quantitative", "format": ",d"},
        ],
    }
    if by_state:
        shades = [style.colour("useful", theme), style.colour("cached", theme)]
        scale = {"domain": list(_STATES[:2]), "range": shades}
        encoding["color"] = {"field": "state", "type": "nominal", "title": None, "scale": scale}
        encoding["tooltip"].insert(0, {"field": "state", "type": "nominal"})
    else:
        encoding["color"] = {"value": style.colour("useful", theme)}
    return {**base(theme, 180), "mark": {"type": "bar"}, "encoding": encoding}


def block_table(view: BlockMapView, tables: dict[str, Sequence[int]]) -> pd.DataFrame:
    """The block map as a table, one row a block that is not free; `tables` gives logical places, id -> block table.

    Columns block, state, owner, logical, tokens, refs, shared ("S" or ""), last_use_steps; `logical` is None without owner.
    """
    c = columns(view)
    blocks = np.flatnonzero(c.live | c.cached)
    owners = [view.owners[k - 1] if k else "" for k in c.owner[blocks].tolist()]
    place = {(request, block): logical for request, ids in tables.items() for logical, block in enumerate(ids)}
    logical = [place.get((owner, block)) for owner, block in zip(owners, blocks.tolist(), strict=True)]
    return pd.DataFrame(
        {
            "block": blocks,
            "state": np.where(c.live[blocks], "live", "cached"),
            "owner": owners,
            "logical": pd.array(logical, dtype="Int64"),
            "tokens": tokens_in_blocks(view)[blocks],
            "refs": c.refs[blocks],
            "shared": np.where(c.shared[blocks], "S", ""),
            "last_use_steps": c.last_use[blocks],
        }
    )
