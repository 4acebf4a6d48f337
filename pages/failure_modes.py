"""Failure modes: each one run live with a click, found by its detector, cured by one knob, measured side by side."""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd
import streamlit as st

from core.charts import before_after, formats
from core.comparison import Comparison, ComparisonState, RunResult
from core.detectors import DETECTORS, LIMIT_REASONS, Verdict, amount, judge
from core.errors import BatchscopeError
from core.failure_modes import FAILURE_MODES, FailureMode, failure_mode
from core.records import StepRecord
from core.run_summary import RunSummary, improvement
from core.snapshot import EngineSnapshot
from pages.parts import engine_access, frame, save_as, ticker
from pages.parts.engine_access import Answer

COMPARISON = "comparison"
ANSWER = "comparison_answer"
CHOSEN = "mode"
FIGURES: tuple[tuple[str, str], ...] = (
    ("output_tokens_per_s", "Output tokens/s"),
    ("ttft_p50_s", "TTFT p50"),
    ("ttft_p99_s", "TTFT p99"),
    ("itl_p50_s", "ITL p50"),
    ("itl_p99_s", "ITL p99"),
    ("e2e_p50_s", "E2E p50"),
    ("mean_batch", "Mean batch (rows)"),
    ("useful_share", "Useful FLOPs"),
    ("host_share", "Host share"),
    ("preemptions", "Preemptions"),
    ("prefix_hit_share", "Prefix hits"),
    ("steps", "Steps"),
    ("duration_s", "Duration"),
)


def shown(name: str, value: float | None) -> str:
    """A figure of the summary with its unit."""
    if name.endswith("_share"):
        return formats.percent(value)
    if name.endswith("_s") and not name.endswith("per_s"):
        return formats.seconds(value)
    return formats.figures(value)


def figures_table(before: RunSummary, after: RunSummary | None) -> pd.DataFrame:
    """One row a figure: sick, cured, and how many times better."""
    rows = []
    for name, label in FIGURES:
        gain = improvement(before, after, name) if after else None
        rows.append(
            {
                "figure": label,
                "before": shown(name, before.value(name)),
                "after": shown(name, after.value(name)) if after else formats.NONE,
                "times better": formats.figures(gain) if gain else formats.NONE,
            }
        )
    return pd.DataFrame(rows)


def limit_words(verdict: Verdict) -> str:
    """ "30 %" for a share, "5 times", "48 steps": as the sentences of the detectors say it."""
    unit = {"share": "", "x": " times"}.get(verdict.unit, f" {verdict.unit}")
    return f"{amount(verdict.limit, verdict.unit)}{unit}"


def _verdict(verdict: Verdict) -> str:
    if verdict.value is None:
        return verdict.sentence
    begun = f"began at step {verdict.began_at}" if verdict.found else "not found"
    return f"{begun}: {verdict.sentence}"


def _run(mode: FailureMode) -> None:
    try:
        st.session_state[COMPARISON] = engine_access.engine().compare(mode)
        st.session_state.pop(ANSWER, None)
    except BatchscopeError as error:
        st.session_state[ANSWER] = Answer(False, str(error))


def _cancel() -> None:
    comparison: Comparison | None = st.session_state.get(COMPARISON)
    if comparison is not None:
        comparison.cancel()


def _apply_cure(mode: FailureMode) -> None:
    access = engine_access.engine()
    answer = access.set_scheduler(**mode.cure_scheduler) if mode.cure_scheduler else Answer(True)
    if answer.ok and mode.cure_cache:
        answer = access.set_cache(**mode.cure_cache)
    st.session_state[ANSWER] = answer


def _state() -> ComparisonState | None:
    comparison: Comparison | None = st.session_state.get(COMPARISON)
    return comparison.state if comparison is not None else None


def _progress(state: ComparisonState) -> None:
    words = {"before": "Run 1 of 2, with the fault", "after": "Run 2 of 2, with the cure"}
    if state.is_running:
        share = state.done / state.total if state.total else 0.0
        st.progress(min(share, 1.0), text=f"{words[state.phase]}: {state.done} of {state.total} requests have ended")
    elif state.phase == "failed":
        st.error(frame.plain(state.message), icon=":material/block:")
    elif state.phase == "cancelled":
        st.info(frame.plain(state.message))


def _result(state: ComparisonState) -> None:
    before, after = state.before, state.after
    if before is None:
        frame.empty("The figures appear when the first run has ended.", key="comparison", height=260)
        return
    frame.figures_are_of(save_as.facts_under(before.load))
    frame.figure_head(
        f"{state.mode.title}: the same load, before and after the cure",
        f"{before.summary.kind} · {len(before.requests)} requests · seed {before.load.seed}",
        how="Both lanes have one time axis. Grey is work on padding and finished rows; the lane that ends earlier is faster.",
    )
    axis_s = max(before_after.span_s(before.records), before_after.span_s(after.records if after else ()))
    _lane("Before: with the fault", before, axis_s, "before")
    _lane("After: with the cure", after, axis_s, "after")
    left, right = st.columns([3, 2], gap="large")
    with left:
        st.dataframe(figures_table(before.summary, after.summary if after else None), hide_index=True, height=492, key="figures")
    with right:
        _verdicts(state.mode, before, after, state.improvement)


def _lane(title: str, run: RunResult | None, axis_s: float, key: str) -> None:
    """One run on the common time axis."""
    ended = f"ended after {formats.seconds(before_after.span_s(run.records))}" if run else "under way"
    frame.figure_head(title, ended)
    data = before_after.lane_frame(run.records if run else (), axis_s)
    frame.chart(data, before_after.lane_spec(frame.theme()), key=f"lane_{key}", alt=f"Tokens per second over time. {title}")


def _verdicts(mode: FailureMode, before: RunResult, after: RunResult | None, gain: float | None) -> None:
    label = dict(FIGURES)[mode.compare]
    items = [("The detector, before", _verdict(before.verdict))]
    items.append(("The detector, after the cure", _verdict(after.verdict) if after else "the second run is under way"))
    if gain is not None:
        items.append((f"{label}: {formats.figures(gain)} times better", f"cure: {mode.cure_words}"))
    others = [v for v in judge(before.records) if v.found and v.name != mode.detector]
    items.append(("Also found in the first run", "; ".join(v.name for v in others) or "nothing else"))
    frame.numbered(items)


def _watch(history: Sequence[StepRecord]) -> None:
    """What the detectors say of the run that is on the screen now."""
    frame.figure_head(
        "Does the engine suffer from any of these now?",
        frame.span_of(history),
        how="Every detector on the last steps of the live run.",
    )
    found = sorted(judge(history), key=lambda v: not v.found)
    rows = [
        (
            f"{'▲' if v.found else '–'} {v.name}",
            f"since step {formats.count(v.began_at)}" if v.began_at is not None else "no",
            f"{v.sentence}. Why this limit: {LIMIT_REASONS[v.name]}",
        )
        for v in found
    ]
    frame.plain_table(
        ("failure mode", "found", "in words"), rows, key="detectors", quiet=[k for k, v in enumerate(found) if not v.found]
    )


def render(snapshot: EngineSnapshot, history: Sequence[StepRecord]) -> None:
    """Draw the chosen mode, its run under way or its result, and the detectors on the live run."""
    titles = {m.key: m.title for m in FAILURE_MODES}
    key = st.pills(
        "Failure mode", list(titles), format_func=titles.__getitem__, default="ragged-tail", key=CHOSEN, bind="query-params"
    )
    mode = failure_mode(key or "ragged-tail")
    state = _state()
    running = state is not None and state.is_running
    limit = limit_words(DETECTORS[mode.detector](()))
    frame.numbered(
        [
            (mode.question, mode.mechanism),
            ("What to look at", mode.look_at),
            (f"Found above a limit of {limit}", f"a convention: {LIMIT_REASONS[mode.detector]}"),
            ("The one knob that cures it", mode.cure_words),
        ]
    )
    locked = not engine_access.engine().is_controller
    with st.container(horizontal=True, key="mode_buttons"):
        st.button(
            "Run it, then cure it",
            type="primary",
            key="run_mode",
            on_click=_run,
            args=(mode,),
            disabled=running or locked or snapshot.state in ("starting", "failed", "stopped"),
            help="Resets the engine, runs the load twice, and puts your settings back.",
        )
        st.button("Cancel", key="cancel_mode", on_click=_cancel, disabled=not running)
        st.button(
            "Apply the cure to the live engine", key="apply_cure", on_click=_apply_cure, args=(mode,), disabled=running or locked
        )
    answer: Answer | None = st.session_state.get(ANSWER)
    with st.container(key="mode_answer"):
        if answer is not None and not answer.ok:
            st.error(frame.plain(answer.message), icon=":material/block:")
        elif state is not None:
            _progress(state)
    with st.container(key="mode_result"):
        if state is not None and state.mode.key == mode.key:
            _result(state)
        else:
            frame.empty("Not run yet. Both runs take a minute or two on two cores.", key="comparison", height=260)
    _watch(history)
    frame.footer()


ticker.live("What goes wrong, how is it seen, and what cures it?", render)
