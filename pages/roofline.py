"""Roofline: each real step under the ceilings of the machine, and what the next sequence would cost.

hero: log-log roofline | marginal cost        tabs: intensity and batch | bytes | host time | intensity by batch size
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

import pandas as pd
import streamlit as st

from core.charts import formats, kv, marginal, roofline, roofline_spec, step_cost, style
from core.charts.arrow import table
from core.cost_model import CostModel
from core.devices import DEVICE_PRESETS
from core.executor import ExecutorInfo
from core.records import StepRecord
from core.roofline import CurvePoint, intensity_ceiling, marginal_cost_s, ridge_batch
from core.snapshot import EngineSnapshot, RequestView, Totals
from pages.parts import frame, ticker
from pages.parts.facts import facts
from pages.parts.request_sets import CHOSEN, chosen_request, find

HERE = "this machine, measured"
DEVICES = (HERE, *(d.name for d in DEVICE_PRESETS))
PUBLISHED = "H100 SXM"
GROUP_STEPS = 2000
LINE_STEPS = 300
TABS = ("Intensity and batch", "Bytes by step", "Useful and wasted", "Host time", "Intensity by batch size")
HERO_HEIGHT = 430


@dataclass(frozen=True, slots=True)
class View:
    """All that the figures of one tick share."""

    snapshot: EngineSnapshot
    history: Sequence[StepRecord]
    model: CostModel
    under: roofline.Ceilings
    basis: str
    context: int
    most: int
    points: tuple[CurvePoint, ...]
    here: bool
    chosen: RequestView | None


def _controls(snapshot: EngineSnapshot) -> tuple[str, str]:
    with st.container(horizontal=True, key="roofline_controls"):
        basis = st.segmented_control(
            "Time of a step",
            [roofline.FORWARD, roofline.WHOLE],
            default=roofline.FORWARD,
            key="time",
            bind="query-params",
            required=True,
        )
        device = st.selectbox("Ceilings of", DEVICES, key="ceilings", width=230, bind="query-params")
        _request(snapshot)
    return basis or roofline.FORWARD, device or HERE


def _request(snapshot: EngineSnapshot) -> None:
    """Whose steps are circled: the request that is chosen on any page."""
    ids = [r.request_id for r in (*snapshot.running, *snapshot.preempted)]
    now = chosen_request()
    if now is not None and now not in ids:
        ids.insert(0, now)
    st.selectbox("Circle the steps of", ids, index=None, key=CHOSEN, placeholder="a request", width=200, bind="query-params")


def _mean_context(snapshot: EngineSnapshot) -> int:
    cached = [r.computed_tokens for r in snapshot.running if r.computed_tokens]
    return round(fmean(cached)) if cached else 128


def _view(snapshot: EngineSnapshot, history: Sequence[StepRecord], info: ExecutorInfo, basis: str, device: str) -> View | None:
    """None before the probe has run."""
    here = device == HERE
    if here and snapshot.ceilings is None:
        return None
    if here:
        assert snapshot.ceilings is not None
        under = roofline.measured_ceilings(snapshot.ceilings, roofline.host_time(history, basis))
    else:
        under = roofline.Ceilings(next(d for d in DEVICE_PRESETS if d.name == device), "published")
    model = roofline.model_of(info)
    context, most = _mean_context(snapshot), snapshot.config.scheduler.max_num_seqs
    points = roofline.curve_points(model, under, context, most)
    return View(snapshot, history, model, under, basis, context, most, points, here, find(snapshot, chosen_request()))


def _life(chosen: RequestView | None) -> tuple[float, float] | None:
    """From when to when a request was in the batch, engine time in s; None if it never was."""
    if chosen is None or chosen.admitted_s is None:
        return None
    return chosen.admitted_s, math.inf if chosen.finished_s is None else chosen.finished_s


def _draw(spec: dict[str, Any], data: dict[str, pd.DataFrame], *, key: str, alt: str) -> None:
    frame.chart(None, {**spec, "datasets": {name: table(part) for name, part in data.items()}}, key=key, alt=alt)


def _hero(view: View) -> None:
    shown = view.history[-roofline.DOTS :]
    life = _life(view.chosen)
    dots = roofline.dot_frame(shown, view.basis, life) if view.here else roofline.modelled_dots(shown, view.under.device, life)
    lit = f" Circled: steps of {view.chosen.request_id}." if view.chosen and life else ""
    span = frame.span_of(shown) if view.here else f"the same steps on {view.under.device.name} · predicted"
    frame.figure_head(
        "Where do the steps lie under the ceilings?",
        span,
        how="A dot is a step, the newest is ringed, old ones fade. On the slopes memory sets the time, under the roof arithmetic."
        f" Dashes: the model for batch 1 to {formats.count(view.most)}, {formats.count(view.context)} tokens of context each."
        f"{lit}",
        on_screen=kv.HOW_TO_ZOOM,
    )
    data = roofline.roofline_data(dots, view.points, view.under)
    _draw(
        roofline_spec.roofline_spec(frame.theme(), HERO_HEIGHT, 8),
        data,
        key="roofline",
        alt="Log-log roofline: steps as dots at FLOP/B and FLOP/s under bandwidth and compute ceilings, with the predicted curve",
    )


def _marginal(view: View) -> None:
    per_token = float(view.snapshot.info.kv_bytes_per_token) if view.snapshot.info else 1.0
    groups = marginal.decode_groups(view.history, per_token, view.most, view.basis) if view.here else []
    costs = marginal.marginal_costs(groups, view.model, view.under, view.most, view.context)
    contexts = tuple(r.computed_tokens for r in view.snapshot.running)
    following = marginal_cost_s(view.model, view.under.predicting, contexts, view.context)
    number = len(contexts) + 1
    frame.figure_head(
        f"Sequence {formats.count(number)} would add {formats.seconds(following)}",
        "predicted",
        how="Time that each further decoding sequence adds to a step. The first pays for reading all weights. No filled bar: no"
        " decode steps of such sizes to compare yet.",
    )
    frame.chart(
        table(marginal.marginal_frame(costs)),
        marginal.marginal_spec(frame.theme(), HERO_HEIGHT),
        key="marginal",
        alt="Time that a further sequence adds, by batch size, measured beside predicted",
    )


def _bound(view: View) -> tuple[str, str]:
    record = view.snapshot.step_record
    if record is None or not record.flops:
        return formats.NONE, "no step yet"
    ridge = view.under.device.ridge_point
    share = record.intensity / ridge
    name = "memory" if share < 1 else "compute"
    return name, f"{formats.figures(record.intensity)} FLOP/B, {formats.figures(share)} × the ridge"


def _graphs(totals: Totals) -> tuple[tuple[str, str, str], ...]:
    """How decode-only steps were launched; nothing where no step ever asked for a captured shape."""
    asked = totals.graph_replays + totals.graph_misses
    if not asked:
        return ()
    note = f"{formats.count(totals.graph_captures)} shapes captured, {formats.count(totals.graph_misses)} misses"
    return (("Graph replays", formats.percent(totals.graph_replays / asked), note),)


def _facts(view: View) -> None:
    kpis, ridge = view.snapshot.kpis, view.under.device.ridge_point
    reach = ridge_batch(view.model, view.under.device, view.context)
    limit = intensity_ceiling(view.model, view.context)
    bound, why = _bound(view)
    against = f"of the {kpis.mbu_ceiling} bandwidth" if kpis.mbu_ceiling else "after the probe"
    facts(
        (
            ("Step is bound by", bound, why),
            (
                "MFU",
                formats.percent(kpis.mfu),
                f"of {formats.rate(view.snapshot.ceilings.peak_flops, 'FLOP')}" if view.snapshot.ceilings else "after the probe",
            ),
            ("MBU", formats.percent(kpis.mbu), against),
            (
                "Ridge point",
                f"{formats.figures(ridge)} FLOP/B",
                f"reached at batch {formats.count(reach)}" if reach else "KV traffic keeps it out of reach",
            ),
            ("Decode ceiling", f"{formats.figures(limit)} FLOP/B", f"at {formats.count(view.context)} tokens of context"),
            ("Host cost", formats.percent(kpis.host_share), f"{formats.seconds(kpis.host_us * 1e-6)} a step"),
            *_graphs(view.snapshot.totals),
        )
    )


def _intensity(history: Sequence[StepRecord]) -> None:
    ground = frame.theme()
    rows = step_cost.intensity_frame(history)
    how = "FLOP/B above, requests in the step below."
    frame.figure_head("How do intensity and batch move together?", frame.span_of(history), how=how, on_screen=kv.HOW_TO_ZOOM)
    spec = step_cost.by_step_spec(ground, "intensity", "FLOP/B", ground.text)
    frame.chart(table(rows[["step", "intensity"]]), spec, key="intensity", alt="Arithmetic intensity by step")
    spec = step_cost.by_step_spec(ground, "rows", "requests", style.colour("decode", ground))
    frame.chart(table(rows[["step", "rows"]]), spec, key="batch", alt="Requests in the step, by step")


def _bytes(history: Sequence[StepRecord]) -> None:
    how = "Weights cost the same whatever the batch; KV read grows with every token of context."
    frame.figure_head("What does a step read and write?", frame.span_of(history), how=how)
    spec = step_cost.stacked_spec(frame.theme(), step_cost.BYTE_PARTS, "bytes a step", "~s", 240)
    alt = "Weights, KV read, KV written and swapped bytes by step, stacked"
    frame.chart(table(step_cost.bytes_frame(history)), spec, key="bytes", alt=alt)


def _useful(history: Sequence[StepRecord]) -> None:
    """What of a step's work and traffic served a token: all of it, but for the padding and held rows of a fixed batch."""
    flops = sum(r.flops for r in history)
    share = sum(r.useful_flops for r in history) / flops if flops else None
    frame.figure_head(
        "How much of the work is of use?",
        frame.span_of(history),
        how=f"{formats.percent(share)} of the FLOPs of these steps. Grey: padding, and rows held after their end.",
    )
    for part, title, unit in (("flops", "FLOPs a step", "~s"), ("kv", "KV bytes a step", "~s")):
        spec = step_cost.stacked_spec(frame.theme(), step_cost.USE_PARTS, title, unit, 150)
        data = table(step_cost.use_frame(history, part))
        frame.chart(data, spec, key=f"useful_{part}", alt=f"{title}: useful and wasted, stacked")


def _host(history: Sequence[StepRecord], share: float) -> None:
    frame.figure_head(
        "How long does the host hold the device up?",
        frame.span_of(history),
        how=f"Everything outside the forward pass, now {formats.percent(share)} of the time; transfer is the pipe to the worker.",
    )
    spec = step_cost.stacked_spec(frame.theme(), step_cost.HOST_PARTS, "µs a step", "whole", 240)
    frame.chart(table(step_cost.host_frame(history)), spec, key="host", alt="Host time by part and step, stacked")


def _by_batch(snapshot: EngineSnapshot, history: Sequence[StepRecord]) -> None:
    context, most = _mean_context(snapshot), snapshot.config.scheduler.max_num_seqs
    frame.figure_head(
        "Why does intensity stop growing with the batch?",
        f"context {formats.count(context)} tokens · predicted, dots are steps that ran",
        how="Weights are read once for all, alone they give 2 × batch / bytes a weight; each sequence adds KV bytes of its own.",
    )
    model = roofline.model_of(snapshot.info) if snapshot.info else None
    data = step_cost.intensity_by_batch(model, context, most, history)
    alt = "FLOP/B by batch size, with and without KV traffic"
    _draw(step_cost.intensity_by_batch_spec(frame.theme()), data, key="by_batch", alt=alt)


def _details(snapshot: EngineSnapshot, history: Sequence[StepRecord]) -> None:
    """The tabs; they need no ceilings, so they are there before the probe."""
    recent = history[-LINE_STEPS:]
    drawings = (
        lambda: _intensity(recent),
        lambda: _bytes(recent),
        lambda: _useful(recent),
        lambda: _host(recent, snapshot.kpis.host_share),
        lambda: _by_batch(snapshot, history),
    )
    for tab, draw in zip(st.tabs(TABS, key="roofline_details", bind="query-params"), drawings, strict=True):
        with tab:
            if tab.open:
                draw()


def _show_published() -> None:
    st.session_state["ceilings"] = PUBLISHED


def render(snapshot: EngineSnapshot, history: Sequence[StepRecord]) -> None:
    """Draw the page from one picture."""
    basis, device = _controls(snapshot)
    view = _view(snapshot, history, snapshot.info, basis, device) if snapshot.info else None
    with st.container(key="roofline_hero"):
        if view is not None:
            left, right = st.columns([0.66, 0.34], gap="medium")
            with left:
                _hero(view)
            with right:
                _marginal(view)
            _facts(view)
        elif snapshot.info is None:
            frame.empty("The model is still loading; its steps appear here.", key="model", height=HERO_HEIGHT)
        else:
            what = "The ceilings of this machine are not measured yet: the probe runs once, right after the model is loaded."
            frame.empty(what, f"Show the ceilings of an {PUBLISHED}", _show_published, key="ceilings", height=HERO_HEIGHT)
    _details(snapshot, history)
    frame.footer()


ticker.live("Is the batch bound by memory or by arithmetic?", render, history_steps=GROUP_STEPS, look_back=True)
