"""Sweep: many what-ifs at once over knobs, hardware and load; what no other point beats, and the best under an SLO.

left: axes, search, limits, where it runs       right: best in words | throughput-latency | cost-goodput | all points
"""

from __future__ import annotations

import csv
import html
import io
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from urllib.parse import urlencode

import streamlit as st

from core.charts import formats, sweep
from core.devices import DEVICES
from core.errors import BatchscopeError
from core.records import StepRecord
from core.report.caption import facts_of_what_if
from core.snapshot import EngineSnapshot
from core.sweep import FIGURES, Axis, Goal, SearchMethod, SweepRow, SweepSpec, best_under, pareto_front
from core.sweep_job import SweepJob, SweepState
from core.sweep_text import HERE, parse_axes, parse_prices
from pages.parts import engine_access, frame, ticker, whatif_load, whatif_run
from pages.parts.whatif_form import FIELDS

JOB = "sweep_job"
AXES = "max_num_seqs = 8, 16, 32, 64\nmax_num_batched_tokens = 128, 512, 2048"
EXAMPLES = {
    "Knobs here": AXES,
    "Hardware": "device = this machine, L4, L40S, A100 80 GB SXM, H100 SXM, H200 SXM\nmax_num_seqs = 32, 128",
    "Policies": "batch_policy = chunked, whole_prompts, prefill_first, fixed\nadmission_policy = on_demand, reserve, watermark",
}
SHOWN = (
    ("output_tokens_per_s", "Output tok/s", ""),
    ("goodput_per_s", "Goodput req/s", ""),
    ("ttft_p95", "TTFT p95", "s"),
    ("itl_p95", "ITL p95", "s"),
    ("e2e_p95", "E2E p95", "s"),
    ("preemptions", "Preemptions", ""),
    ("peak_kv_usage", "Peak KV", "%"),
    ("device_hours_per_million_tokens", "Device h/1 M tok", ""),
    ("cost_per_million_tokens", "Cost/1 M tok", ""),
)
_LINKED = {
    "weight_dtype": "w_weights", "kv_dtype": "w_kv", "tensor_parallel": "w_tp", "gpu_memory_utilization": "w_share",
}  # fmt: skip
"""Knobs whose field on the What-if page has another name; the others are "w_" and the knob."""


@dataclass(frozen=True, slots=True)
class Limits:
    """The SLO that the best point must keep."""

    ttft_s: float
    itl_s: float

    def as_figures(self) -> dict[str, float]:
        return {"ttft_p95": self.ttft_s, "itl_p95": self.itl_s}


def _job() -> SweepJob | None:
    job: SweepJob | None = st.session_state.get(JOB)
    return job


def _start(spec: SweepSpec, n_jobs: int, cluster: str) -> None:
    job = SweepJob(spec, n_jobs=n_jobs, cluster=cluster.strip())
    job.start()
    st.session_state[JOB] = job


def _cancel() -> None:
    job = _job()
    if job is not None:
        job.cancel()


def _take(name: str) -> None:
    st.session_state["s_axes"] = EXAMPLES[name]


def _form(known: whatif_run.Known, snapshot: EngineSnapshot) -> tuple[SweepSpec | None, Limits, int, str]:
    """Axes, search, limits and place; the spec is None while something in them is wrong (said on the spot)."""
    st.session_state.setdefault("s_axes", st.query_params.get("s_axes") or AXES)
    with st.container(horizontal=True, gap="small", key="sweep_examples"):
        for name in EXAMPLES:
            st.button(name, key=f"sweep_{name}", on_click=_take, args=(name,))
    text = st.text_area("Axes, one knob a line", key="s_axes", height=110,
                        help="knob = value, value, ... or low to high in n. Knobs of the scheduler and the cache, device, model,"
                        " weight_dtype, kv_dtype, tensor_parallel, rate, rate_per_s, users.")  # fmt: skip
    one, two = st.columns(2)
    with one:
        method = st.selectbox("Search", list(SearchMethod), key="s_method", bind="query-params", help="guided: Optuna's TPE.")
        ttft = st.number_input("SLO: TTFT p95, s", value=1.0, min_value=0.001, key="s_ttft", bind="query-params")
    with two:
        points = st.number_input("Points", value=32, min_value=1, max_value=5000, key="s_points", bind="query-params",
                                 help="For random and guided; a grid runs all of its points.")  # fmt: skip
        itl = st.number_input("SLO: ITL p95, s", value=0.2, min_value=0.001, key="s_itl", bind="query-params")
    with st.expander("Load", icon=":material/input:", key="s_load"):
        load = whatif_load.choose(known.base.whatif, snapshot, engine_access.engine().load)
    with st.expander("Prices and place", icon=":material/dns:", key="s_place"):
        prices = st.text_area("Prices an hour", key="s_prices", placeholder="H100 SXM = 2.5", height=80)
        jobs = st.number_input("Processes, or points in flight", value=2, min_value=1, max_value=512, key="s_jobs")
        cluster = st.text_input("Cluster", key="s_cluster", placeholder="dask:tcp://10.0.0.5:8786",
                                help="Empty: this machine. dask:ADDRESS or ray:ADDRESS of a cluster.")  # fmt: skip
    limits = Limits(float(ttft), float(itl))
    try:
        price = parse_prices(prices or "")
        host_s = known.base.host_s  # as on the What-if page: a published device waits for the host as long as this machine does
        devices = {n: replace(d, price_per_hour=price.get(n, 0.0), step_overhead_s=host_s) for n, d in DEVICES.items()}
        base = load.on(known.base.whatif, scaled=True)
        axes = parse_axes(text or "", base, devices)
        goals = (Goal("output_tokens_per_s"), Goal("ttft_p95", maximise=False))
        return SweepSpec(base, axes, SearchMethod(method), int(points), goals), limits, int(jobs), cluster or ""
    except BatchscopeError as error:
        st.error(frame.plain(str(error)), icon=":material/block:")
    return None, limits, int(jobs), cluster or ""


def _best_words(best: SweepRow | None, limits: Limits, ran: int) -> None:
    slo = f"TTFT p95 within {formats.seconds(limits.ttft_s)} and ITL p95 within {formats.seconds(limits.itl_s)}"
    if best is None:
        st.html(f'<p class="bs-verdict">No point keeps the SLO yet</p><p>{html.escape(slo)}; {ran} points ran.</p>')
        return
    settings = ", ".join(f"{k} {v}" for k, v in best.settings)
    rate = formats.rate(best.figure("output_tokens_per_s"), "tok")
    more = f"{rate}, TTFT p95 {formats.seconds(best.figure('ttft_p95'))}, ITL p95 {formats.seconds(best.figure('itl_p95'))}"
    st.html(
        f'<p class="bs-verdict">Best under the SLO: {html.escape(settings)}</p>'
        f"<p>{html.escape(f'{more} · {slo} · predicted, {ran} points')}</p>"
    )


def _link(best: SweepRow, axes: Sequence[Axis]) -> str:
    """The best point as an address of the What-if page, with the load of the form, the price and the host's time."""
    known = {k: v for k, v in st.query_params.items() if k.startswith("w_")}
    known |= {_LINKED.get(k, f"w_{k}"): v for k, v in best.settings}
    devices = [a.values[i] for a, i in zip(axes, best.indices, strict=True) if a.knob == "device"]
    if devices and known["w_device"] != HERE:
        known["w_host_ms"] = f"{1e3 * devices[0].step_overhead_s:.9g}"
        if devices[0].price_per_hour:
            known["w_price"] = f"{devices[0].price_per_hour:g}"
        if "w_num_blocks" in known:
            known["w_pool"] = known.pop("w_num_blocks")  # there a pool of 0 fills the memory
    return "what_if?" + urlencode(known)


def _without_field(best: SweepRow) -> str:
    """Knobs that the What-if page has no field for, so that a link leaves them as they are live."""
    return ", ".join(k for k, _ in best.settings if k not in (*FIELDS, *_LINKED))


def _csv(rows: Sequence[SweepRow]) -> str:
    out = io.StringIO()
    names = [*FIGURES, "device_hours_per_million_tokens", "cost_per_million_tokens", "cost_per_hour"]
    knobs = [k for k, _ in rows[0].settings] if rows else []
    writer = csv.writer(out)
    writer.writerow([*knobs, *names, "problem"])
    for row in rows:
        writer.writerow([*(v for _, v in row.settings), *(row.figure(n) for n in names), row.problem])
    return out.getvalue()


def _results(state: SweepState, limits: Limits) -> None:
    told = facts_of_what_if(state.spec.base)
    varied = {a.knob: ", ".join(a.label(k) for k in range(len(a.values))) for a in state.spec.axes}
    frame.figures_are_of(replace(told, device=varied.get("device", told.device), model=varied.get("model", told.model)))
    total = state.spec.total
    share = min(len(state.rows) / total, 1.0)
    words = {"running": "running", "done": "done", "cancelled": "cancelled; the points so far stay", "failed": "failed"}
    st.progress(share, text=f"{len(state.rows)} of {total} points, {formats.seconds(state.seconds)}: {words[state.phase]}")
    if state.phase == "failed":
        st.error(frame.plain(state.message), icon=":material/block:")
    ran = [r for r in state.rows if not r.problem]
    best = best_under(ran, Goal("output_tokens_per_s"), limits.as_figures())
    _best_words(best, limits, len(ran))
    colour_by = "device" if any(a.knob == "device" for a in state.spec.axes) else state.spec.axes[0].knob
    priced = any(r.figure("cost_per_million_tokens") for r in ran)
    cost, title = (
        ("cost_per_million_tokens", "cost of 1 M output tokens")
        if priced
        else ("device_hours_per_million_tokens", "device hours for 1 M output tokens")
    )
    planes = (
        ("Which points give the most for the wait?", "output_tokens_per_s", "output tokens/s", True, "ttft_p95", "TTFT p95, s"),
        ("What does a request in time cost?", "goodput_per_s", "goodput, requests/s", True, cost, title),
    )
    for column, (question, x, x_title, up, y, y_title) in zip(st.columns(2, gap="medium"), planes, strict=True):
        with column:
            front = pareto_front(ran, (Goal(x, up), Goal(y, maximise=False)))
            rings = "the one point" if len(front) == 1 else f"the {len(front)} points"
            how = f"Right and down is better. Rings: {rings} that no other beats. Star: best under the SLO."
            frame.figure_head(question, "predicted", how=how)
            data = sweep.plane_frame(ran, x, y, front, best, colour_by)
            if data.empty:
                words = (
                    f"No point has both {x_title} and {y_title} above 0."
                    if state.phase == "done"
                    else "The points appear as they are simulated."
                )
                frame.empty(words, key=f"plane_{x}", height=340)
            else:
                frame.chart(data, sweep.plane_spec(frame.theme(), x_title, y_title, colour_by), key=f"sweep_{x}", alt=question)
    if state.rows:
        _table(state, best)


def _table(state: SweepState, best: SweepRow | None) -> None:
    ordered = sorted(state.rows, key=lambda r: -(r.figure("output_tokens_per_s") or 0.0))
    broken = sum(bool(r.problem) for r in ordered)
    frame.figure_head(
        "What did each point give?",
        f"{len(ordered)} points · predicted",
        how=f"Best throughput first; {broken} could not run. A click on a column's head sorts by it.",
    )
    with st.container(horizontal=True, key="sweep_files"):
        st.download_button("Points as CSV", _csv(ordered), "sweep.csv", "text/csv", key="sweep_csv")
        if best is not None:
            lost = _without_field(best)
            about = f"It has no field for {lost}: as live there." if lost else None
            st.link_button("Best in What-if", _link(best, state.spec.axes), help=about)
    st.dataframe(sweep.rows_frame(ordered[:300], SHOWN), hide_index=True, height=320, key="sweep_rows")


def _nothing(snapshot: EngineSnapshot, history: Sequence[StepRecord]) -> None:
    """The ticking part of this page is its frame only."""


def _page() -> None:
    access = engine_access.engine()
    known = whatif_run.opened(access, "sweep")
    if known is None:
        return
    left, right = st.columns([0.27, 0.73], gap="medium")
    job = _job()
    running = job is not None and job.state.is_running
    with left:
        try:
            spec, limits, jobs, cluster = _form(known, known.snapshot)
        except BatchscopeError as error:
            st.error(frame.plain(str(error)), icon=":material/block:")
            return
        size = f"{spec.total} points of {spec.base.load.num_requests or 'all'} requests" if spec and spec.base.load else ""
        with st.container(horizontal=True, key="sweep_buttons"):
            st.button("Run the sweep", type="primary", key="sweep_run", on_click=_start, args=(spec, jobs, cluster),
                      disabled=spec is None or running, help=size or None)  # fmt: skip
            st.button("Cancel", key="sweep_cancel", on_click=_cancel, disabled=not running)
        st.caption(size)
    with right:

        @st.fragment(run_every=1.0 if running else None)
        def show() -> None:
            now = _job()
            if now is None:
                frame.empty(
                    "No sweep has run. What is entered now takes some seconds to a minute.",
                    "Run the sweep" if spec is not None else None,
                    None if spec is None else partial(_start, spec, jobs, cluster),
                    key="sweep",
                    height=420,
                )
                return
            _results(now.state, limits)
            if running and not now.state.is_running:
                st.rerun()

        show()


ticker.live(
    "Which configuration is best, here or on other hardware?",
    _nothing,
    about="Every point is a whole run of the live engine's scheduler on a virtual clock; nothing touches the live engine.",
)
_page()
frame.footer()
