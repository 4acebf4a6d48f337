"""Latency: how long requests wait and how evenly tokens come, by tenant, against targets, and which requests were worst.

hero: histograms TTFT | ITL | TPOT | E2E      targets: attainment, goodput      tabs: over time | by tenant | worst requests
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pandas as pd
import streamlit as st

from core.charts import formats
from core.charts import latency as figures
from core.charts.arrow import table
from core.records import RequestRecord, StepRecord
from core.slo import Attainment, attainment, meets, worst
from core.snapshot import EngineSnapshot
from pages.parts import engine_access, frame, ticker
from pages.parts.facts import facts
from pages.parts.request_sets import choose

HERE = Path(__file__).resolve().parent
TABS = ("Over time", "By tenant", "Worst requests")
WORST = 25
_IDS = "latency_worst_ids"
WORST_BY = {"TTFT": "ttft_s", "longest gap": "max_itl_s", "TPOT": "tpot_s", "E2E": "e2e_s", "time preempted": "preempted_s"}


def _targets() -> tuple[float | None, float | None]:
    """Targets for TTFT and for each gap, s; 0 is no target. They begin with those of the load."""
    load = engine_access.engine().load
    first = (load.slo_ttft_s if load else None) or 2.0
    second = (load.slo_itl_s if load else None) or 0.5
    with st.container(horizontal=True, key="latency_targets", vertical_alignment="bottom"):
        ttft = st.number_input(
            "TTFT target (s)", 0.0, 3600.0, first, 0.1, key="slo_ttft", bind="query-params", width=150, help="0: none"
        )
        itl = st.number_input(
            "ITL target (s)", 0.0, 600.0, second, 0.01, key="slo_itl", bind="query-params", width=150,
            help="For the longest gap of a request; 0: none",
        )  # fmt: skip
        st.button("Give the load these targets", on_click=_give_targets, help="Goodput in the status and in /metrics counts them")
    return ttft or None, itl or None


def _give_targets() -> None:
    state = st.session_state
    answer = engine_access.engine().set_load(slo_ttft_s=state["slo_ttft"] or None, slo_itl_s=state["slo_itl"] or None)
    if not answer.ok:
        st.toast(frame.plain(answer.message), icon=":material/block:")


def _span(records: Sequence[RequestRecord], kind: str) -> str:
    return f"last {formats.count(len(records))} ended requests · {kind}"


def _histograms(digest: figures.Digest, kind: str) -> None:
    frame.figure_head(
        "How are the latencies distributed?",
        _span(digest.records, kind),
        how="Requests (for ITL: gaps) by time on a logarithmic axis, stacked by tenant. Lines: p50, p95 and p99 of all.",
    )
    frame.legend(list(zip(sorted(set(digest.names.values())), figures.CATEGORIES, strict=False)))
    for column, (metric, (name, meaning)) in zip(st.columns(4, gap="medium"), figures.METRICS.items(), strict=True):
        found = digest.overall(metric)
        with column:
            facts(
                [
                    (
                        f"{name} p50",
                        formats.seconds(found.p50),
                        f"p95 {formats.seconds(found.p95)}, p99 {formats.seconds(found.p99)}",
                    )
                ]
            )
            data = {"bins": table(digest.histogram(metric)), "rules": table(figures.rule_frame(found))}
            spec = {**figures.histogram_spec(frame.theme()), "datasets": data}
            frame.chart(None, spec, key=f"latency_{metric}", alt=f"Histogram of {name}, {meaning}, with p50, p95 and p99")


def _per_s(rate: float | None) -> str:
    return formats.NONE if rate is None else f"{formats.figures(rate)}{formats.THIN}req/s"


def _promise(ttft_s: float | None, itl_s: float | None) -> str:
    parts = [f"TTFT within {formats.seconds(ttft_s)}" if ttft_s else "", f"no gap over {formats.seconds(itl_s)}" if itl_s else ""]
    return " and ".join(p for p in parts if p) or "no target"


def _attained(snapshot: EngineSnapshot, records: Sequence[RequestRecord], ttft_s: float | None, itl_s: float | None) -> None:
    found = attainment(records, ttft_s, itl_s)
    promise, kpis = _promise(ttft_s, itl_s), snapshot.kpis
    facts(
        (
            ("SLO attainment", formats.percent(found.share), promise),
            ("Goodput", _per_s(found.goodput_per_s), f"{found.met} in {formats.seconds(found.span_s)}"),
            ("TTFT met alone", formats.percent(attainment(records, ttft_s, None).share), "first token in time"),
            ("ITL met alone", formats.percent(attainment(records, None, itl_s).share), "no gap too long"),
            ("Finished", _per_s(kpis.requests_per_s), f"last {formats.seconds(kpis.window_s)}"),
        )
    )  # fmt: skip


def _over_time(digest: figures.Digest, kind: str) -> None:
    metric = st.segmented_control(
        "Latency", list(figures.METRICS), default="ttft", key="latency_of", bind="query-params", required=True,
        format_func=lambda m: figures.METRICS[m][0], label_visibility="collapsed",
    )  # fmt: skip
    name, meaning = figures.METRICS[metric or "ttft"]
    frame.figure_head(
        f"Does {name} hold over time, for every tenant?",
        _span(digest.records, kind),
        how=f"{name}: {meaning}. Bold: p95 of the requests that ended in a span of time; thin: p50.",
    )
    data = table(digest.over_time(metric or "ttft"))
    frame.chart(data, figures.over_time_spec(frame.theme()), key="latency_time", alt=f"p50 and p95 of {name} over time by tenant")


def _outcome(found: Attainment) -> dict[str, object]:
    share, rate = found.share, found.goodput_per_s
    return {
        "requests": found.counted,
        "SLO met (%)": None if share is None else round(100 * share, 1),
        "goodput (req/s)": None if rate is None else round(rate, 3),
    }


def _by_tenant(digest: figures.Digest, kind: str, targets: tuple[float | None, float | None]) -> None:
    frame.figure_head("Is every tenant served alike?", _span(digest.records, kind), how="Times in milliseconds.")
    rows = []
    for name, members in digest.by_tenant():
        row: dict[str, object] = {"tenant": name, **_outcome(attainment(members, *targets))}
        for metric, (label, _) in figures.METRICS.items():
            found = digest.of_tenant(name, metric)
            for rank in ("p50", "p95", "p99"):
                value = getattr(found, rank)
                row[f"{label} {rank}"] = None if value is None else float(f"{1e3 * value:.3g}")
        rows.append(row)
    st.dataframe(pd.DataFrame(rows), hide_index=True, height=260, key="latency_tenants")


def _open_story() -> None:
    chosen = st.session_state["latency_worst"].selection.rows
    ids = st.session_state.get(_IDS, ())
    if chosen and chosen[0] < len(ids):
        choose(ids[chosen[0]])
        ticker.go_to(HERE / "story.py")


def _worst(records: Sequence[RequestRecord], kind: str, targets: tuple[float | None, float | None]) -> None:
    by = st.segmented_control(
        "Worst by",
        list(WORST_BY),
        default="TTFT",
        key="worst_by",
        bind="query-params",
        required=True,
        label_visibility="collapsed",
    )
    found = worst(records, WORST_BY[by or "TTFT"], WORST)
    frame.figure_head(
        "Which requests were served worst, and why?",
        _span(records, kind),
        how="Times in seconds. Tick a row to open the request's story.",
    )
    st.session_state[_IDS] = tuple(r.request_id for r in found)
    rows = [
        {
            "request": r.request_id,
            "tenant": r.tenant,
            "SLO": "met" if meets(r, *targets) else "missed",
            "TTFT": r.ttft_s,
            "in the queue": r.queue_s,
            "longest gap": r.max_itl_s,
            "TPOT": r.tpot_s,
            "E2E": r.e2e_s,
            "preempted": r.num_preemptions,
            "time preempted": r.preempted_s,
            "prompt tokens": r.prompt_tokens,
            "from the cache": r.cached_tokens,
            "output tokens": r.output_tokens,
            "ended by": r.finish_reason,
        }
        for r in found
    ]
    data = pd.DataFrame(rows)
    timed = ("TTFT", "in the queue", "longest gap", "TPOT", "E2E", "time preempted")
    config = {name: st.column_config.NumberColumn(format="%.3f") for name in timed}
    st.dataframe(
        data,
        hide_index=True,
        height=360,
        key="latency_worst",
        on_select=_open_story,
        selection_mode="single-row",
        column_config=config,
    )


def render(snapshot: EngineSnapshot, history: Sequence[StepRecord]) -> None:
    """Draw the page from one picture and the records of ended requests."""
    records, kind = engine_access.engine().requests(), frame.kind_of(snapshot)
    digest = figures.digest_of(records)
    with st.container(key="latency_hero"):
        if records:
            _histograms(digest, kind)
        else:
            frame.empty("No request has ended yet; the first latencies appear with the first one.", key="latency", height=260)
    targets = _targets()
    _attained(snapshot, records, *targets)
    tabs = st.tabs(TABS, key="latency_details", bind="query-params")
    drawings = (
        lambda: _over_time(digest, kind),
        lambda: _by_tenant(digest, kind, targets),
        lambda: _worst(records, kind, targets),
    )
    for tab, draw in zip(tabs, drawings, strict=True):
        with tab:
            if tab.open and records:
                draw()
    frame.footer()


ticker.live("How long do requests wait, and how evenly do tokens come?", render)
