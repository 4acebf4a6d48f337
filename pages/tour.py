"""Guided tour: seven stops on the live engine, from one sequence to the batch at its ceiling.

stop n of 7, what happens, what to look at      [back] [next] [end: settings as before]
hero: seats over time | what was measured at each stop
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import pandas as pd
import streamlit as st

from core.charts import formats, seats, style
from core.charts import tour as figure
from core.records import StepRecord
from core.snapshot import EngineSnapshot
from core.tour import STOPS, Measured, measured
from pages.parts import engine_access, frame, ticker
from pages.parts.facts import facts

STATE = "tour"
HISTORY = 1500


@dataclass
class Visit:
    """Where this session is on the tour.

    Attributes:
        since: the engine's step when the stop began.
        found: what was measured, by stop.
        before: scheduler, cache and load that the tour found, to give back.
    """

    at: int
    since: int
    before: dict[str, Any]
    found: dict[int, Measured] = field(default_factory=dict)


def _visit() -> Visit | None:
    visit: Visit | None = st.session_state.get(STATE)
    return visit


def _tell(answer: engine_access.Answer) -> bool:
    if not answer.ok:
        st.toast(frame.plain(answer.message), icon=":material/block:")
    return answer.ok


def _go(number: int) -> None:
    """Give the engine the load of a stop, and begin to measure."""
    access = engine_access.engine()
    snapshot, stop = access.latest(), STOPS[number]
    scheduler, cache = stop.configs()
    visit = _visit()
    before = visit.before if visit else {
        "scheduler": snapshot.config.scheduler, "cache": snapshot.config.cache, "load": access.load
    }  # fmt: skip
    if _tell(access.configure(scheduler=scheduler, cache=cache, load=stop.load, reset=True)) and _tell(access.start()):
        found = visit.found if visit else {}
        found.pop(number, None)
        st.session_state[STATE] = Visit(number, access.latest().step, before, found)


def _end() -> None:
    visit = _visit()
    if visit is not None and _tell(engine_access.engine().configure(**visit.before, reset=True)):
        st.session_state[STATE] = None
        if visit.before["load"] is None:
            _tell(engine_access.engine().set_load(on=False))


def _stop(visit: Visit | None, locked: bool) -> None:
    if visit is None:
        frame.numbered(
            [
                ("Each stop changes the load of the running engine", "and begins the run anew; prompts under way end."),
                ("Stay until the figures settle", "a quarter of a minute is enough on two cores."),
                ("The last button gives the settings back", "as the tour found them."),
            ]
        )
    else:
        stop = STOPS[visit.at]
        frame.figure_head(f"{visit.at + 1} of {len(STOPS)}: {stop.title}", stop.load.label)
        frame.numbered([("What happens", stop.happens), ("What to look at", stop.look_at)])
    at = visit.at if visit else -1
    with st.container(horizontal=True, key="tour_steps"):
        st.button("Back", key="tour_back", disabled=locked or at <= 0, on_click=_go, args=(at - 1,), icon=":material/arrow_back:")
        label = "Begin" if visit is None else "Next" if at + 1 < len(STOPS) else "From the beginning"
        following = (at + 1) % len(STOPS)
        st.button(label, key="tour_next", type="primary", disabled=locked, on_click=_go, args=(following,))
        st.button("End the tour", key="tour_end", disabled=locked or visit is None, on_click=_end)
    if locked:
        st.caption("This session only watches; the controller leads the tour.")


def _seats(snapshot: EngineSnapshot) -> None:
    frame.figure_head(
        "Who holds a seat in the batch?",
        frame.kind_of(snapshot),
        how="Each bar is one request: orange reads its prompt, blue writes its answer.",
        on_screen=style.HOW_TO_ZOOM,
    )
    with st.container(key="tour_hero"):
        if snapshot.running or snapshot.ended:
            spec = seats.seat_spec(frame.theme(), 300)
            frame.chart(seats.seat_frame(snapshot), spec, key="tour_seats", alt="Requests by seat of the batch over time")
        else:
            frame.empty("The first requests are on their way.", key="tour", height=300)


def _figures(snapshot: EngineSnapshot, now: Measured | None) -> None:
    kpis = snapshot.kpis
    facts(
        (
            ("Sequences in a step", formats.figures(now.mean_rows if now else None), "mean since the stop began"),
            ("Output", formats.rate(now.tokens_per_s if now else None, "tok"), "all requests together"),
            ("Decode step", formats.seconds(now.step_s if now else None), "median; the gap between two tokens of a request"),
            (
                "Useful work",
                formats.percent(now.useful_share if now else None),
                "of the FLOPs, the rest is padding and ended rows",
            ),
            (
                "Bound by",
                now.bound_by if now else formats.NONE,
                f"MBU {formats.percent(kpis.mbu)}, MFU {formats.percent(kpis.mfu)}",
            ),
        )
    )


def _stops(found: dict[int, Measured], kind: str) -> None:
    frame.figure_head(
        "What did each stop make of the machine?", f"stops visited: {len(found)} · {kind}", how="Output of all requests together."
    )
    if not found:
        frame.empty("The bars appear with the first stop.", key="tour_stops", height=170)
        return
    frame.chart(
        figure.stops_frame(found),
        figure.stops_spec(frame.theme()),
        key="tour_stops",
        alt="Output tokens a second at each stop of the tour",
    )
    rows = [
        {
            "stop": f"{number + 1} {STOPS[number].title}",
            "sequences a step": formats.figures(m.mean_rows),
            "tokens/s": formats.figures(m.tokens_per_s),
            "decode step": formats.seconds(m.step_s),
            "useful work": formats.percent(m.useful_share),
            "bound by": m.bound_by,
        }
        for number, m in sorted(found.items())
    ]
    if rows:
        st.dataframe(pd.DataFrame(rows), hide_index=True, key="tour_table")


def render(snapshot: EngineSnapshot, history: Sequence[StepRecord]) -> None:
    """Draw the stop, the seats and what was measured so far."""
    visit = _visit()
    now = measured([r for r in history if r.step > visit.since or visit.since > snapshot.step]) if visit else None
    if visit is not None and now is not None:
        visit.found[visit.at] = now
    left, right = st.columns([0.36, 0.64], gap="large")
    with left:
        _stop(visit, not engine_access.engine().is_controller)
    with right:
        _seats(snapshot)
    with st.container(key="tour_figures"):
        if visit is None:
            frame.figure_head("Where does the tour go?", f"{len(STOPS)} stops", how="Each is a load of its own on this engine.")
            frame.strip([(stop.title, stop.look_at) for stop in STOPS])
        else:
            _figures(snapshot, now)
            _stops(visit.found, frame.kind_of(snapshot))
    frame.footer()


ticker.live("What does a batch gain, and what bounds it?", render, history_steps=HISTORY)
