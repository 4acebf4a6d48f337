"""The replay of a recorded run in place of the live engine: which step is shown, and the bar that moves it.

REPLAY of evening peak, recorded 2026-01-02, measured    [|<] [<] [play] [>] [>|]  ----o--------  step 40 of 72   [close]
"""

from __future__ import annotations

import html
from collections.abc import Callable

import streamlit as st

from core.bundle import read_bundle
from core.charts import formats
from core.errors import BatchscopeError
from core.repeat import codec_of
from core.replay_view import ReplayView
from pages.parts import engine_access

AT = "replay_at"
PLAYING = "replay_playing"
SPEED = "replay_speed"
SPEEDS = {"1 step": 1, "5 steps": 5, "25 steps": 25, "100 steps": 100}


def open_replay(view: ReplayView) -> None:
    """Show a run from its first step on."""
    engine_access.show_replay(view)
    st.session_state[AT] = view.seek(view.first_step)
    st.session_state[PLAYING] = False


def open_bundle(content: bytes, name: str) -> str:
    """Read a bundle and show it; returns "" or why that cannot be."""
    try:
        bundle = read_bundle(content, name)
        open_replay(ReplayView.of(bundle, codec_of(bundle)))
    except BatchscopeError as error:
        return str(error)
    return ""


def close_replay() -> None:
    """Back to the live engine."""
    engine_access.show_replay(None)
    st.session_state[PLAYING] = False


def follow() -> None:
    """Bring the replay to the step that is asked for; while it plays, some steps further. Call it before anything is read."""
    view = engine_access.replay()
    if view is None:
        return
    step = int(st.session_state.get(AT, view.first_step))
    if st.session_state.get(PLAYING):
        step = min(step + SPEEDS[st.session_state.get(SPEED) or "1 step"], view.last_step)
        st.session_state[PLAYING] = step < view.last_step
    st.session_state[AT] = view.seek(step)


def _go(step: int) -> None:
    st.session_state[PLAYING] = False
    st.session_state[AT] = step


def _slide(key: str) -> None:
    _go(int(st.session_state[key]))


def _play(on: bool, first: int | None) -> None:
    st.session_state[PLAYING] = on
    if first is not None:
        st.session_state[AT] = first


def bar() -> None:
    """Draw the bar; nothing while the page shows the live engine."""
    view = engine_access.replay()
    with st.container(key="replay_bar"):
        if view is None:
            return
        _mark(view)
        if view.divergence is not None:
            words = f"This version decides otherwise than the recorded run from step {view.divergence.step} on; it ends there."
            st.warning(words, icon=":material/warning:")
        first, last, at = view.first_step, view.last_step, view.step
        with st.container(horizontal=True, vertical_alignment="center", key="replay_controls"):
            # A tick may carry a press along twice; keys and arguments that hold the place make the second one do nothing.
            playing = bool(st.session_state.get(PLAYING))
            again = first if at >= last and not playing else None
            _button("first_page", "First step", "first", at, _go, first)
            _button("chevron_left", "One step back", "back", at, _go, max(at - 1, first))
            if playing:
                _button("pause", "Pause", "pause", first, _play, False, None)
            else:
                _button("play_arrow", "Play", "play", first, _play, True, again)
            _button("chevron_right", "One step on", "next", at, _go, min(at + 1, last))
            _button("last_page", "Last step", "last", at, _go, last)
            if last > first:
                # Its key holds the step, so that a tick on its way cannot bring an old place back.
                key = f"replay_slider_{at}"
                st.slider("Step", first, last, at, key=key, label_visibility="collapsed", on_change=_slide, args=(key,))
            st.selectbox("Steps a tick", list(SPEEDS), key=SPEED, label_visibility="collapsed", width=110, help="While it plays")
            st.button("Back to the live engine", icon=":material/close:", on_click=close_replay, key="replay_close")


def _button(icon: str, words: str, name: str, at: int, action: Callable[..., None], *args: object) -> None:
    # The words are its name for screen readers; the style sheet shows its icon alone.
    st.button(words, icon=f":material/{icon}:", help=words, key=f"replay_{name}_{at}", on_click=action, args=args)


def _mark(view: ReplayView) -> None:
    bundle = view.bundle
    recorded = f", recorded {bundle.manifest.created}, {bundle.manifest.kind} then" if bundle else ""
    partial = f" Partial: {bundle.manifest.note}." if bundle and not bundle.manifest.complete else ""
    words = f"{view.name}{recorded}. Step {formats.count(view.step)} of {formats.count(view.last_step)}.{partial}"
    st.html(f'<p class="bs-replay"><b>REPLAY</b> {html.escape(words)} Every number on this page is replayed.</p>')
