"""The constant specification of the roofline: one for each theme, every number comes as data.

Layers, back to front: ceilings, their names, ridges, the predicted curve, dots of steps, batch sizes, the newest ringed.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

from core.charts import style
from core.charts.kv import Spec, base
from core.charts.roofline import OLDEST

MIXES = ("decode", "mixed", "prefill")
"""What the tokens of a step were; a shape for each."""

_MIX: list[Spec] = [
    {"calculate": "datum.prefill_tokens / max(datum.prefill_tokens + datum.decode_tokens, 1)", "as": "prefill_share"},
    {"calculate": "datum.prefill_tokens == 0 ? 'decode' : datum.decode_tokens == 0 ? 'prefill' : 'mixed'", "as": "mix"},
]

PICK = "pick"
_DOT = 38
_DECADE = "abs(log(datum.value) / LN10 - round(log(datum.value) / LN10)) < 0.001"


_NARROW = "width < 330"

_NAME_PLACES: dict[str, Spec] = {
    "right": {"align": "left", "dx": 12, "dy": 5},
    "corner": {"align": "center", "dy": {"expr": f"{_NARROW} ? -24 : -9"}, "dx": {"expr": f"{_NARROW} ? 24 : 0"}},
    "above": {"align": "right", "dy": -21},
}
"""Where the name of a ceiling stands beside its anchor: right of the lower slope, over the upper's corner, above the roof."""


def _xy() -> dict[str, Any]:
    quiet = {"condition": {"test": _DECADE, "value": 1}, "value": 0.4}
    grid = {"grid": True, "domain": False, "ticks": False, "tickCount": 6, "gridOpacity": quiet}
    x = {"field": "intensity", "type": "quantitative", "scale": {"type": "log", "nice": False}}
    y = {"field": "flops_per_s", "type": "quantitative", "scale": {"type": "log", "nice": False}}
    return {
        "x": {**x, "axis": {"title": "arithmetic intensity, FLOP/B", "format": "~g", **grid}},
        "y": {**y, "axis": {"title": "FLOP/s", "format": "~s", **grid}},
    }


def _ceiling_layers(theme: style.Theme) -> list[Spec]:
    dash: Spec = {
        "field": "kind",
        "type": "nominal",
        "title": None,
        "scale": {
            "domain": ["measured", "published", "predicted"],
            "range": [[1, 0], [8, 2, 2, 2], style.LINE_DASH["predicted"]],
        },
        "legend": {
            "symbolType": "stroke",
            "symbolStrokeColor": theme.text,
            "symbolSize": 400,
            "offset": 14,
            "values": ["measured", "predicted"],
        },
    }
    words: Spec = {"baseline": "middle", "color": theme.muted, "fontSize": 11}
    names: list[Spec] = [
        {
            "data": {"name": "ceilings"},
            "transform": [{"filter": f"datum.label != '' && datum.side == '{side}'"}],
            "mark": {"type": "text", **words, **place},
            "encoding": {"text": {"field": "label", "type": "nominal"}},
        }
        for side, place in _NAME_PLACES.items()
    ]
    return [
        {"data": {"name": "corners"}, "mark": {"type": "point", "opacity": 0}},
        {
            "data": {"name": "ceilings"},
            "params": [
                {
                    "name": "zoom",
                    "select": {"type": "interval", "zoom": "wheel![event.shiftKey]", "clear": "dblclick"},
                    "bind": "scales",
                }
            ],
            "mark": {"type": "line", "color": theme.text, "strokeWidth": 1.3, "opacity": 0.85},
            "encoding": {"detail": {"field": "name", "type": "nominal"}, "strokeDash": dash},
        },
        *names,
        {
            "data": {"name": "ridges"},
            "mark": {"type": "rule", "color": theme.line, "strokeDash": [2, 3]},
            "encoding": {"y2": {"value": {"expr": "height"}}},
        },
        # The cache's ridge has room left of its line, below the slope; that of DRAM right of its line, at the foot.
        {
            "data": {"name": "ridges"},
            "transform": [{"filter": "datum.name == 'cache'"}],
            "mark": {"type": "text", **words, "align": "right", "angle": 270, "dx": -28, "dy": -7},
            "encoding": {"text": {"field": "label", "type": "nominal"}},
        },
        {
            "data": {"name": "ridges"},
            "transform": [{"filter": "datum.name != 'cache'"}],
            "mark": {"type": "text", **words, "align": "left", "angle": 270, "dx": {"expr": f"{_NARROW} ? 30 : 6"}, "dy": 8},
            "encoding": {"y": {"value": {"expr": "height"}}, "text": {"field": "label", "type": "nominal"}},
        },
        {
            "data": {"name": "curve"},
            "mark": {"type": "line", "color": style.colour("decode", theme), "strokeWidth": 2},
            "encoding": {"strokeDash": {"datum": "predicted", **{k: v for k, v in dash.items() if k != "field"}}},
        },
    ]


def _picked(theme: style.Theme, channels: Spec) -> Spec:
    """What makes dots answer: parameters, and the channels of the dot that is picked or pointed at."""
    by_step: Spec = {"type": "point", "fields": ["step"]}
    picked, near = ({"param": name, "empty": False} for name in (PICK, "near"))
    return {
        "params": [
            {"name": PICK, "select": by_step},
            {"name": "near", "select": {**by_step, "on": "pointerover", "clear": "pointerout"}},
        ],
        "encoding": {
            **channels,
            "size": {"condition": [{**picked, "value": 130}, {**near, "value": 90}], "value": _DOT},
            "opacity": {"condition": {**picked, "value": 1}, **channels["opacity"]},
            "stroke": {"condition": {**picked, "value": theme.text}, "value": "transparent"},
        },
    }


def _ring(test: str, size: float, width: float, colour: str) -> Spec:
    return {
        "data": {"name": "dots"},
        "mark": {"type": "point", "filled": False, "strokeWidth": width, "color": colour, "clip": True},
        "encoding": {"size": style.seldom_size(test, size)},
    }


def _dot_layers(theme: style.Theme, legend_gap: int, pick: bool) -> list[Spec]:
    shape = {
        "field": "mix",
        "type": "nominal",
        "title": None,
        "scale": {"domain": list(MIXES), "range": ["circle", "diamond", "square"]},
        "legend": {
            "orient": "bottom",
            "symbolFillColor": theme.muted,
            "symbolStrokeWidth": 0,
            "offset": legend_gap,
        },
    }
    fade = {"field": "age", "type": "quantitative", "scale": {"domain": [0, OLDEST], "range": [0.95, 0.1]}, "legend": None}
    tip = [
        {"field": "step", "type": "quantitative", "format": ",d"},
        {"field": "mix", "type": "nominal", "title": "kind of step"},
        {"field": "prefill_tokens", "type": "quantitative", "title": "prefill tokens"},
        {"field": "decode_tokens", "type": "quantitative", "title": "decode tokens"},
        {"field": "intensity", "type": "quantitative", "format": ".3~g", "title": "FLOP/B"},
        {"field": "flops_per_s", "type": "quantitative", "format": ".3~s", "title": "FLOP/s"},
        {"field": "ms", "type": "quantitative", "format": ".3~g", "title": "ms"},
    ]
    colour = {
        "field": "prefill_share",
        "type": "quantitative",
        "title": "prefill share",
        "scale": {
            "domain": [0, 1],
            "range": [style.colour("decode", theme), style.colour("prefill", theme)],
            "interpolate": "rgb",
        },
        "legend": None,
    }
    order = {"field": "step", "type": "quantitative"}
    dots = {"color": colour, "shape": shape, "opacity": fade, "order": order, "tooltip": tip}
    return [
        {
            "data": {"name": "dots"},
            "transform": _MIX,
            "mark": {"type": "point", "filled": True, "size": _DOT, "clip": True},
            **(_picked(theme, dots) if pick else {"encoding": dots}),
        },
        {
            "data": {"name": "curve"},
            "transform": [{"filter": "datum.label != ''"}],
            "mark": {"type": "point", "filled": True, "size": 18, "color": theme.text, "clip": True},
            "encoding": {
                "tooltip": [
                    {"field": "batch", "type": "quantitative", "title": "predicted, batch"},
                    {"field": "intensity", "type": "quantitative", "format": ".3~g", "title": "FLOP/B"},
                    {"field": "flops_per_s", "type": "quantitative", "format": ".3~s", "title": "FLOP/s"},
                    {"field": "ms", "type": "quantitative", "format": ".3~g", "title": "ms"},
                ],
            },
        },
        {
            "data": {"name": "curve"},
            "transform": [{"filter": "datum.label != ''"}],
            "mark": {"type": "text", "align": "right", "dx": -6, "dy": -6, "color": theme.text, "fontSize": 10, "clip": True},
            "encoding": {"text": {"field": "label", "type": "nominal"}},
        },
        _ring("datum.lit", 90, 1.3, style.SHARED),
        _ring("datum.age == 0", 190, 2, theme.text),
    ]


@lru_cache(maxsize=4)
def roofline_spec(theme: style.Theme, height: int = 430, legend_gap: int = 8, pick: bool = False) -> Spec:
    """The picture for one theme; draw it with `roofline_data` as its named data sets.

    Args:
        legend_gap: room between the axis title and the legend under it, px.
        pick: a click picks the step of a dot (the selection `PICK`), pointing at one makes it larger.
    """
    return {
        **base(theme, height),
        "padding": {"left": 4, "right": 22, "top": 4, "bottom": 4},
        "encoding": _xy(),
        "layer": [*_ceiling_layers(theme), *_dot_layers(theme, legend_gap, pick)],
        "usermeta": {"embedOptions": {"renderer": "canvas"}},
    }
