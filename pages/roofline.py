"""Roofline: each real step under the ceilings of the machine, and what the next sequence would cost.

hero: log-log roofline | marginal cost        tabs: intensity and batch | bytes | host time | intensity by batch size
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

import streamlit as st

from core.charts import formats, kv, marginal, roofline, roofline_spec
from core.charts.arrow import table
from core.cost_model import CostModel
from core.devices import DEVICE_PRESETS
from core.executor import ExecutorInfo
from core.records import StepRecord
from core.roofline import CurvePoint, intensity_ceiling, marginal_cost_s, ridge_batch
from core.snapshot import EngineSnapshot, RequestView, Totals
from pages.parts import engine_access, frame, roofline_tabs, step_strip, ticker
from pages.parts.facts import facts
from pages.parts.request_sets import CHOSEN, chosen_request, find

HERE = "this machine, measured"
DEVICES = (HERE, *(d.name for d in DEVICE_PRESETS))
PUBLISHED = "H100 SXM"
GROUP_STEPS = 2000
HERO_HEIGHT = 390


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
    raised: str
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
    # A look back is drawn under what is known now: the machine was no slower then.
    known = engine_access.engine().latest().ceilings or snapshot.ceilings
    if here and known is None:
        return None
    if here:
        assert known is not None
        under = roofline.measured_ceilings(known, roofline.host_time(history, basis))
    else:
        under = roofline.Ceilings(next(d for d in DEVICE_PRESETS if d.name == device), "published")
    model = roofline.model_of(info)
    context, most = _mean_context(snapshot), snapshot.config.scheduler.max_num_seqs
    points = roofline.curve_points(model, under, context, most)
    raised = roofline.changes_in_words(known) if here and known is not None else ""
    return View(snapshot, history, model, under, basis, context, most, points, here, raised, find(snapshot, chosen_request()))


def _hero(view: View) -> None:
    shown = view.history[-roofline.DOTS :]
    life = step_strip.life(view.chosen)
    dots = roofline.dot_frame(shown, view.basis, life) if view.here else roofline.modelled_dots(shown, view.under.device, life)
    lit = f" Circled: steps of {view.chosen.request_id}." if view.chosen and life else ""
    span = frame.span_of(shown) if view.here else f"the same steps on {view.under.device.name} · predicted"
    frame.figure_head(
        "Where do the steps lie under the ceilings?",
        span,
        how="A dot is a step, blue decode to orange prefill; the newest is ringed, old ones fade. On the slopes memory sets"
        f" the time, under the roof arithmetic. Dashes: the model for batch 1 to {formats.count(view.most)},"
        f" {formats.count(view.context)} tokens of context each.{lit}",
        on_screen=kv.HOW_TO_ZOOM,
    )
    data = roofline.roofline_data(dots, view.points, view.under)
    found = roofline_tabs.draw_named(
        roofline_spec.roofline_spec(frame.theme(), HERO_HEIGHT, pick=True),
        data,
        key="roofline",
        picks=(roofline_spec.PICK,),
        alt="Log-log roofline: steps as dots at FLOP/B and FLOP/s under bandwidth and compute ceilings, with the predicted curve",
    )
    step_strip.draw(view.snapshot, shown, _picked_step(found))
    if view.raised:
        st.caption(f"Ceilings: {view.raised}. A step may not exceed them, so the probe had been disturbed.")


def _picked_step(found: dict[str, Any]) -> int | None:
    """The step of the dot that was clicked; None after a click beside all dots."""
    rows = found.get(roofline_spec.PICK)
    step = rows[0].get("step") if isinstance(rows, list) and rows else None
    return int(step) if isinstance(step, int | float) else None


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
        " decode steps of such sizes to compare yet; a load of fewer users, or the tour, makes some.",
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
    roofline_tabs.draw(snapshot, history, _mean_context(snapshot))
    frame.footer()


ticker.live("Is the batch bound by memory or by arithmetic?", render, history_steps=GROUP_STEPS, look_back=True)
