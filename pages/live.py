"""Live: the sets of requests, the batch by step, and the six figures that matter.

limits / running | waiting, preempted, ended      batch by step      tiles      tabs: Gantt, batch size, step times, table
"""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd
import streamlit as st

from core.charts import batch_timeline, gantt, style
from core.records import StepRecord
from core.snapshot import EngineSnapshot
from pages.parts import engine_access, frame, ticker
from pages.parts.request_sets import request_sets, table_rows
from pages.parts.tiles import draw_tiles

TABS = ("Gantt", "Batch size", "Step times", "Table view")


def _timeline(history: Sequence[StepRecord]) -> None:
    frame.figure_head(
        "What was each step made of?",
        frame.span_of(history),
        how="Tokens of a step, stacked up to the budget line. Above it: triangle up = admitted, triangle down = preempted,"
        f" dot = finished. {style.HOW_TO_ZOOM}",
    )
    spec = batch_timeline.composition_spec(frame.theme())
    data = batch_timeline.composition_frame(history)
    frame.chart(data, spec, key="live_composition", alt="Prefill, decode and idle tokens of each step, under the token budget")


def _gantt(snapshot: EngineSnapshot) -> None:
    rows = gantt.lanes(snapshot)
    frame.figure_head(
        "Where did each request spend its time?",
        f"{len(rows)} requests · {frame.kind_of(snapshot)}",
        how=f"One lane a request, oldest at the top. {style.HOW_TO_ZOOM}",
    )
    data = gantt.gantt_frame(rows, snapshot.time_s)
    frame.chart(data, gantt.gantt_spec(frame.theme()), key="live_gantt", alt="Spans of the latest requests over time")


def _batch(history: Sequence[StepRecord]) -> None:
    frame.figure_head(
        "How large is the batch, and what waits?",
        frame.span_of(history),
        how=f"Running below the dotted seats line while requests wait: memory or budget binds. {style.HOW_TO_ZOOM}",
    )
    spec = batch_timeline.batch_spec(frame.theme())
    frame.chart(batch_timeline.batch_frame(history), spec, key="live_batch", alt="Running, waiting and preempted by step")


def _times(history: Sequence[StepRecord]) -> None:
    frame.figure_head(
        "Where does the time of a step go?",
        frame.span_of(history),
        how=f"Grey is the forward pass, colours are host work. {style.HOW_TO_ZOOM}",
    )
    spec = batch_timeline.times_spec(frame.theme())
    frame.chart(batch_timeline.times_frame(history), spec, key="live_times", alt="Milliseconds of each step by part")


def _table(snapshot: EngineSnapshot) -> None:
    frame.figure_head("All requests as a table", f"step {snapshot.step}", how="Click a heading to sort.")
    st.dataframe(pd.DataFrame(table_rows(snapshot)), hide_index=True, height=420, key="live_table")


def _start_load() -> None:
    access = engine_access.engine()
    if access.load is None:
        access.set_load()
    access.start()


def _empty(snapshot: EngineSnapshot) -> None:
    """What is missing, in the place of a figure that has no data."""
    if snapshot.state == "starting":
        frame.empty("The model is loading; the first step follows at once.", key="live", height=230)
    else:
        frame.empty("No step has run yet: no request was submitted.", "Start a load", _start_load, key="live", height=230)


def render(snapshot: EngineSnapshot, history: Sequence[StepRecord]) -> None:
    """Draw the page from one picture."""
    request_sets(snapshot)
    with st.container(key="live_timeline"):
        if history:
            _timeline(history)
        else:
            _empty(snapshot)
    draw_tiles(snapshot, history)
    tabs = st.tabs(TABS, key="live_details", bind="query-params")
    with tabs[0]:
        if tabs[0].open:
            _gantt(snapshot)
    with tabs[1]:
        if tabs[1].open:
            _batch(history)
    with tabs[2]:
        if tabs[2].open:
            _times(history)
    with tabs[3]:
        if tabs[3].open:
            _table(snapshot)
    frame.footer()


ticker.live("What is in the batch right now?", render)
