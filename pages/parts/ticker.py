"""The one way in which a page lives: a plain `render(snapshot, history)` inside one flat fragment.

    page file:    def render(snapshot, history): ...          draws; no state of its own, no engine
                  ticker.live("What is in the batch right now?", render)

Nothing may be nested: periodic fragments inside one another break. The same elements in the same order at every
tick, with fixed heights, so that nothing jumps; branch inside a slot, never round it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path

import streamlit as st

from core.records import StepRecord
from core.snapshot import EngineSnapshot
from pages.parts import engine_access, frame, replay, status_bar, travel
from pages.parts.watching import watchers

Render = Callable[[EngineSnapshot, Sequence[StepRecord]], None]
HISTORY_STEPS = 300
KEPT_PARAMETERS = ("request", "rate", "kiosk")
_GO_TO = "go_to_page"
_SETTINGS = "settings_seen"
_PERIOD = "refresh_period_s"


def rate_s() -> float | None:
    """Seconds between two ticks; None where refresh is off."""
    return status_bar.period_s()


def go_to(page: Path) -> None:
    """From a callback: open another page with the next tick."""
    st.session_state[_GO_TO] = page


def live(question: str, render: Render, *, about: str = "", history_steps: int = HISTORY_STEPS, look_back: bool = False) -> None:
    """Draw a live page: status bar, heading, and `render` at the chosen rate.

    Args:
        question: the heading, what the page answers.
        about: one line under it.
        history_steps: how many of the latest step records `render` gets.
        look_back: draw the slider over earlier pictures; `render` gets the chosen one.
    """

    period_s = st.session_state[_PERIOD] = rate_s()

    @st.fragment(run_every=period_s)
    def tick() -> None:
        _tick(question, about, render, history_steps, look_back)

    # A place of the page's own: where the first tick is slower than the period, Streamlit drops the fragment's unsent
    # messages for those of the next tick but keeps what comes after it, and the browser fails on the gap.
    with st.container(key="ticking"):
        tick()


def _renew_settings(access: engine_access.Access, snapshot: EngineSnapshot) -> None:
    """Draw the whole page anew when somebody else has changed what the sidebar shows: control, knobs or load."""
    seen = (access.is_controller, snapshot.config, access.load)
    if st.session_state.setdefault(_SETTINGS, seen) != seen:
        st.session_state[_SETTINGS] = seen
        st.rerun()


def _tick(question: str, about: str, render: Render, history_steps: int, look_back: bool) -> None:
    if st.session_state.pop("rate_changed", False):
        st.rerun()  # the period belongs to the fragment, so it is made anew
    page = st.session_state.pop(_GO_TO, None)
    if page is not None:
        st.switch_page(page, query_params={k: v for k, v in st.query_params.items() if k in KEPT_PARAMETERS})
    began = time.perf_counter()
    frame.figures_are_of(None)
    access = engine_access.engine()
    watchers.saw(access.session)
    if status_bar.rate_label() == status_bar.AUTO and rate_s() != st.session_state.get(_PERIOD):
        st.rerun()  # others have come or gone
    replay.follow()
    access.heartbeat()
    snapshot = access.latest()
    _renew_settings(access, snapshot)
    status_bar.status_bar(snapshot, tick_s=st.session_state.get("tick_s"))
    replay.bar()
    frame.heading(question, about)
    frame.notice(snapshot)
    for refusal in access.late_refusals():
        st.toast(frame.plain(refusal), icon=":material/block:")
    if look_back and not access.is_replay:
        pictures = access.pictures()
        shown = travel.picture_to_show(snapshot, pictures)
        travel.slider(snapshot, shown, pictures)
        render(shown, access.recent(history_steps, None if shown is snapshot else shown.step))
    else:
        render(snapshot, access.recent(history_steps))
    st.session_state["tick_s"] = time.perf_counter() - began
