"""How watched servers are drawn: constant specifications, one for each theme; every number comes as data.

The frames are those of `core.charts.attach`.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

from core.charts import style
from core.charts.kv import Spec, base
from core.charts.roofline_spec import roofline_spec

_X: Spec = {
    "field": "ago_s",
    "type": "quantitative",
    "scale": {"nice": False, "zero": False},
    "axis": {"title": "seconds before now", "tickCount": 6, "labelExpr": "datum.value == 0 ? 'now' : format(datum.value, 'd')"},
}


_LEFT = {"minExtent": 38, "maxExtent": 38}
_SECONDS = [p * 10.0**e for e in range(-4, 4) for p in (1, 3)]


def _tip(*fields: tuple[str, str, str]) -> list[Spec]:
    return [{"field": name, "type": "quantitative", "title": title, "format": fmt} for name, title, fmt in fields]


@lru_cache(maxsize=4)
def scheduler_spec(theme: style.Theme, height: int = 270) -> Spec:
    """Running as an area, waiting as a line, seats as a dotted line; below it KV usage with preemptions marked."""
    series = ["running", "waiting", "seats"]
    colours = [style.colour("decode", theme), style.colour("waiting", theme), theme.text]
    fold: list[Spec] = [{"fold": series, "as": ["series", "requests"]}, {"filter": "isValid(datum.requests)"}]
    tip = _tip(("ago_s", "s before now", "d"), ("running", "running", ".3~g"), ("waiting", "waiting", ".3~g"))
    colour = {
        "field": "series",
        "type": "nominal",
        "title": None,
        "scale": {"domain": series, "range": colours},
        "legend": {"symbolType": "stroke", "symbolStrokeWidth": 2},
    }
    axis = {"title": "requests", "tickCount": 4, "grid": True, **_LEFT}
    requests: Spec = {"field": "requests", "type": "quantitative", "axis": axis}
    running: Spec = {"field": "running", "type": "quantitative"}
    return {
        **base(theme, height),
        "layer": [
            {
                "params": [style.ZOOM],
                "mark": {"type": "area", "color": colours[0], "opacity": 0.25, "interpolate": "step-before"},
                "encoding": {"x": _X, "y": {**running, "axis": axis}},
            },
            {
                "transform": fold,
                "mark": {"type": "line", "interpolate": "step-before"},
                "encoding": {
                    "x": _X,
                    "y": requests,
                    "color": colour,
                    "strokeDash": {
                        "field": "series",
                        "type": "nominal",
                        "scale": {"domain": series, "range": [[1, 0], [1, 0], [2, 3]]},
                        "legend": None,
                    },
                },
            },
            {"mark": {"type": "rule", "opacity": 0}, "encoding": {"x": _X, "tooltip": tip}},
        ],
    }


@lru_cache(maxsize=4)
def kv_spec(theme: style.Theme, height: int = 130) -> Spec:
    """KV usage 0 to 1; a triangle where requests were preempted."""
    y: Spec = {
        "field": "kv_usage",
        "type": "quantitative",
        "scale": {"domain": [0, 1]},
        "axis": {"title": "KV usage", "format": ".0%", "values": [0, 0.5, 1], "grid": True, **_LEFT},
    }
    mark = {"type": "point", "shape": "triangle-down", "filled": True, "color": style.colour("preempted", theme)}
    tip = _tip(("ago_s", "s before now", "d"), ("kv_usage", "KV usage", ".1%"), ("preemptions", "preemptions", "d"))
    return {
        **base(theme, height),
        "layer": [
            {
                "params": [style.ZOOM],
                "mark": {"type": "line", "color": style.colour("useful", theme), "interpolate": "step-before"},
                "encoding": {"x": _X, "y": y},
            },
            {
                "transform": style.seldom("datum.preemptions > 0", "ago_s"),
                "mark": mark,
                "encoding": {
                    "x": _X,
                    "y": {"value": 8},
                    "tooltip": tip,
                    "size": style.seldom_size("datum.preemptions > 0", 60),
                },
            },
            {"mark": {"type": "rule", "opacity": 0}, "encoding": {"x": _X, "tooltip": tip}},
        ],
    }


@lru_cache(maxsize=4)
def tokens_spec(theme: style.Theme, height: int = 210) -> Spec:
    """Output tokens/s by server, stacked."""
    tip: list[Spec] = [
        {"field": "name", "type": "nominal", "title": "server"},
        *_tip(("tokens_per_s", "tokens/s", ".3~s"), ("ago_s", "s before now", "d")),
    ]
    return {
        **base(theme, height),
        "params": [style.ZOOM],
        "mark": {"type": "area", "interpolate": "step-before", "stroke": theme.ground, "strokeWidth": 0.5},
        "encoding": {
            "x": _X,
            "y": {
                "field": "tokens_per_s",
                "type": "quantitative",
                "stack": "zero",
                "axis": {"title": "output tokens/s", "format": "~s", "grid": True, "tickCount": 4},
            },
            "color": {
                "field": "name",
                "type": "nominal",
                "title": None,
                "scale": {"range": list(style.VIRIDIS[2:10:2])},
                "legend": {"symbolLimit": 6},
            },
            "tooltip": tip,
        },
    }


@lru_cache(maxsize=4)
def latency_spec(theme: style.Theme, height: int = 230) -> Spec:
    """TTFT, ITL and E2E: p50 thick, p95 thin, on a logarithmic axis."""
    figures = ["TTFT", "ITL", "E2E"]
    colours = [style.colour("prefill", theme), style.colour("decode", theme), style.colour("finished", theme)]
    colour: Spec = {"field": "figure", "type": "nominal", "title": None, "scale": {"domain": figures, "range": colours}}
    seconds: Spec = {
        "field": "seconds",
        "type": "quantitative",
        "scale": {"type": "log", "nice": False, "padding": 6},
        "axis": {
            "title": None,
            "grid": True,
            "values": _SECONDS,
            "labelExpr": "datum.value < 1 ? format(1000 * datum.value, '~g') + ' ms' : format(datum.value, '~g') + ' s'",
        },
    }
    wide: Spec = {
        "field": "rank",
        "type": "nominal",
        "title": None,
        "scale": {"domain": ["p50", "p95"], "range": [2.2, 0.9]},
        "legend": {"symbolType": "stroke", "symbolStrokeColor": theme.text},
    }
    tip: list[Spec] = [
        {"field": "figure", "type": "nominal"},
        {"field": "rank", "type": "nominal", "title": "quantile"},
        *_tip(("seconds", "s", ".3~s"), ("ago_s", "s before now", "d")),
    ]
    xy = {"x": _X, "y": seconds, "color": colour}
    return {
        **base(theme, height),
        "layer": [
            {
                "params": [style.ZOOM],
                "mark": {"type": "line"},
                "encoding": {**xy, "strokeWidth": wide, "detail": {"field": "rank", "type": "nominal"}},
            },
            {"mark": {"type": "point", "filled": True, "size": 14}, "encoding": {**xy, "tooltip": tip}},
        ],
    }


@lru_cache(maxsize=32)
def replica_spec(theme: style.Theme, rows: int, measure: str) -> Spec:
    """Servers as rows, time as columns, the measure as colour; one specification a number of rows."""
    share = measure == "KV usage"
    amount: Spec = {
        "field": "value",
        "type": "quantitative",
        "title": measure,
        "scale": {"range": list(style.VIRIDIS), **({"domain": [0, 1]} if share else {"zero": True})},
        "legend": {"format": ".0%" if share else "~s", "gradientLength": 140, "gradientThickness": 8},
    }
    tip: list[Spec] = [
        {"field": "name", "type": "nominal", "title": "server"},
        {"field": "text", "type": "nominal", "title": measure},
        *_tip(("until_s", "s before now", "d")),
    ]
    return {
        **base(theme, min(max(26 * rows, 52), 520)),
        "params": [style.ZOOM],
        "mark": {"type": "rect", "stroke": None},
        "encoding": {
            "x": _X,
            "x2": {"field": "until_s"},
            "y": {"field": "name", "type": "nominal", "sort": None, "axis": {"title": None, "labelLimit": 150}},
            "color": amount,
            "tooltip": tip,
        },
    }


@lru_cache(maxsize=4)
def dots_spec(theme: style.Theme, height: int = 400) -> Spec:
    """The roofline of `core.charts.roofline_spec` with scrapes for dots: circle exported, diamond derived."""
    spec: Spec = copy.deepcopy(roofline_spec(theme, height))
    tip: list[Spec] = [
        {"field": "name", "type": "nominal", "title": "server"},
        {"field": "origin", "type": "nominal", "title": "FLOPs and bytes"},
        *_tip(
            ("ago_s", "s before now", "d"),
            ("running", "running", ".3~g"),
            ("intensity", "FLOP/B", ".3~g"),
            ("flops_per_s", "FLOP/s", ".3~s"),
        ),
    ]
    for layer in _layers_on(spec, "dots"):
        if "tooltip" not in layer.get("encoding", {}):
            continue
        layer["encoding"]["tooltip"] = tip
        if "color" in layer["encoding"]:
            layer["encoding"]["color"]["legend"] = {
                "format": ".0%",
                "gradientLength": 60,
                "gradientThickness": 8,
                "values": [0, 1],
                "orient": "bottom",
                "direction": "horizontal",
                "offset": 16,
            }
        if "shape" in layer["encoding"]:
            layer["encoding"]["shape"] = {
                "field": "origin",
                "type": "nominal",
                "title": None,
                "scale": {"domain": ["exported", "derived"], "range": ["circle", "diamond"]},
                "legend": {"orient": "bottom", "symbolFillColor": theme.muted, "symbolStrokeWidth": 0, "offset": 16},
            }
    return spec


def _layers_on(spec: Mapping[str, Any], name: str) -> list[dict[str, Any]]:
    return [layer for layer in spec["layer"] if layer.get("data", {}).get("name") == name]
