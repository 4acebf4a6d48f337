"""How far a what-if can be trusted: the error line that always stands, and the tab with every figure and step behind it."""

from __future__ import annotations

from collections.abc import Callable

import pandas as pd
import streamlit as st

from core.charts import formats, what_if
from core.whatif_words import FIGURES
from pages.parts import engine_access, frame, whatif_run
from pages.parts.paired import shown

PACE_TOLD = 0.15
"""From which difference on it is said that the machine has become slower or quicker than the law of the what-if."""

HELD_TOLD = 0.03
"""From which share of the time on it is said that steps were held up by something else."""

_LABELS = {name: label for name, label, _ in FIGURES}
_CHECKED = {"output_tokens_per_s": "throughput", "ttft_p50": "TTFT p50", "tpot_p50": "TPOT p50", "e2e_p50": "E2E p50"}


def error_words(known: whatif_run.Known, check: whatif_run.Check) -> tuple[str, str]:
    """The error against the live engine, and what it covers."""
    parts = [f"{_CHECKED[p.name]} {100 * p.error:+.0f} %" for p in check.pairs if p.name in _CHECKED and p.error is not None]
    law, run = known.base.calibration, check.of
    if law is not None:
        parts.append(
            f"step time {formats.percent(law.error.median)} median error of {formats.count(law.error.steps)} held-out steps"
        )
    text = f"Error against the live engine: {', '.join(parts) or 'not known yet'}"
    if run is None or not check.pairs:
        return text, check.why or "its requests are being simulated"
    kind = f"closed loop of {run.load.users} users, simulated" if run.load is not None and run.load.is_closed else "simulated"
    about = (
        f"its latest {formats.seconds(run.span_s)} under unchanged settings: {formats.count(len(run.compared))} requests,"
        f" {formats.count(len(run.records))} steps, {kind} at the pace of that time"
    )
    notes = []
    if check.like_steps is not None:
        notes.append(f"like steps in a row differ by {formats.percent(check.like_steps)} on this machine")
    if check.held_s > HELD_TOLD * run.span_s:
        notes.append(f"the machine stood still for {formats.seconds(check.held_s)} of that time, which no prediction knows")
    now = known.base.calibration.coefficients.factor if known.base.calibration is not None else 1.0
    if abs(check.pace / now - 1) > PACE_TOLD:
        notes.append(f"that time was {check.pace / now:.2g} times as slow as the what-if is priced; Measure again takes it up")
    return text, "; ".join([about, *notes])


def error_line(known: whatif_run.Known, is_marked: Callable[[], bool]) -> None:
    """The error, always in the same place; it looks at the live engine again by itself.

    Args:
        is_marked: True if the figures beside it carry what was measured; they are drawn anew when that comes.
    """

    is_first = True

    @st.fragment(run_every=whatif_run.CHECK_RETRY_S)
    def line() -> None:
        nonlocal is_first
        if not whatif_run.is_known():
            st.rerun()  # somebody pressed Measure again, which reaches this fragment alone
        check = whatif_run.checked(engine_access.engine(), known.base)
        text, about = error_words(known, check)
        with st.container(key="whatif_error"):
            left, right = st.columns([0.84, 0.16], gap="small", vertical_alignment="center")
            with left:
                st.caption(frame.plain(f"{text} ({about})"))
            with right:
                st.button(
                    "Measure again", key="whatif_again", on_click=whatif_run.look_again, type="tertiary",
                    icon=":material/refresh:",
                )  # fmt: skip
        if check.pairs and not is_first and not is_marked():
            st.rerun()  # not while the page itself is being drawn: the figures come after this line
        is_first = False

    line()


def trust_tab(known: whatif_run.Known) -> None:
    """Every compared figure, and every held-out step."""
    check = whatif_run.checked(engine_access.engine(), known.base)
    left, right = st.columns(2, gap="medium")
    with left:
        frame.figure_head(
            "Does a predicted run look like the measured one?",
            f"the latest {len(check.of.compared)} requests" if check.of else "",
            how="What the live engine really had lately, simulated under its own settings: the same requests at their own times,"
            " or the same closed loop.",
        )
        if not check.pairs:
            frame.empty(check.why or "The live requests are being simulated.", key="trust", height=200)
        else:
            rows = [
                {
                    "figure": _LABELS.get(p.name, p.name.replace("_", " ")),
                    "measured": shown(p.measured, "s" if p.unit == "s" else ""),
                    "predicted": shown(p.predicted, "s" if p.unit == "s" else ""),
                    "error": f"{100 * p.error:+.1f} %" if p.error is not None else formats.NONE,
                }
                for p in check.pairs
            ]
            st.dataframe(pd.DataFrame(rows), hide_index=True, key="trust_table")
    with right:
        law = known.base.calibration
        frame.figure_head(
            "Is the time of a step predicted?",
            f"{formats.count(law.error.steps)} held-out steps · measured" if law else "",
            how=f"{formats.percent(what_if.share_within(law.residuals, 0.1))} of them within 10 %." if law else "",
        )
        if law is None:
            frame.empty(
                "No law yet: too few steps have been measured, so the probe's ceilings price a step.", key="law", height=320
            )
        else:
            frame.chart(
                what_if.residual_frame(law.residuals),
                what_if.residual_spec(frame.theme()),
                key="residuals",
                alt="Predicted against measured step time",
            )
    if known.base.calibration is not None:
        by_kind = known.base.calibration.by_kind
        words = "; ".join(
            f"{k}: {formats.percent(e.median)} median, {formats.percent(e.p90)} p90 of {e.steps}" for k, e in by_kind
        )
        st.caption(frame.plain(f"Step time error by kind of step: {words}."))
