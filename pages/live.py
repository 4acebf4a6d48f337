"""Live: the sets of requests, the batch by step, and the six figures that matter.

limits / running | waiting, preempted, ended    batch by step    tiles    tabs: linked views, batch size, step times, table
"""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd
import streamlit as st

from core.charts import batch_timeline, sets, style
from core.charts.arrow import table
from core.records import StepRecord
from core.snapshot import EngineSnapshot
from pages.parts import engine_access, frame, linked, save_as, ticker
from pages.parts.block_canvas import block_canvas, block_figure, pack, picked
from pages.parts.element import trigger
from pages.parts.facts import moment
from pages.parts.request_sets import choose, chosen_request, request_sets, table_rows
from pages.parts.tiles import draw_tiles

TABS = ("Requests, blocks, roofline", "Batch size", "Step times", "Table view")
TABLE_STEPS = 100
QUESTION = "What is in the batch right now?"
SAVED_SETS = "One bar a request, to one scale: running ones first, then what was preempted and the head of the queue."


def _timeline(history: Sequence[StepRecord]) -> None:
    frame.figure_head(
        "What was each step made of?",
        frame.span_of(history),
        how="Tokens of a step, stacked up to the budget line. Above it: triangle up = admitted, triangle down = preempted,"
        " dot = finished.",
        on_screen=style.HOW_TO_ZOOM,
    )
    spec = batch_timeline.composition_spec(frame.theme())
    data = batch_timeline.composition_table(history)
    frame.chart(data, spec, key="live_composition", alt="Prefill, decode and idle tokens of each step, under the token budget")


def _linked(snapshot: EngineSnapshot, history: Sequence[StepRecord]) -> None:
    """Gantt, blocks and roofline: what is pointed at in one is shown in all, and in the sets above."""
    chosen = chosen_request()
    left, right = st.columns([0.64, 0.36], gap="medium")
    with left:
        frame.figure_head(
            "Where did each request spend its time?",
            f"engine time (s) · {frame.kind_of(snapshot)}",
            how="One lane a request, oldest at the top.",
            on_screen=f"Point at one to see its blocks and its steps. {style.HOW_TO_ZOOM}",
        )
        frame.can_be_saved("live_gantt", lambda: linked.gantt_figure(snapshot, frame.theme()))
        linked.draw_gantt(snapshot, chosen, key="live_gantt", on_pick=_pick_lane)
    with right:
        frame.figure_head("Which blocks does it hold?", moment(snapshot), how="Each cell is a KV block in the hue of its owner.")
        known = (*snapshot.running, *snapshot.preempted, *snapshot.ended)
        frame.can_be_saved("live_blocks", lambda: block_figure(snapshot, "owner", frame.theme()))
        with st.container(key="live_blocks", height=270, border=False):
            block_canvas(pack(snapshot.blocks, known, mode="owner", chosen=chosen), key="live_map", on_pick=_pick_block)
        frame.figure_head(
            "Which steps was it part of?",
            frame.span_of(history[-linked.MAX_DOTS :]),
            how="Square: mostly prefill; round: mostly decode.",
        )
        data = linked.steps_payload(snapshot, history, 190)
        if data is not None:
            frame.can_be_saved("live_roofline", lambda: linked.steps_figure(snapshot, history, frame.theme()))
        with st.container(key="live_steps", height=200, border=False):
            if data is None:
                st.caption("The ceilings are measured once, right after the model is loaded.")
            else:
                linked.draw_steps_map(data, key="live_steps_map")


def _pick_lane() -> None:
    asked = trigger("live_gantt", "pick")
    request = asked.get("request") if isinstance(asked, dict) else None
    choose(request if isinstance(request, str) and request != chosen_request() else None)


def _pick_block() -> None:
    choose(picked("live_map"))


def _batch(history: Sequence[StepRecord]) -> None:
    frame.figure_head(
        "How large is the batch, and what waits?",
        frame.span_of(history),
        how="Running below the dotted seats line while requests wait: memory or budget binds.",
        on_screen=style.HOW_TO_ZOOM,
    )
    spec = batch_timeline.batch_spec(frame.theme())
    frame.chart(table(batch_timeline.batch_frame(history)), spec, key="live_batch", alt="Running, waiting and preempted by step")


def _times(history: Sequence[StepRecord]) -> None:
    frame.figure_head(
        "Where does the time of a step go?",
        frame.span_of(history),
        how="Grey is the forward pass, colours are host work.",
        on_screen=style.HOW_TO_ZOOM,
    )
    spec = batch_timeline.times_spec(frame.theme())
    frame.chart(table(batch_timeline.times_frame(history)), spec, key="live_times", alt="Milliseconds of each step by part")


def step_rows(history: Sequence[StepRecord]) -> list[dict[str, object]]:
    """The last steps, newest first, every number as a number: the roofline in small as a table."""
    return [
        {
            "step": r.step,
            "began (s)": round(r.start_s, 3),
            "ms": round(1e3 * r.duration_s, 2),
            "decode tokens": r.decode_tokens,
            "prefill tokens": r.prefill_tokens,
            "FLOP/B": round(r.intensity, 2) if r.moved_bytes else None,
            "GFLOP/s": round(r.flops / r.forward_s / 1e9, 2) if r.forward_s > 0 else None,
            "waiting": r.num_waiting,
            "bound by": r.bound_by,
        }
        for r in reversed(history[-TABLE_STEPS:])
    ]


def _table(snapshot: EngineSnapshot, history: Sequence[StepRecord]) -> None:
    frame.figure_head("All requests as a table", f"step {snapshot.step}", how="Click a heading to sort.")
    st.dataframe(pd.DataFrame(table_rows(snapshot)), hide_index=True, height=420, key="live_table")
    frame.figure_head("The last steps as a table", frame.span_of(history[-TABLE_STEPS:]), how="Newest first.")
    st.dataframe(pd.DataFrame(step_rows(history)), hide_index=True, height=300, key="live_step_table")


def _empty(snapshot: EngineSnapshot) -> None:
    """What is missing, in the place of a figure that has no data."""
    if snapshot.state == "starting":
        frame.empty("The model is loading; the first step follows at once.", key="live", height=230)
    else:
        frame.empty(
            "No step has run yet: no request was submitted.", "Start a load", engine_access.start_load, key="live", height=230
        )


def render(snapshot: EngineSnapshot, history: Sequence[StepRecord]) -> None:
    """Draw the page from one picture."""
    save_as.control(
        "sets", lambda: sets.sets_figure(snapshot, frame.theme()), title=QUESTION, span=moment(snapshot), how=SAVED_SETS,
        theme=frame.theme(),
    )  # fmt: skip
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
            _linked(snapshot, history)
    with tabs[1]:
        if tabs[1].open:
            _batch(history)
    with tabs[2]:
        if tabs[2].open:
            _times(history)
    with tabs[3]:
        if tabs[3].open:
            _table(snapshot, history)
    frame.footer()


ticker.live(QUESTION, render, look_back=True)
