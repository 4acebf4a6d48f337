"""Home: what one sees here, in half a minute, on the engine that is already running."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import streamlit as st

from core.charts import formats, seats, style
from core.config import BatchPolicy
from core.records import StepRecord
from core.snapshot import EngineSnapshot
from pages.parts import frame, ticker
from pages.parts.engine_access import engine
from pages.parts.tiles import draw_tiles

HERE = Path(__file__).resolve().parent
HEIGHT = 360
QUESTIONS = (
    ("tour.py", "Take the tour", "tour"),
    ("live.py", "What is in the batch?", "stacked_bar_chart"),
    ("kv_blocks.py", "Who holds which block?", "grid_view"),
    ("roofline.py", "Which ceiling binds?", "show_chart"),
    ("prompt.py", "Try a prompt", "chat"),
)


def bound_shares(history: Sequence[StepRecord]) -> str:
    """Shares of the steps by what kept the batch from being larger, largest first."""
    counts = Counter(record.bound_by for record in history)
    total = sum(counts.values())
    return ", ".join(f"{name} {formats.percent(n / total)}" for name, n in counts.most_common(3)) if total else formats.NONE


def sentences(snapshot: EngineSnapshot, history: Sequence[StepRecord]) -> list[tuple[str, str]]:
    """Three things to see, each with its figures of now."""
    if not history:
        return [
            ("Requests join and leave at every step", "Nobody waits for the longest one of a batch."),
            ("One read of the weights serves the whole batch", "Another sequence costs only its own KV traffic and arithmetic."),
            ("Something always bounds the batch", "KV memory, seats, the token budget, or the load itself."),
        ]
    joined, left = sum(r.admitted for r in history), sum(r.finished for r in history)
    span = formats.seconds(history[-1].start_s + history[-1].duration_s - history[0].start_s)
    fixed = snapshot.config.scheduler.batch_policy == BatchPolicy.FIXED.value
    freed = (
        "this fixed batch keeps every seat until its longest member ends"
        if fixed
        else "a seat is free as soon as its request ends"
    )
    info = snapshot.info
    weights = formats.weights_read(info.weight_bytes_read, info.coded_bytes_read, info.coded_tokens) if info else formats.NONE
    mean = formats.figures(snapshot.kpis.mean_batch)
    return [
        (
            "Requests join and leave between batches" if fixed else "Requests join and leave at every step",
            f"{formats.count(joined)} joined and {formats.count(left)} left in the last {len(history)} steps ({span}); {freed}.",
        ),
        (
            "One read of the weights serves the whole batch",
            f"A step reads {weights} of weights whatever the batch is; {mean} requests share it now.",
        ),
        ("Something always bounds the batch", f"{bound_shares(history)} of these steps."),
    ]


def _start() -> None:
    access = engine()
    if access.load is None:
        access.set_load()
    access.start()


def _hero(snapshot: EngineSnapshot) -> None:
    if snapshot.state == "starting":
        frame.empty("The model is loading; requests follow at once.", key="home", height=HEIGHT)
    elif not snapshot.running and not snapshot.ended:
        frame.empty("The engine is up and nothing was submitted.", "Start the load", _start, key="home", height=HEIGHT)
    else:
        spec = seats.seat_spec(frame.theme(), HEIGHT)
        frame.chart(seats.seat_frame(snapshot), spec, key="home_seats", alt="Requests by seat of the batch over time")


def render(snapshot: EngineSnapshot, history: Sequence[StepRecord]) -> None:
    """Draw the page from one picture."""
    left, right = st.columns([0.68, 0.32], gap="large")
    with left:
        frame.figure_head(
            "Who holds a seat in the batch?",
            frame.kind_of(snapshot),
            how="Each bar is one request: orange reads its prompt, blue writes its answer.",
            on_screen=style.HOW_TO_ZOOM,
        )
        with st.container(key="home_hero"):
            _hero(snapshot)
    with right:
        frame.numbered(sentences(snapshot, history))
    draw_tiles(snapshot, history)
    with st.container(horizontal=True, key="home_links", gap="small"):
        for file, question, icon in QUESTIONS:
            st.page_link(HERE / file, label=question, icon=f":material/{icon}:")
    frame.footer()


ticker.live(
    "How is one model serving all these requests at once?",
    render,
    about="Continuous batching at work: a real scheduler runs a real model on this machine, and every number is of this run.",
)
