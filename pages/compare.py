"""Compare: the same arrivals on the real engine under two configurations, measured, side by side.

question and knobs that differ        ratio, large | outputs identical        two lanes on one time axis        figures in pairs
"""

from __future__ import annotations

import html
import math
from collections.abc import Sequence
from functools import partial

import streamlit as st

from core.charts import formats, lanes
from core.charts.before_after import span_s
from core.comparison import Comparison, ComparisonState, equal_outputs
from core.config import OFF_KNOBS
from core.errors import BatchscopeError
from core.forks import FORKS, Fork, fork, fork_of
from core.load_spec import LoadSpec
from core.records import StepRecord
from core.run_summary import LOWER_IS_BETTER, RunSummary, improvement
from core.snapshot import EngineSnapshot
from pages.parts import engine_access, frame, save_as, ticker
from pages.parts.engine_access import Answer
from pages.parts.knobs import MEMORY, SCHEDULER
from pages.parts.limit import limit
from pages.parts.paired import Pair, paired

COMPARISON, ANSWER, CHOSEN = "fork_run", "fork_answer", "fork"
LIVE = "live"
FIGURES: tuple[tuple[str, str, str], ...] = (
    ("output_tokens_per_s", "Output", "tok/s"),
    ("duration_s", "Duration", "s"),
    ("ttft_p50_s", "TTFT p50", "s"),
    ("ttft_p99_s", "TTFT p99", "s"),
    ("itl_p50_s", "ITL p50", "s"),
    ("itl_p99_s", "ITL p99", "s"),
    ("e2e_p50_s", "E2E p50", "s"),
    ("e2e_p99_s", "E2E p99", "s"),
    ("mean_batch", "Mean batch", "rows"),
    ("mean_step_s", "Mean step", "s"),
    ("steps", "Steps", ""),
    ("useful_share", "Useful FLOPs", "%"),
    ("host_share", "Host share", "%"),
    ("preemptions", "Preemptions", ""),
)
_LABELS = {name: label for name, label, _ in FIGURES} | {"output_tokens_per_s": "throughput"}
LEAST_REQUESTS = 4
_BEGUN = "fork_changed"
_LINKED = "fork_linked"


def _run(chosen: Fork) -> None:
    try:
        st.session_state[COMPARISON] = engine_access.engine().compare(chosen)
        st.session_state.pop(ANSWER, None)
    except BatchscopeError as error:
        st.session_state[ANSWER] = Answer(False, str(error))


def _cancel() -> None:
    comparison: Comparison | None = st.session_state.get(COMPARISON)
    if comparison is not None:
        comparison.cancel()


def _changed() -> None:
    st.session_state[_BEGUN] = True
    st.query_params[CHOSEN] = st.session_state[CHOSEN] or st.session_state[_LINKED]


def _state() -> ComparisonState | None:
    comparison: Comparison | None = st.session_state.get(COMPARISON)
    return comparison.state if comparison is not None else None


def _live_fork(snapshot: EngineSnapshot) -> Fork:
    """The live settings against those of the form below.

    Raises:
        ConfigError: for values that make no sense.
    """
    knobs = {}
    for part in (snapshot.config.scheduler, snapshot.config.cache):
        for name in part.__dataclass_fields__:
            value = st.session_state.get(f"cmp_{name}", getattr(part, name))
            if (value is not None or name in OFF_KNOBS) and value != str(getattr(part, name)) and value != getattr(part, name):
                knobs[name] = value
    load = engine_access.engine().load or LoadSpec()
    return fork_of(snapshot.config.scheduler, snapshot.config.cache, load, knobs, int(st.session_state.get("cmp_requests", 40)))


def _verdict(state: ComparisonState, chosen: Fork) -> None:
    """The ratio, large; whether the outputs are the same; where the time went."""
    first, second = state.before, state.after
    if first is None or second is None:
        return
    gain = improvement(first.summary, second.summary, chosen.compare)
    label = _LABELS.get(chosen.compare, chosen.compare)
    same, total = equal_outputs(first, second)
    ratio = f"{formats.figures(gain)}× the {label}" if gain else f"no {label} to compare"
    if gain and chosen.compare in LOWER_IS_BETTER:
        longer = f"{formats.figures(1 / gain)} times longer"
        ratio = f"{label} {formats.figures(gain)} times shorter" if gain >= 1 else f"{label} {longer}"
    tick = "✓" if same == total else "≈"
    note = "" if same == total else "; in bfloat16 two nearly equal logits may fall either way when the batch differs"
    spans = (
        f"{chosen.names[0]} {formats.seconds(span_s(first.records))}, {chosen.names[1]} {formats.seconds(span_s(second.records))}"
    )
    words = f"{tick} {same} of {total} outputs identical, token for token{note} · {spans}"
    st.html(f'<p class="bs-verdict bs-ratio">{html.escape(f"{chosen.names[1]}: {ratio}")}</p><p>{html.escape(words)}</p>')


def _lanes(state: ComparisonState, chosen: Fork) -> None:
    first, second = state.before, state.after
    assert first is not None
    spans = [span_s(run.records) for run in (first, second) if run is not None]
    step = 10 ** math.floor(math.log10(max(*spans, 1e-3)))
    axis_s = math.ceil(max(spans) / step * 4) / 4 * step
    most = max(r.prefill_requests + r.decode_requests + (0 if r.prefill_requests else r.padded_tokens) for r in first.records)
    if second is not None:
        most = max(most, *(r.prefill_requests + r.decode_requests for r in second.records))
    for name, run, key in zip(chosen.names, (first, second), ("first", "second"), strict=True):
        ended = f"{len(run.requests)} requests · {run.summary.kind}" if run else "under way"
        frame.figure_head(name.capitalize(), ended)
        spec = lanes.lane_spec(frame.theme(), most, axis_s)
        data = lanes.lane_frame(run.records if run else (), axis_s)
        frame.chart(data, spec, key=f"fork_{key}", alt=f"Rows of the batch over time, {name}: decode, prefill, wasted")


def _pairs(first: RunSummary, second: RunSummary | None, names: tuple[str, str]) -> None:
    rows = [
        Pair(label, unit, first.value(name), second.value(name) if second else None, _better(name))
        for name, label, unit in FIGURES
    ]
    paired(rows, names, key="fork_pairs", dashed=(False, False))


def _better(name: str) -> int:
    if name in ("mean_batch", "steps", "mean_step_s"):
        return 0
    return -1 if name in LOWER_IS_BETTER else 1


def _result(state: ComparisonState, chosen: Fork) -> None:
    first = state.before
    if first is None or not first.records:
        frame.empty("The lanes appear when the first run has ended.", key="fork", height=300)
        return
    frame.figures_are_of(save_as.facts_under(first.load))
    _verdict(state, chosen)
    left, right = st.columns([0.6, 0.4], gap="medium")
    with left:
        frame.figure_head(
            "Where does the time go?", f"seed {first.load.seed} · measured", how=f"One time axis, seconds. {chosen.look_at}"
        )
        _lanes(state, chosen)
    with right:
        frame.figure_head("What was measured?", "measured", how="Above: the first configuration. Below: the second.")
        _pairs(first.summary, state.after.summary if state.after else None, chosen.names)


def _progress(state: ComparisonState, chosen: Fork) -> None:
    if state.is_running:
        number, name = (1, chosen.names[0]) if state.phase == "before" else (2, chosen.names[1])
        share = min(state.done / state.total, 1.0) if state.total else 0.0
        st.progress(share, text=f"Run {number} of 2, {name}: {state.done} of {state.total} requests have ended")
    elif state.phase == "failed":
        st.error(frame.plain(state.message), icon=":material/block:")
    elif state.phase == "cancelled":
        st.info(frame.plain(state.message))


def render(snapshot: EngineSnapshot, history: Sequence[StepRecord]) -> None:
    """Draw the chosen fork, and its run under way or its result."""
    if st.session_state.pop(_BEGUN, False):
        st.rerun()  # the knobs of the live fork lie outside the ticking part
    titles = {f.key: f.title for f in FORKS} | {LIVE: "Live settings against others"}
    linked = st.session_state[_LINKED]
    key = st.pills("Fork", list(titles), default=linked, format_func=titles.__getitem__, key=CHOSEN, on_change=_changed) or linked
    state = _state()
    problem = ""
    try:
        chosen = _live_fork(snapshot) if key == LIVE else fork(key)
    except BatchscopeError as error:
        problem = str(error)
        st.error(frame.plain(problem), icon=":material/block:")
        chosen = fork_of(snapshot.config.scheduler, snapshot.config.cache, LoadSpec(), {}, LEAST_REQUESTS)
    if state is not None and state.mode.key == chosen.key and isinstance(state.mode, Fork):
        chosen = state.mode if state.is_running else chosen
    differs = "; ".join(f"{n}: {a} against {b}" for n, a, b in chosen.differences) or (
        "nothing that can run" if problem else "nothing yet: change a knob below"
    )
    frame.numbered([(chosen.question, f"{differs}. Load: {chosen.load.label}.")])
    running = state is not None and state.is_running
    locked = not engine_access.engine().is_controller
    stopped = snapshot.state in ("starting", "failed", "stopped")
    can_run = not (running or locked or stopped or problem) and bool(chosen.differences)
    with st.container(horizontal=True, key="fork_buttons"):
        st.button(
            "Run both", type="primary", key="fork_go", on_click=_run, args=(chosen,),
            disabled=not can_run,
            help="Resets the engine, runs the load under each configuration, and puts your settings back.",
        )  # fmt: skip
        st.button("Cancel", key="fork_cancel", on_click=_cancel, disabled=not running)
    answer: Answer | None = st.session_state.get(ANSWER)
    with st.container(key="fork_answer_slot"):
        if answer is not None and not answer.ok:
            st.error(frame.plain(answer.message), icon=":material/block:")
        elif state is not None and state.mode.key == chosen.key:
            _progress(state, chosen)
    with st.container(key="fork_result"):
        if state is not None and state.mode.key == chosen.key and isinstance(state.mode, Fork):
            _result(state, state.mode)
        else:
            frame.empty(
                "Not run yet. Both runs take a minute or so on two cores.",
                "Run both now" if can_run else None,
                partial(_run, chosen),
                key="fork",
                height=300,
            )


def _knobs() -> None:
    """The second configuration of the live fork; outside the ticking part, so that an open list stays open."""
    config = engine_access.engine().latest().config
    columns = st.columns(4, gap="medium")
    for index, knob in enumerate((*SCHEDULER, *MEMORY)):
        holder = config.scheduler if knob.target == "scheduler" else config.cache
        value = getattr(holder, knob.name)
        with columns[index % 4]:
            key = f"cmp_{knob.name}"
            if knob.choices is not None:
                options = [str(c) for c in knob.choices]
                st.selectbox(knob.label, options, index=options.index(str(value)), key=key, bind="query-params", help=knob.help)
            elif isinstance(value, bool):
                st.toggle(knob.label, value=value, key=key, bind="query-params", help=knob.help)
            elif knob.off:
                limit(knob, value, key, bind="query-params")
            else:
                step = type(value)(knob.step)
                st.number_input(knob.label, value=value, step=step, key=key, bind="query-params", help=knob.help)
    st.number_input(
        "Requests of each run",
        value=40,
        min_value=LEAST_REQUESTS,
        max_value=400,
        step=10,
        key="cmp_requests",
        bind="query-params",
    )


if _LINKED not in st.session_state:  # a link names the fork by its key, the bound widget would by its title
    wanted = st.query_params.get(CHOSEN)
    st.session_state[_LINKED] = wanted if wanted in {LIVE, *(f.key for f in FORKS)} else FORKS[0].key
ticker.live(
    "What does another configuration do, measured on this engine?",
    render,
    about="The same seeded arrivals twice on the real engine. Nothing here is predicted.",
)
if (st.session_state.get(CHOSEN) or st.session_state[_LINKED]) == LIVE:
    frame.figure_head("The second configuration", "starts from the live one", how="Change what the second run should have.")
    _knobs()
frame.footer()
