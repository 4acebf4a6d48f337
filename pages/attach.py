"""Attach: other people's servers by their metrics pages: their scheduler, their dots on a roofline, what binds them.

table: a row a server, the sum last      tiles      roofline | scheduler over time
tabs: latency | replicas | findings | predicted beside observed | configuration
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import pandas as pd
import streamlit as st

from core.attach.fleet import Summary, summarise
from core.attach.forecast import guess_model
from core.attach.scraper import TargetState
from core.attach.verdicts import WINDOW_S, judge
from core.attach.watch import Watch, get_watch
from core.charts import attach, attach_spec, attach_tiles, formats, roofline
from core.charts.arrow import table
from core.cost_model import CostModel, cost_model
from core.detectors import Verdict
from core.devices import DeviceSpec
from core.records import StepRecord
from core.report.caption import RunFacts
from core.roofline import CurvePoint
from core.snapshot import EngineSnapshot
from pages.parts import frame, ticker
from pages.parts.attach_form import DEVICES, UNKNOWN, answer, device_of, toolbar, watch_own
from pages.parts.attach_prediction import prediction
from pages.parts.attach_table import server_table
from pages.parts.facts import facts
from pages.parts.tiles import show_tiles

ALL = "all"
TABS = ("Latency", "Replicas", "Findings", "Predicted beside observed", "Configuration")
HERO_HEIGHT = 380


@dataclass(frozen=True, slots=True)
class View:
    """What the figures of one tick share: the chosen servers, and the time they are drawn at."""

    states: tuple[TargetState, ...]
    seen: Summary
    now_s: float
    scheduler: pd.DataFrame
    tokens: pd.DataFrame
    latency: pd.DataFrame
    device: DeviceSpec | None

    @property
    def one(self) -> TargetState | None:
        """The server, if it is a single one."""
        return self.states[0] if len(self.states) == 1 else None

    @property
    def aside(self) -> str:
        """Range and kind for the head of a figure."""
        span = min(self.seen.span_s, attach.SHOWN_S) if self.scheduler.empty else -float(self.scheduler["ago_s"].min())
        names = self.one.name if self.one else f"{len(self.states)} servers"
        return f"{names}, last {formats.seconds(max(round(span), 1))} · measured"


def _choose(states: Sequence[TargetState]) -> str:
    options = [ALL, *(s.name for s in states)] if len(states) > 1 else [s.name for s in states]
    if st.session_state.get("server") not in options:
        st.session_state["server"] = options[0]
    picked = st.pills("Server", options, key="server", bind="query-params", label_visibility="collapsed", required=True)
    return picked or options[0]


def _common_device(states: Sequence[TargetState], snapshot: EngineSnapshot) -> DeviceSpec | None:
    """The device of all of them, by their targets or by the choice on the page; None if they differ or none is known."""
    return _given_device(states) or device_of(str(st.session_state.get("attach_ceilings") or UNKNOWN), snapshot)


def _given_device(states: Sequence[TargetState]) -> DeviceSpec | None:
    known = {s.target.device for s in states if s.target is not None}
    return next(iter(known)) if len(known) == 1 else None


def _view(watch: Watch, states: tuple[TargetState, ...], snapshot: EngineSnapshot) -> View:
    now_s = watch.now()
    seen = summarise(states, now_s)
    shown_s = max([s.scraped_s for s in states if s.scraped_s is not None], default=now_s)
    shown_s = max(shown_s, now_s - now_s % 2.0)  # figures move with the scrapes, or every 2 s where none comes
    return View(
        states,
        seen,
        now_s,
        attach.scheduler_frame(states, shown_s, seen.seats),
        attach.tokens_frame(states, shown_s),
        attach.latency_frame(states, shown_s),
        _common_device(states, snapshot),
    )


def _model(view: View) -> CostModel | None:
    """Geometry of the only model that is served, for the curve; None if it is not known."""
    given = {s.target.model for s in view.states if s.target and s.target.model}
    if len(given) == 1:
        return next(iter(given))
    specs = {guess_model(s.page.model) for s in view.states if s.page}
    spec = next(iter(specs)) if len(specs) == 1 else None
    return None if spec is None else cost_model(spec)


def _curve(view: View, under: roofline.Ceilings) -> tuple[CurvePoint, ...]:
    model = _model(view)
    if model is None:
        return ()
    contexts = [s.page.context_tokens for s in view.states if s.page and s.page.context_tokens]
    context = round(sum(contexts) / len(contexts)) if contexts else 256
    most = max((s.seats or round(s.page.gauges.get("running", 1)) for s in view.states if s.page), default=1)
    return roofline.curve_points(model, under, max(context, 1), max(most, 1))


def _roofline(view: View) -> None:
    frame.figure_head(
        "Where do the scrapes lie?",
        view.aside,
        how="A dot is a scrape interval, idle time included, the newest is ringed. Circle: the server's own FLOP and byte"
        " counters; diamond: derived from tokens, running requests and geometry. Dashes: predicted decode, batch by batch.",
    )
    with st.container(key="attach_device_slot"):
        if _given_device(view.states) is None:
            st.selectbox(
                "Ceilings of", DEVICES, key="attach_ceilings", bind="query-params", width=230, label_visibility="collapsed"
            )
    if view.device is None:
        what = "The device of this server is not known, so there are no ceilings to draw it under: choose one."
        frame.empty(what, key="attach_roofline", height=HERO_HEIGHT)
        return
    under = roofline.Ceilings(view.device, "measured" if view.device.measured else "published")
    dots = attach.dot_frame(view.states, view.now_s)
    if dots.empty:
        frame.empty(
            "No scrape with work in it yet, or no FLOP and byte counters and no known model to derive them from.",
            key="attach_roofline",
            height=HERO_HEIGHT,
        )
        return
    data = roofline.roofline_data(dots, _curve(view, under), under)
    spec = attach_spec.dots_spec(frame.theme(), HERO_HEIGHT)
    sets = {name: table(part) for name, part in data.items()}
    alt = "Log-log roofline: scrape intervals as dots at FLOP/B and FLOP/s under the ceilings of the server's device"
    frame.chart(None, {**spec, "datasets": sets}, key="attach_roofline", alt=alt)


def _scheduler(view: View) -> None:
    frame.figure_head(
        "How full is the batch?",
        view.aside,
        how="Area: running. Line: waiting. Dots: seats. Below: KV usage; a triangle is a preemption.",
    )
    if view.scheduler.empty:
        frame.empty("The second scrape brings the first figures.", key="attach_scheduler", height=HERO_HEIGHT)
        return
    rows = table(view.scheduler)
    alt = "Running and waiting requests over time, with the seats"
    frame.chart(rows, attach_spec.scheduler_spec(frame.theme()), key="attach_scheduler", alt=alt)
    frame.chart(rows, attach_spec.kv_spec(frame.theme()), key="attach_kv", alt="KV usage over time, preemptions marked")


def _latency(view: View) -> None:
    means = [frame.plain(s.name) for s in view.states if s.page is not None and s.page.itl_is_mean]
    frame.figure_head(
        "How long do requests wait, and how even are the gaps?",
        view.aside,
        how="Thick p50, thin p95, from the growth of the server's histograms; a value is as exact as their buckets."
        + (f" {', '.join(means)}: no single gaps exported, ITL is the mean gap of each request." if means else ""),
    )
    if view.latency.empty:
        frame.empty("No request got a token in the time shown.", key="attach_latency", height=230)
        return
    spec = attach_spec.latency_spec(frame.theme())
    frame.chart(table(view.latency), spec, key="attach_latency", alt="TTFT, ITL and E2E quantiles over time")


def _replicas(states: Sequence[TargetState], now_s: float, tokens: pd.DataFrame) -> None:
    frame.figure_head(
        "Which replica is the odd one?",
        f"{len(states)} servers · measured by the servers",
        how="A row a server, time to the right, newest at the end.",
    )
    measure = st.segmented_control("Measure", list(attach.MEASURES), default="KV usage", key="attach_measure", required=True)
    rows = attach.replica_frame(states, now_s, measure or "KV usage")
    if rows.empty:
        frame.empty("No server exports this figure.", key="attach_replicas", height=120)
    else:
        spec = attach_spec.replica_spec(frame.theme(), len(states), measure or "KV usage")
        frame.chart(table(rows), spec, key="attach_replicas", alt="The measure by server and time, as colour")
    frame.figure_head("Who makes the tokens?", "measured by the servers", how="Output tokens/s by server, stacked to their sum.")
    if tokens.empty:
        frame.empty("The second scrape brings the first rates.", key="attach_tokens", height=120)
        return
    frame.chart(
        table(tokens), attach_spec.tokens_spec(frame.theme()), key="attach_tokens", alt="Output tokens/s by server, stacked"
    )


def _findings(states: Sequence[TargetState], now_s: float) -> None:
    frame.figure_head(
        "Do they suffer from a failure mode?",
        f"windows of {formats.seconds(WINDOW_S)} over what was watched",
        how="The detectors of the Failure modes page, each as far as a metrics page lets it judge.",
    )
    rows = []
    for state in states:
        for v in _verdicts(state):
            began = state.intervals[v.began_at].start_s if v.found and v.began_at is not None else None
            rows.append(
                {
                    "server": state.name,
                    "failure mode": v.name,
                    "found": "yes" if v.found else "cannot tell" if v.value is None else "no",
                    "began": f"{formats.seconds(now_s - began)} ago" if began is not None else "",
                    "in words": v.sentence,
                }
            )
    order = {"yes": 0, "no": 1, "cannot tell": 2}
    rows.sort(key=lambda row: order[row["found"]])
    st.dataframe(pd.DataFrame(rows), hide_index=True, height=388, key="attach_findings")


def _verdicts(state: TargetState) -> tuple[Verdict, ...]:
    """The detectors' verdicts, judged once a scrape."""
    kept = st.session_state.setdefault("attach_verdicts", {})
    key = (state.scraped_s, len(state.intervals))
    if kept.get(state.name, (None,))[0] != key:
        kept[state.name] = (key, judge(state))
    found: tuple[Verdict, ...] = kept[state.name][1]
    return found


def _configuration(states: Sequence[TargetState]) -> None:
    frame.figure_head("What do the servers say of themselves?", "labels of cache_config_info", how="– is not exported.")
    rows = []
    for s in states:
        page, target = s.page, s.target
        rows.append(
            {
                "server": s.name,
                "address": s.address,
                "engine": page.engine if page else formats.NONE,
                "model": page.model if page else formats.NONE,
                "engines": page.engines if page else None,
                "block size": page.block_size if page else None,
                "KV blocks": page.num_blocks if page else None,
                "seats": s.seats,
                "device": target.device.name if target and target.device else UNKNOWN,
                "listed by": (target.source if target else "") or "hand",
                "scrape": formats.seconds(s.scrape_s),
            }
        )
    st.dataframe(pd.DataFrame(rows), hide_index=True, key="attach_configuration")
    for s in states[:1]:
        if s.page is not None and s.page.info:
            st.dataframe(pd.DataFrame(sorted(s.page.info.items()), columns=["label", "value"]), hide_index=True, height=240)


def _served(view: View) -> RunFacts:
    """What the captions of saved figures say: the models that are served and on what; their load is not known."""
    models = sorted({s.page.model for s in view.states if s.page and s.page.model})
    return RunFacts(", ".join(models), "", view.device.name if view.device else "", "", None, "measured")


def _details(view: View) -> None:
    drawings = (
        lambda: _latency(view),
        lambda: _replicas(view.states, view.now_s, view.tokens),
        lambda: _findings(view.states, view.now_s),
        lambda: _predicted(view),
        lambda: _configuration(view.states),
    )
    for tab, draw in zip(st.tabs(TABS, key="attach_details", bind="query-params"), drawings, strict=True):
        with tab:
            if tab.open:
                draw()


def _predicted(view: View) -> None:
    if view.one is None:
        frame.empty("A prediction is for one server: choose one above.", key="attach_predicted", height=120)
        return
    prediction(view.one, view.now_s, view.device)


def _nothing_watched(watch: Watch) -> None:
    frame.empty(
        "No server is watched yet. Add one by the address of its /metrics, read targets from Prometheus, or watch this one.",
        "Watch this dashboard",
        lambda: watch_own(watch),
        key="attach",
        height=260,
    )


def render(snapshot: EngineSnapshot, history: Sequence[StepRecord]) -> None:
    """Draw the page from the latest states."""
    watch = get_watch()
    states = watch.states()
    names = [s.name for s in states]
    with st.container(horizontal=True, vertical_alignment="center", horizontal_alignment="distribute", key="attach_top"):
        with st.container(key="attach_choice", width="stretch"):
            chosen = _choose(states) if states else None
        one = chosen if chosen != ALL else None
        toolbar(watch, names, one)
    answer()
    with st.container(key="attach_body"):
        if not states:
            _nothing_watched(watch)
            return
        server_table(states, watch.now(), one)
        view = _view(watch, tuple(s for s in states if one is None or s.name == one), snapshot)
        frame.figures_are_of(_served(view))
        show_tiles(attach_tiles.tiles(view.seen, view.scheduler, view.tokens, view.latency), key="attach_tiles")
        inferred = any(s.seats_inferred for s in view.states)
        facts(attach_tiles.facts(view.seen, view.device, inferred))
        left, right = st.columns([0.56, 0.44], gap="medium")
        with left:
            _roofline(view)
        with right:
            _scheduler(view)
        _details(view)
    frame.footer()


ticker.live("What binds a server that is not this one?", render, about="vLLM, SGLang and TensorRT-LLM by their metrics pages.")
