"""What the next sequence costs: measured from live steps, beside the cost model.

    marginal cost of group g = (median time of g - median time of the group below) / (mean rows of g - mean rows below)

The same difference from the cost model, at the same rows and context, stands beside each measured bar.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from statistics import fmean, median
from typing import Any

import pandas as pd

from core.charts import formats, style
from core.charts.kv import Spec, base
from core.charts.roofline import Ceilings, time_of
from core.cost_model import CostModel
from core.records import StepRecord
from core.roofline import decode_sums, model_time

LEAST_STEPS = 3
"""A group of fewer decode-only steps than this has no measured bar."""


@dataclass(frozen=True, slots=True)
class Group:
    """Decode-only steps of nearly the same number of rows.

    Attributes:
        rows: mean rows; context: mean cached tokens a row; time_s: median time.
    """

    label: str
    low: int
    high: int
    steps: int
    rows: float
    context: float
    time_s: float


@dataclass(frozen=True, slots=True)
class Marginal:
    """Seconds that one more sequence adds, for one range of batch sizes; None where it was not measured."""

    label: str
    order: int
    measured_s: float | None
    predicted_s: float
    steps: int


def group_bounds(most: int) -> list[tuple[int, int]]:
    """(1, 1), (2, 2), (3, 4), (5, 8), ... up to `most`."""
    bounds = [(1, 1)]
    low, high = 2, 2
    while low <= most:
        bounds.append((low, min(high, most)))
        low, high = high + 1, high * 2
    return bounds


def decode_groups(history: Sequence[StepRecord], kv_bytes_per_token: float, most: int, basis: str) -> list[Group]:
    """Group decode-only, unpadded steps by rows; groups with fewer than `LEAST_STEPS` steps are left out."""
    plain = [r for r in history if r.decode_requests and not r.prefill_tokens and not r.padded_tokens and r.flops]
    groups = []
    for low, high in group_bounds(most):
        inside = [r for r in plain if low <= r.decode_requests <= high]
        if len(inside) < LEAST_STEPS:
            continue
        rows = fmean(r.decode_requests for r in inside)
        context = fmean(r.kv_read_bytes / kv_bytes_per_token / r.decode_requests for r in inside)
        label = str(low) if low == high else f"{low}-{high}"
        groups.append(Group(label, low, high, len(inside), rows, context, median(time_of(r, basis) for r in inside)))
    return groups


def _predicted_s(model: CostModel, under: Ceilings, rows: float, context: float) -> float:
    """Step time at a mean number of rows, between the two whole batches beside it."""
    below = int(rows)
    share = rows - below

    def at(batch: int) -> float:
        cost = model.cost_of_sums(decode_sums(model, batch, max(round(context) - 1, 0)))
        return model_time(model, under.predicting, cost).total_s

    if share == 0:
        return at(below)
    return (1 - share) * (at(below) if below else 0.0) + share * at(below + 1)


def marginal_costs(groups: Sequence[Group], model: CostModel, under: Ceilings, most: int, context: float) -> list[Marginal]:
    """Measured beside predicted for each range of batch sizes up to `most`.

    A group without a measured group below it (other than batch 1 itself) has no measured difference. Ranges without
    steps are predicted at their ends and at `context`.
    """
    found = {g.low: g for g in groups}
    out = []
    below: Group | None = None
    for order, (low, high) in enumerate(group_bounds(most)):
        label = str(low) if low == high else f"{low}-{high}"
        group = found.get(low)
        measured: float | None = None
        if group is not None and (low == 1 or below is not None):
            before_rows, before_s = (below.rows, below.time_s) if below else (0.0, 0.0)
            measured = (group.time_s - before_s) / (group.rows - before_rows)
            predicted = _predicted_s(model, under, group.rows, group.context)
            if below:
                predicted -= _predicted_s(model, under, below.rows, below.context)
            predicted /= group.rows - before_rows
        else:
            start = _predicted_s(model, under, low - 1, context) if low > 1 else 0.0
            predicted = (_predicted_s(model, under, high, context) - start) / (high - low + 1)
        out.append(Marginal(label, order, measured, predicted, group.steps if group else 0))
        below = group or below
    return out


def marginal_frame(costs: Sequence[Marginal]) -> pd.DataFrame:
    """Columns label, order, kind, ms, words, steps; two rows a range where it was measured."""
    rows: list[tuple[str, int, str, float, str, int]] = []
    for c in costs:
        if c.measured_s is not None:
            rows.append((c.label, c.order, "measured", 1e3 * c.measured_s, formats.seconds(c.measured_s), c.steps))
        rows.append((c.label, c.order, "predicted", 1e3 * c.predicted_s, formats.seconds(c.predicted_s), c.steps))
    return pd.DataFrame(rows, columns=["label", "order", "kind", "ms", "words", "steps"])


@lru_cache(maxsize=4)
def marginal_spec(theme: style.Theme, height: int = 372) -> Spec:
    """Paired bars by batch size: measured filled, predicted outlined with dashes."""
    kinds = ["measured", "predicted"]
    y = {
        "field": "label",
        "type": "nominal",
        "sort": None,
        "axis": {"title": "sequences in the step", "domain": False, "ticks": False},
    }
    encoding: dict[str, Any] = {
        "y": y,
        "yOffset": {"field": "kind", "type": "nominal", "scale": {"domain": kinds}},
        "x": {"field": "ms", "type": "quantitative", "axis": {"title": "ms that each one adds", "tickCount": 4, "grid": True}},
        "tooltip": [
            {"field": "label", "type": "nominal", "title": "sequences"},
            {"field": "kind", "type": "nominal"},
            {"field": "words", "type": "nominal", "title": "each adds"},
            {"field": "steps", "type": "quantitative", "title": "decode-only steps"},
        ],
    }
    shade = style.colour("decode", theme)
    bars = {
        "mark": {"type": "bar", "strokeWidth": 1.2, "height": {"band": 0.85}},
        "encoding": {
            **encoding,
            "fill": {
                "field": "kind",
                "type": "nominal",
                "title": None,
                "scale": {"domain": kinds, "range": [shade, "transparent"]},
                "legend": {"symbolType": "square"},
            },
            "stroke": {"field": "kind", "type": "nominal", "scale": {"domain": kinds, "range": [shade, theme.muted]}},
            "strokeDash": {"field": "kind", "type": "nominal", "scale": {"domain": kinds, "range": [[1, 0], [4, 3]]}},
        },
    }
    words = {
        "mark": {"type": "text", "align": "left", "dx": 5, "fontSize": 10, "color": theme.muted},
        "encoding": {**encoding, "text": {"field": "words", "type": "nominal"}},
    }
    return {**base(theme, height), "layer": [bars, words]}
