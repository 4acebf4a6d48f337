"""Pictures of watched servers: scheduler over time, latency over time, scrapes on a roofline, replicas side by side.

    interval  ->  one row at `ago_s` (seconds before now, negative), one dot on the roofline of its device

Intervals in; data frames and constant specifications out.
"""

from __future__ import annotations

import copy
import math
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from statistics import median
from typing import Any

import numpy as np
import pandas as pd

from core.attach.fleet import ANSWERING, recent
from core.attach.interval import Interval
from core.attach.scraper import TargetState
from core.charts import formats, style
from core.charts.kv import Spec, base
from core.charts.roofline_spec import roofline_spec

SHOWN_S = 300.0
MAX_DOTS = 400
MAX_CELLS = 1800

MEASURES: dict[str, Callable[[Interval], float | None]] = {
    "KV usage": lambda i: i.kv_usage,
    "running": lambda i: i.running,
    "waiting": lambda i: i.waiting,
    "output tokens/s": lambda i: i.output_tokens_per_s,
    "ITL p95, ms": lambda i: None if i.itl.p95 is None else 1e3 * i.itl.p95,
    "preemptions": lambda i: i.preemptions,
}
"""What replicas can be compared by."""


Bins = dict[int, dict[str, list[Interval]]]
"""Bin of the scraper's clock -> server -> its intervals; bins stay where they are while time goes on."""


def _ended_in(states: Sequence[TargetState], now_s: float, shown_s: float, width: float) -> Bins:
    """Intervals by the bin in which they ended, for what is counted."""
    found: Bins = defaultdict(lambda: defaultdict(list))
    for state in states:
        for interval in recent(state, now_s, shown_s):
            found[math.floor(interval.end_s / width)][state.name].append(interval)
    return found


def _lasting_in(states: Sequence[TargetState], now_s: float, shown_s: float, width: float) -> Bins:
    """Intervals by every bin in which they lasted, for gauges and rates, so that no server is missing in between.

    The newest bin is the last one that every answering server has reached.
    """
    found: Bins = defaultdict(lambda: defaultdict(list))
    ends = [s.scraped_s for s in states if s.scraped_s is not None and s.status in ANSWERING and s.intervals]
    last = math.floor(min(ends, default=now_s) / width - 1e-9)
    for state in states:
        for interval in recent(state, now_s, shown_s):
            first = math.floor(interval.start_s / width + 1e-9)
            for index in range(first, min(math.floor(interval.end_s / width - 1e-9), last) + 1):
                found[index][state.name].append(interval)
    return found


def width_s(states: Sequence[TargetState], shown_s: float = SHOWN_S) -> float:
    """Width of a bin: the median scrape interval, and at most 150 bins."""
    spans = [s.intervals[-1].span_s for s in states if s.intervals]
    return max(median(spans) if spans else 2.0, shown_s / 150)


_SCHEDULER_COLUMNS = ("ago_s", "running", "waiting", "seats", "kv_usage", "preemptions", "full", "tokens_a_step")


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


def _mean_of(values: Sequence[float]) -> float | None:
    return _mean(values) if values else None


def scheduler_frame(states: Sequence[TargetState], now_s: float, seats: int | None, shown_s: float = SHOWN_S) -> pd.DataFrame:
    """Rows over time: requests and preemptions in sum over the servers, KV usage, full batches and tokens a step as means."""
    width = width_s(states, shown_s)
    counted = _ended_in(states, now_s, shown_s, width)
    rows = []
    for index, servers in sorted(_lasting_in(states, now_s, shown_s, width).items()):
        runs = list(servers.values())

        def total(field: str, runs: list[list[Interval]] = runs) -> float | None:
            parts = [_mean(known) for run in runs if (known := [getattr(i, field) for i in run if getattr(i, field) is not None])]
            return sum(parts) if parts else None

        usage = total("kv_usage")
        rows.append(
            {
                "ago_s": min((index + 1) * width - now_s, 0.0),
                "running": total("running"),
                "waiting": total("waiting"),
                "seats": float(seats) if seats is not None else None,
                "kv_usage": None if usage is None else usage / len(runs),
                "preemptions": sum(i.preemptions or 0.0 for run in counted.get(index, {}).values() for i in run),
                "full": _mean_of([float(i.full_batch) for run in runs for i in run if i.full_batch is not None]),
                "tokens_a_step": _mean_of([i.mean_tokens_per_step for run in runs for i in run if i.mean_tokens_per_step]),
            }
        )
    return pd.DataFrame(rows, columns=list(_SCHEDULER_COLUMNS))


def tokens_frame(states: Sequence[TargetState], now_s: float, shown_s: float = SHOWN_S) -> pd.DataFrame:
    """Rows (ago_s, name, tokens_per_s): output tokens a second by server."""
    width = width_s(states, shown_s)
    rows = [
        (min((index + 1) * width - now_s, 0.0), name, _mean(known))
        for index, servers in sorted(_lasting_in(states, now_s, shown_s, width).items())
        for name, run in servers.items()
        if (known := [i.output_tokens_per_s for i in run if i.output_tokens_per_s is not None])
    ]
    return pd.DataFrame(rows[-MAX_CELLS:], columns=["ago_s", "name", "tokens_per_s"])


def latency_frame(states: Sequence[TargetState], now_s: float, shown_s: float = SHOWN_S) -> pd.DataFrame:
    """Rows (ago_s, figure, rank, seconds) from the added histograms of each bin; a bin without observations has none."""
    width = max(width_s(states, shown_s), shown_s / 60)
    rows: list[tuple[float, str, str, float]] = []
    for index, servers in sorted(_ended_in(states, now_s, shown_s, width).items()):
        for word, label in (("ttft", "TTFT"), ("itl", "ITL"), ("e2e", "E2E")):
            parts = [i.histograms[word] for run in servers.values() for i in run if word in i.histograms]
            if not parts:
                continue
            total = parts[0]
            for part in parts[1:]:
                total = total.plus(part)
            for rank, share in (("p50", 0.5), ("p95", 0.95)):
                value = total.quantile(share)
                if value:
                    rows.append((min((index + 1) * width - now_s, 0.0), label, rank, value))
    return pd.DataFrame(rows, columns=["ago_s", "figure", "rank", "seconds"])


def replica_frame(states: Sequence[TargetState], now_s: float, measure: str, shown_s: float = SHOWN_S) -> pd.DataFrame:
    """Cells (ago_s, until_s, name, value, text): one row a server, one column a bin."""
    value_of = MEASURES[measure]
    width = max(width_s(states, shown_s), shown_s * len(states) / MAX_CELLS)
    rows = []
    for index, servers in sorted(_lasting_in(states, now_s, shown_s, width).items()):
        for name, run in servers.items():
            known = [v for i in run if (v := value_of(i)) is not None]
            if known:
                value = _mean(known)
                text = formats.percent(value) if measure == "KV usage" else formats.figures(value)
                rows.append((index * width - now_s, min((index + 1) * width - now_s, 0.0), name, value, text))
    return pd.DataFrame(rows[-MAX_CELLS:], columns=["ago_s", "until_s", "name", "value", "text"])


def dot_frame(states: Sequence[TargetState], now_s: float, shown_s: float = SHOWN_S) -> pd.DataFrame:
    """One row a scrape interval in which work was done, oldest first.

    Columns step (its number), name, ago_s, intensity, flops_per_s, prefill_tokens, decode_tokens, running, origin, age.
    """
    found = [
        (i.end_s, s.name, i) for s in states for i in recent(s, now_s, shown_s) if i.intensity and i.flops_per_s and i.bytes_per_s
    ]
    found.sort(key=lambda row: row[0])
    kept = found[-MAX_DOTS:]
    return pd.DataFrame(
        {
            "step": list(range(len(kept))),
            "name": [name for _, name, _ in kept],
            "ago_s": [end_s - now_s for end_s, _, _ in kept],
            "intensity": [float(i.intensity or 0) for _, _, i in kept],
            "flops_per_s": [float(i.flops_per_s or 0) for _, _, i in kept],
            "prefill_tokens": [float(i.prompt_tokens or 0) for _, _, i in kept],
            "decode_tokens": [float(i.output_tokens or 0) for _, _, i in kept],
            "running": [float(i.running or 0) for _, _, i in kept],
            "origin": ["derived" if i.derived else "exported" for _, _, i in kept],
            "age": np.linspace(1.0, 0.0, len(kept)).tolist() if len(kept) > 1 else [0.0] * len(kept),
        }
    )


# -- specifications ------------------------------------------------------------------------------------------

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
    mark = {"type": "point", "shape": "triangle-down", "filled": True, "size": 60, "color": style.colour("preempted", theme)}
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
                "transform": [{"filter": "datum.preemptions > 0"}],
                "mark": mark,
                "encoding": {"x": _X, "y": {"value": 8}, "tooltip": tip},
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
        layer["encoding"]["tooltip"] = tip
        if "color" in layer["encoding"]:
            layer["encoding"]["color"]["legend"] |= {"orient": "bottom", "offset": 16}
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
