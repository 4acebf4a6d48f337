"""KV blocks: every physical block as a cell, the block table of a chosen request, and what paging saves.

hero: the block map (canvas)        tabs: pool over steps | contiguous alternative | ages | table
"""

from __future__ import annotations

from collections.abc import Sequence

import streamlit as st

from core.block_view import Occupancy, block_holding_times, occupancy, reservations
from core.charts import formats, kv
from core.charts.arrow import table
from core.config import AdmissionPolicy
from core.records import StepRecord
from core.snapshot import EngineSnapshot, RequestView
from pages.parts import frame, ticker
from pages.parts.block_canvas import MODES, block_canvas, block_figure, pack, picked
from pages.parts.facts import facts, moment

MAP = "block_map"
CHOSEN = "request"
MODE = "colour"
STILL = "kv_table_still"
TABS = ("Pool over steps", "Contiguous alternative", "Ages and lifetimes", "Table view")

HOW = {
    "owner": "A cell is a physical block, its bar is as high as the block is full, its hue is the request that holds it.",
    "state": "Green holds a live request's tokens, purple hatch is kept for prefix reuse without an owner, a bare line is free.",
    "age": "Dark was used just now, yellow lay idle for long: the yellow hatched cells are evicted first.",
    "fill": "Only the last block of a request can be partly filled; every dark bar is memory that paging wastes.",
    "sharing": "Dark blue has one reference; the lighter, the more block tables point at the same physical block.",
}
CAPTIONS = "Hover or use the arrow keys for a block's tokens, references and age; click or Enter picks its request."


def _holders(snapshot: EngineSnapshot) -> list[RequestView]:
    return [r for r in (*snapshot.running, *snapshot.preempted) if r.block_ids]


def _take_pick() -> None:
    st.session_state[CHOSEN] = picked(MAP)


def _controls(snapshot: EngineSnapshot) -> tuple[str, str | None]:
    """Colour mode and chosen request; both live in the address, so a link restores the view."""
    ids = [r.request_id for r in (*snapshot.running, *snapshot.preempted)]
    chosen = st.session_state.get(CHOSEN)
    if chosen is not None and chosen not in ids:
        ids.insert(0, chosen)
    with st.container(horizontal=True, key="kv_controls"):
        mode = st.segmented_control(
            "Colour by", list(MODES), default="owner", format_func=MODES.__getitem__, key=MODE, bind="query-params", required=True
        )
        request = st.selectbox(
            "Block table of", ids, index=None, key=CHOSEN, placeholder="pick a request", width=230, bind="query-params"
        )
    return mode or "owner", request


def _figures(snapshot: EngineSnapshot, pool: Occupancy) -> None:
    """The pool in figures; every one has its unit and what it is a share of."""
    size = snapshot.blocks.block_size
    per_token = snapshot.info.kv_bytes_per_token if snapshot.info else None
    total = formats.binary_bytes(per_token * size * snapshot.pool.total) if per_token else formats.NONE
    block = formats.binary_bytes(per_token * size) if per_token else formats.NONE
    cells = (
        ("Live blocks", formats.count(pool.live), f"{formats.percent(snapshot.pool.usage)} of the pool"),
        ("Cached, reusable", formats.count(pool.cached), "kept for prefix reuse"),
        ("Free", formats.count(pool.free), f"of {formats.count(snapshot.pool.total)} blocks, {total}"),
        ("Internal fragmentation", formats.percent(pool.fragmentation), "of live slots hold no token"),
        ("Saved by sharing", f"{formats.count(pool.saved)} blocks", f"{formats.count(pool.shared)} blocks have refs > 1"),
        ("Size of a block", block, f"{size} tokens over all layers"),
    )
    facts(cells)


def _over_steps(snapshot: EngineSnapshot, history: Sequence[StepRecord]) -> None:
    ground, span = frame.theme(), frame.span_of(history)
    how = "Live + cached + free is the pool at every step; a red triangle is a preemption."
    frame.figure_head("How full is the pool?", span, how=how, on_screen=kv.HOW_TO_ZOOM)
    alt = "Live, cached and free blocks by step, stacked"
    frame.chart(table(kv.pool_frame(history)), kv.pool_spec(ground), key="kv_pool", alt=alt)
    frame.figure_head(
        "How much of the live memory holds no token?",
        span,
        how="Only the unfilled end of each request's last block is lost, so the loss is below one block a request.",
    )
    frame.chart(
        table(kv.fragmentation_frame(history, snapshot.blocks.block_size)),
        kv.fragmentation_spec(ground),
        key="kv_fragmentation",
        alt="Share of live token slots without a token, by step",
    )


def _contiguous(snapshot: EngineSnapshot, pool: Occupancy) -> None:
    limit = snapshot.config.max_model_len or (snapshot.info.spec.max_model_len if snapshot.info else 0)
    rows = reservations(snapshot.running, pool, limit)
    kind = snapshot.step_record.kind if snapshot.step_record else "measured"
    frame.figure_head(
        "What would a cache without blocks reserve for the same requests?",
        f"step {formats.count(snapshot.step)} · {kind} beside computed",
        how="Green slots hold a token, grey ones wait for tokens that may never come. A contiguous cache shares no prefix.",
    )
    frame.chart(
        table(kv.reservation_frame(rows)),
        kv.reservation_spec(frame.theme()),
        key="kv_contiguous",
        alt="Token slots reserved by allocation",
    )
    capacity = snapshot.blocks.block_size * snapshot.pool.total
    facts(
        [
            (
                r.label,
                f"{formats.count(r.fits(capacity))} requests" if rows[0].requests else formats.NONE,
                f"like the present ones fit the pool; {formats.percent(r.wasted_share)} of a reservation is empty",
            )
            for r in rows
        ],
        width=260,
    )


def _ages(snapshot: EngineSnapshot) -> None:
    ground = frame.theme()
    left, right = st.columns(2, gap="medium")
    with left:
        frame.figure_head(
            "How long ago was each block used?",
            f"step {formats.count(snapshot.step)}",
            how="Cached blocks far to the right have waited longest for a reuse; they are evicted first.",
        )
        spec = kv.histogram_spec(ground, "steps since last use", by_state=True)
        frame.chart(
            table(kv.age_frame(snapshot.blocks)), spec, key="kv_ages", alt="Blocks by steps since last use, live and cached"
        )
    with right:
        reserve = snapshot.config.scheduler.admission_policy.value == AdmissionPolicy.RESERVE.value
        held = block_holding_times(snapshot.recent_requests, snapshot.blocks.block_size, reserved_at_admission=reserve)
        frame.figure_head(
            "How long does a request hold a block?",
            f"last {formats.count(len(snapshot.recent_requests))} ended requests",
            how="From the step that takes a block to the end of its request; preempted requests are left out.",
        )
        spec = kv.histogram_spec(ground, "time held", by_state=False)
        frame.chart(table(kv.holding_frame(held)), spec, key="kv_held", alt="Blocks by time held")


def _take_still() -> None:
    st.session_state.pop(STILL, None)


def _table(snapshot: EngineSnapshot) -> None:
    """A still: a table that changes under a screen reader, or while it is sorted, is of no use."""
    if STILL not in st.session_state:
        tables = {r.request_id: r.block_ids for r in _holders(snapshot)}
        st.session_state[STILL] = (snapshot.step, table(kv.block_table(snapshot.blocks, tables)))
    step, rows = st.session_state[STILL]
    frame.figure_head(
        "The same map as a table",
        f"step {formats.count(step)} · {formats.count(rows.num_rows)} blocks that are not free",
        how="One row a block; logical is the block's place in its owner's table, S marks a shared block. The table stands still.",
    )
    st.button("Take a new one", key="kv_still", on_click=_take_still, icon=":material/refresh:")
    config = {
        "block": st.column_config.NumberColumn("block", help="physical block id"),
        "logical": st.column_config.NumberColumn("logical", help="place in the owner's block table"),
        "tokens": st.column_config.NumberColumn("tokens", help=f"of {snapshot.blocks.block_size} slots"),
        "refs": st.column_config.NumberColumn("refs", help="block tables that hold the block"),
        "last_use_steps": st.column_config.NumberColumn("last use, steps ago"),
    }
    st.dataframe(rows, hide_index=True, height=420, column_config=config, key="kv_table")


def render(snapshot: EngineSnapshot, history: Sequence[StepRecord]) -> None:
    """Draw the page from one picture."""
    mode, chosen = _controls(snapshot)
    title = f"All {formats.count(snapshot.blocks.num_blocks)} physical blocks"
    frame.figure_head(title, moment(snapshot), how=HOW[mode], on_screen=CAPTIONS)
    known = (*snapshot.running, *snapshot.preempted, *snapshot.ended)
    frame.can_be_saved("kv_map", lambda: block_figure(snapshot, mode, frame.theme()))
    block_canvas(pack(snapshot.blocks, known, mode=mode, chosen=chosen), key=MAP, on_pick=_take_pick)
    pool = occupancy(snapshot.blocks)
    _figures(snapshot, pool)
    tabs = st.tabs(TABS, key="kv_details", bind="query-params")
    with tabs[0]:
        if tabs[0].open:
            _over_steps(snapshot, history)
    with tabs[1]:
        if tabs[1].open:
            _contiguous(snapshot, pool)
    with tabs[2]:
        if tabs[2].open:
            _ages(snapshot)
    with tabs[3]:
        if tabs[3].open:
            _table(snapshot)
        else:
            _take_still()
    frame.footer()


ticker.live("Who holds which KV block?", render, look_back=True)
