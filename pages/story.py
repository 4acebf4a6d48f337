"""Story: one request's whole life on a time axis, every token a tick, every turning point in words."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pandas as pd
import streamlit as st

from core.charts import formats, style
from core.charts import story as figure
from core.records import StepRecord
from core.snapshot import EngineSnapshot, RequestView
from core.story import Story
from pages.parts import engine_access, frame, ticker
from pages.parts.facts import facts

CHOSEN = "request"
EXAMPLE = "story_example"


def _rows(snapshot: EngineSnapshot) -> list[RequestView]:
    return [*snapshot.running, *snapshot.preempted, *snapshot.waiting[:50], *snapshot.ended]


def _choose(snapshot: EngineSnapshot) -> str | None:
    """The chosen request; it stays chosen after its end, and a link restores it."""
    ids = list(dict.fromkeys(r.request_id for r in _rows(snapshot)))
    now = st.session_state.get(CHOSEN)
    if now is not None and now not in ids:
        ids.insert(0, now)
    by_id = {r.request_id: r for r in _rows(snapshot)}

    def label(request_id: str) -> str:
        row = by_id.get(request_id)
        return f"{request_id} · {row.status} · {row.tenant}" if row else request_id

    return st.selectbox(
        "Request", ids, index=None, key=CHOSEN, format_func=label, placeholder="pick a request", width=340, bind="query-params"
    )


def _example(snapshot: EngineSnapshot) -> Story | None:
    """While nobody has chosen: the request that had been running longest when the page was opened."""
    access = engine_access.engine()
    kept = st.session_state.get(EXAMPLE)
    found: Story | None = access.story(kept) if kept else None
    if found is None and snapshot.running:
        oldest = min(snapshot.running, key=lambda row: row.arrival_s)
        st.session_state[EXAMPLE] = oldest.request_id
        found = access.story(oldest.request_id)
    return found


def _figures(story: Story, now_s: float) -> None:
    spans = figure.phases(story, now_s)

    def total(phase: str) -> str:
        return formats.seconds(sum(b - a for p, a, b in spans if p == phase))

    first = next((e for e in story.events if e.kind == "first_token"), None)
    arrival = story.events[0].time_s if story.events else now_s
    kinds = [e.kind for e in story.events]
    gaps = [b - a for a, b in zip(story.token_times_s, story.token_times_s[1:], strict=False)]
    facts(
        (
            ("Status", story.status, f"tenant {story.tenant}"),
            (
                "Prompt",
                f"{formats.count(story.prompt_tokens)} tok",
                _times(kinds.count("chunk"), "chunk"),
            ),
            ("Output", f"{formats.count(story.output_tokens)} tok", f"longest gap {formats.seconds(max(gaps, default=None))}"),
            ("TTFT", formats.seconds(first.time_s - arrival if first else None), "from arrival"),
            ("In the queue", total("queue"), "before the first admission"),
            ("Prefill", total("prefill"), "recomputed tokens included"),
            ("Decode", total("decode"), ""),
            ("Preempted", total("preempted"), _times(kinds.count("preempted"), "time")),
        ),
        width=120,
    )


def _times(number: int, word: str) -> str:
    """ "1 chunk", "2 chunks"."""
    return f"{formats.count(number)} {word}{'' if number == 1 else 's'}"


def _blocks(story: Story, now_s: float, kind: str) -> None:
    data = figure.blocks_frame(story, now_s)
    frame.figure_head(
        "Which blocks did it hold, and when?",
        f"{_times(data.block.nunique(), 'physical block')} · {kind}",
        how="A lane for each place of its block table; a bar is one physical block, from the step that took it to the one"
        " that gave it back. Point at a bar for its number.",
    )
    if data.empty:
        frame.empty("It has not held a block yet.", key="story_blocks", height=190)
        return
    frame.chart(data, figure.blocks_spec(frame.theme()), key="story_blocks", alt="Blocks held by one request over time")


def _column(width: int) -> Any:
    return st.column_config.Column(width=width)


def _events(story: Story) -> None:
    frame.figure_head(
        "What happened, step by step", f"{len(story.events)} events", how="Blocks are named as they are taken and given back."
    )
    origin = story.events[0].time_s if story.events else 0.0
    rows = [
        {"step": e.step, "after": formats.seconds(e.time_s - origin), "event": e.kind.replace("_", " "), "detail": e.detail}
        for e in story.events
    ]
    widths = {"step": _column(70), "after": _column(80), "event": _column(100), "detail": _column(860)}
    st.dataframe(pd.DataFrame(rows), hide_index=True, height=320, key="story_events", column_config=widths)


def _empty(snapshot: EngineSnapshot, chosen: str | None) -> None:
    if chosen:
        frame.empty(f"Request {chosen} is not kept any more.", key="story", height=320)
    elif snapshot.state == "starting":
        frame.empty("The model is loading; the first request appears here at once.", key="story", height=320)
    elif _rows(snapshot):
        frame.empty("Pick a request above, or click one on the Live page.", key="story", height=320)
    else:
        frame.empty("No request has run yet.", "Start a load", engine_access.start_load, key="story", height=320)


def render(snapshot: EngineSnapshot, history: Sequence[StepRecord]) -> None:
    """Draw the chosen request's life."""
    chosen = _choose(snapshot)
    story: Story | None = engine_access.engine().story(chosen) if chosen else _example(snapshot)
    with st.container(key="story"):
        if story is None:
            _empty(snapshot, chosen)
        else:
            frame.figure_head(
                f"The life of {story.request_id}",
                f"{'' if chosen else 'an example: running longest when this page was opened · '}{frame.kind_of(snapshot)}",
                how="Bar: phases, hollow while its blocks were taken away. Ticks above: output tokens; below: prefill chunks."
                " Triangles: turning points.",
                on_screen=style.HOW_TO_ZOOM,
            )
            data = figure.story_frame(story, snapshot.time_s)
            frame.chart(
                data, figure.story_spec(frame.theme()), key="story_chart", alt="Phases and tokens of one request over time"
            )
            _blocks(story, snapshot.time_s, frame.kind_of(snapshot))
            _figures(story, snapshot.time_s)
            _events(story)
    frame.footer()


ticker.live("What happened to this request?", render)
