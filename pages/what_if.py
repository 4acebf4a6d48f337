"""What-if: knobs beside their live values, and what would happen, predicted by the same scheduler on a virtual clock.

left: knobs with the live value as a ghost mark        right: verdict in words | paired figures | KV use over time
tabs: roofline and marginal cost | memory | sensitivity | trust | flags and files
"""

from __future__ import annotations

from collections.abc import Sequence

import streamlit as st

from core.records import StepRecord
from core.snapshot import EngineSnapshot
from pages.parts import engine_access, frame, ticker, whatif_form, whatif_keys, whatif_results, whatif_run


def _nothing(snapshot: EngineSnapshot, history: Sequence[StepRecord]) -> None:
    """The ticking part of this page is its frame only."""


def _presets(known: whatif_run.Known) -> None:
    with st.container(horizontal=True, key="whatif_presets", gap="small"):
        for name in whatif_form.PRESETS:
            st.button(name, key=f"preset_{name}", on_click=whatif_form.take_preset, args=(name, known.base.whatif))
        st.button("As live", key="preset_none", on_click=whatif_keys.forget, icon=":material/restart_alt:")


def _page() -> None:
    access = engine_access.engine()
    known = whatif_run.opened(access, "whatif")
    if known is None:
        return
    _presets(known)
    left, right = st.columns([0.27, 0.73], gap="medium")
    with left:
        choice = whatif_form.form(known.base, known.snapshot, access.load)
    with right:
        whatif_results.results(known, choice)


ticker.live(
    "What would happen with other knobs, hardware or load?",
    _nothing,
    about="The live engine's own scheduler on a virtual clock. Its error against the live engine is always shown.",
)
_page()
frame.footer()
