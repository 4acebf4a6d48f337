"""The watched scenario file: its path, and what became of the latest save."""

from __future__ import annotations

import streamlit as st

from core.charts import formats
from core.clock import WallClock
from pages.parts import engine_access, frame
from pages.parts.engine_access import Answer

_ANSWER = "scenario_answer"
_clock = WallClock()


def _start() -> None:
    st.session_state[_ANSWER] = engine_access.engine().follow(str(st.session_state.get("scenario_path", "")))


def _stop() -> None:
    st.session_state[_ANSWER] = engine_access.engine().unfollow()


@st.fragment(run_every=1.0)
def watched() -> None:
    """Draw the path and the state; ticks by itself, because a save happens elsewhere."""
    access = engine_access.engine()
    status = access.following()
    frame.figure_head(
        "A file that the live engine follows",
        "applied at the next step boundary",
        how="Save it in your editor: scheduler, cache and load take effect. A broken file changes nothing and shows its line.",
    )
    with st.container(horizontal=True, vertical_alignment="bottom", key="scenario_row"):
        st.text_input("Path on the server", value=str(status.path) if status else "scenario.toml", key="scenario_path", width=420)
        st.button("Follow", key="scenario_follow", on_click=_start, disabled=not access.is_controller)
        st.button("Stop", key="scenario_stop", on_click=_stop, disabled=not access.is_controller or status is None)
    answer: Answer | None = st.session_state.get(_ANSWER)
    if answer is not None and not answer.ok:
        st.error(frame.plain(answer.message), icon=":material/block:")
    elif status is None:
        st.caption("No file is followed.")
    elif status.problem:
        st.error(
            frame.plain(f"{status.path.name}: {status.problem}. The settings before it stay in force."), icon=":material/block:"
        )
    elif status.at_s is None:
        st.caption(frame.plain(f"Waiting for {status.path} to be saved."))
    else:
        ago = formats.seconds(max(_clock.now() - status.at_s, 0.0))
        st.caption(frame.plain(f"{status.name} is in force, read {ago} ago; {status.applied} saves took effect."))
