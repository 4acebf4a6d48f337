"""Where a step's bytes and time go: intensity and batch, traffic by kind, host work, intensity by batch size.

intensity = FLOPs / (weights + KV read + KV written)        host = step - forward pass
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

import pandas as pd

from core.charts import style
from core.charts.kv import GROUPED, ZOOM, Spec, base, step_axis
from core.charts.roofline import batches_up_to
from core.cost_model import CostModel
from core.records import StepRecord
from core.roofline import decode_sums

BYTE_PARTS = ("weights", "KV read", "KV written", "swapped")
USE_PARTS = ("useful", "padding and held rows")
HOST_PARTS = ("schedule", "prepare", "sample", "transfer", "update", "other")


def intensity_frame(history: Sequence[StepRecord]) -> pd.DataFrame:
    """Columns step, intensity (FLOP/B), rows (requests in the step), of the steps that computed something."""
    rows = [(r.step, r.intensity, r.prefill_requests + r.decode_requests) for r in history if r.flops]
    return pd.DataFrame(rows, columns=["step", "intensity", "rows"])


@lru_cache(maxsize=8)
def by_step_spec(theme: style.Theme, field: str, title: str, colour: str, height: int = 130) -> Spec:
    """One line over steps."""
    return {
        **base(theme, height),
        "params": [ZOOM],
        "mark": {"type": "line", "interpolate": "step-after", "color": colour, "strokeWidth": 1.2},
        "encoding": {
            "x": step_axis(),
            "y": {"field": field, "type": "quantitative", "axis": {"title": title, "tickCount": 4}},
            "tooltip": [
                {"field": "step", "type": "quantitative", "format": ",d"},
                {"field": field, "type": "quantitative", "format": ".3~g", "title": title},
            ],
        },
    }


def bytes_frame(history: Sequence[StepRecord]) -> pd.DataFrame:
    """Columns step and one for each of `BYTE_PARTS`, bytes."""
    rows = [(r.step, r.weight_bytes, r.kv_read_bytes, r.kv_write_bytes, r.swap_bytes) for r in history]
    return pd.DataFrame(rows, columns=["step", *BYTE_PARTS])


def use_frame(history: Sequence[StepRecord], what: str) -> pd.DataFrame:
    """Columns step and `USE_PARTS`: FLOPs ("flops"), or bytes of KV read and written ("kv", whose weights are left out)."""
    rows = []
    for r in history:
        whole = r.flops if what == "flops" else r.kv_read_bytes + r.kv_write_bytes
        useful = r.useful_flops if what == "flops" else max(r.useful_bytes - r.weight_bytes, 0.0)
        rows.append((r.step, min(useful, whole), max(whole - useful, 0.0)))
    return pd.DataFrame(rows, columns=["step", *USE_PARTS])


def host_frame(history: Sequence[StepRecord]) -> pd.DataFrame:
    """Columns step and one for each of `HOST_PARTS`, microseconds; "other" is what none of the timers covers."""
    rows = []
    for r in history:
        parts = (r.schedule_s, r.prepare_s, r.sample_s, r.transfer_s, r.update_s)
        rows.append((r.step, *(1e6 * p for p in parts), 1e6 * max(r.host_s - sum(parts), 0.0)))
    return pd.DataFrame(rows, columns=["step", *HOST_PARTS])


@lru_cache(maxsize=8)
def stacked_spec(theme: style.Theme, parts: tuple[str, ...], title: str, axis: str, height: int = 200) -> Spec:
    """Parts of a whole over steps, stacked in the order of `parts`; shades of viridis, because they are amounts.

    Args:
        axis: "whole" for whole numbers in groups of three, else a d3 format.
    """
    labels = {"labelExpr": GROUPED} if axis == "whole" else {"format": axis}
    ramp = style.VIRIDIS
    shades = [ramp[2 + round(k * (len(ramp) - 3) / max(len(parts) - 1, 1))] for k in range(len(parts))]
    if parts == USE_PARTS:
        shades = [style.colour("useful", theme), style.colour("wasted", theme)]
    names = ", ".join(f"'{p}'" for p in parts)
    return {
        **base(theme, height),
        "params": [ZOOM],
        "transform": [
            {"fold": list(parts), "as": ["part", "value"]},
            {"calculate": f"indexof([{names}], datum.part)", "as": "order"},
        ],
        "mark": {"type": "area", "interpolate": "step-after", "opacity": 0.85},
        "encoding": {
            "x": step_axis(),
            "y": {
                "field": "value",
                "type": "quantitative",
                "stack": "zero",
                "axis": {"title": title, "tickCount": 5, **labels},
            },
            "color": {"field": "part", "type": "nominal", "title": None, "scale": {"domain": list(parts), "range": shades}},
            "order": {"field": "order", "type": "quantitative"},
            "tooltip": [
                {"field": "step", "type": "quantitative", "format": ",d"},
                {"field": "part", "type": "nominal"},
                {"field": "value", "type": "quantitative", "format": ".3~s", "title": title},
            ],
        },
    }


def intensity_by_batch(
    model: CostModel | None, context: int, most: int, history: Sequence[StepRecord]
) -> dict[str, pd.DataFrame]:
    """Data sets "curve" (batch, intensity, what) and "steps" (batch, intensity) of `intensity_by_batch_spec`.

    Args:
        model: None before a model is loaded; the curve is empty then.
        context: cached tokens of each row of the curve.
    """
    curve: list[tuple[int, float, str]] = []
    for batch in batches_up_to(most) if model else []:
        assert model is not None
        cost = model.cost_of_sums(decode_sums(model, batch, context))
        curve += [(batch, cost.intensity, WITH_KV), (batch, cost.flops / cost.weight_bytes, WEIGHTS_ALONE)]
    plain = [r for r in history if r.decode_requests and not r.prefill_tokens and r.flops]
    seen = sorted({(r.decode_requests, round(r.intensity, 3)) for r in plain})
    return {
        "curve": pd.DataFrame(curve, columns=["batch", "intensity", "what"]),
        "steps": pd.DataFrame(seen, columns=["batch", "intensity"]),
    }


WITH_KV, WEIGHTS_ALONE = "weights and KV (predicted)", "weights alone (predicted)"


@lru_cache(maxsize=4)
def intensity_by_batch_spec(theme: style.Theme, height: int = 240) -> Spec:
    """FLOP/B by batch size: the line that grows for ever, the one that KV traffic bends, and the steps that ran."""
    x = {"field": "batch", "type": "quantitative", "axis": {"title": "sequences in a decode step", "tickMinStep": 1}}
    y = {"field": "intensity", "type": "quantitative", "axis": {"title": "FLOP/B", "grid": True}}
    lines = {
        "data": {"name": "curve"},
        "mark": {"type": "line", "strokeDash": style.LINE_DASH["predicted"], "strokeWidth": 1.3},
        "encoding": {
            "x": x,
            "y": y,
            "color": {
                "field": "what",
                "type": "nominal",
                "title": None,
                "scale": {"domain": [WITH_KV, WEIGHTS_ALONE], "range": [theme.text, theme.muted]},
            },
            "strokeWidth": {
                "field": "what",
                "type": "nominal",
                "scale": {"domain": [WITH_KV, WEIGHTS_ALONE], "range": [1.6, 0.9]},
                "legend": None,
            },
        },
    }
    dots = {
        "data": {"name": "steps"},
        "mark": {"type": "point", "filled": True, "size": 22, "color": style.colour("decode", theme), "opacity": 0.6},
        "encoding": {
            "x": x,
            "y": y,
            "tooltip": [
                {"field": "batch", "type": "quantitative"},
                {"field": "intensity", "type": "quantitative", "title": "FLOP/B"},
            ],
        },
    }
    return {**base(theme, height), "layer": [lines, dots]}
