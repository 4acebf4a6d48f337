"""The right side of a what-if: the verdict, the error against the live engine, paired figures, and the details in tabs."""

from __future__ import annotations

import html
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any

import streamlit as st

from core.charts import what_if
from core.prediction import Pair as Checked
from core.report.caption import facts_of_what_if
from core.sim_jobs import Outcome
from core.sim_result import SimulationResult
from core.whatif import NOTCHES, SWITCHES, WhatIf, first_part
from core.whatif_words import BETTER, FIGURES, bound, headline
from pages.parts import engine_access, frame, whatif_actions, whatif_figures, whatif_run, whatif_trust
from pages.parts.paired import Pair, paired
from pages.parts.whatif_form import Choice

TABS = ("Roofline and next sequence", "Memory", "Sensitivity", "How far to trust it", "Flags and files")
GOALS = ("output_tokens_per_s", "goodput_per_s", "ttft_p95", "itl_p95", "e2e_p95")
_DRAWN = "whatif_drawn"
_ASKED = "whatif_asked"
_DIMMED = "<style>.st-key-whatif_body { opacity: 0.45; }</style>"
_LABELS = {name: label for name, label, _ in FIGURES}


@dataclass(frozen=True, slots=True, eq=False)
class View:
    """All that the tabs share.

    Attributes:
        measured: the live engine's own figures beside their prediction, empty while there are none.
        only: requests of the load that the two runs had; 0 for all of them.
    """

    known: whatif_run.Known
    choice: Choice
    base_what: WhatIf
    target: WhatIf
    base: SimulationResult
    new: SimulationResult
    measured: tuple[Checked, ...]
    only: int = 0


@dataclass(frozen=True, slots=True, eq=False)
class Asked:
    """What is being simulated for a choice: the base run and the what-if.

    Attributes:
        first: both runs with the first requests of the load only; empty for a load that is short already.
    """

    choice: Choice
    base: Future[Outcome]
    target: Future[Outcome]
    first: tuple[Future[Outcome], ...] = ()

    def all(self) -> list[Future[Outcome]]:
        return [*self.first, self.base, self.target]


def _ask(choice: Choice) -> Asked:
    """Ask for all of it, the quick ones first; what another choice still waits for is dropped."""
    assert choice.base is not None
    assert choice.target is not None
    parts = [first_part(what, whatif_run.FIRST_REQUESTS) for what in (choice.base, choice.target)]
    first = tuple(whatif_run.ask_first(part) for part in parts if part is not None) if all(parts) else ()
    base, target = whatif_run.ask(choice.base), whatif_run.ask(choice.target)
    asked = Asked(choice, base, target, first)
    before: Asked | None = st.session_state.get(_ASKED)
    if before is not None:
        wanted = {id(f) for f in asked.all()}
        whatif_run.drop(f for f in before.all() if id(f) not in wanted)
    st.session_state[_ASKED] = asked
    return asked


def results(known: whatif_run.Known, choice: Choice) -> None:
    """Ask for the runs and draw them; until they are there, the results before stand dimmed under a line that says so."""
    whatif_trust.error_line(known, is_marked=_is_marked)
    if choice.base is None or choice.target is None:
        st.error(frame.plain(choice.problem), icon=":material/block:")
        return
    asked = _ask(choice)
    whatif_run.wait(asked.first or [asked.base, asked.target])
    whatif_run.wait([asked.base, asked.target], whatif_run.MORE_S)
    waiting = not _complete(asked)

    @st.fragment(run_every=whatif_run.POLL_S if waiting else None)
    def show() -> None:
        _show(known, asked)
        if waiting == _complete(asked):
            st.rerun()  # the period belongs to the fragment: made anew with one, or without

    show()


def _is_marked() -> bool:
    """True if the figures on the page carry what was measured, or are still to come."""
    view: View | None = st.session_state.get(_DRAWN)
    return view is None or bool(view.measured)


def _complete(asked: Asked) -> bool:
    """True if nothing more will come: both runs, and the sensitivity strip where it is open."""
    if not (asked.base.done() and asked.target.done()):
        return False
    if st.session_state.get("whatif_tab") != TABS[2] or asked.choice.target is None:
        return True
    knobs, goal = _knobs_of(asked.choice.target), st.session_state.get("w_goal") or GOALS[0]
    return len(whatif_run.notches(asked.choice.target, str(goal), knobs)) == len(knobs)


def _show(known: whatif_run.Known, asked: Asked) -> None:
    choice = asked.choice
    assert choice.base is not None
    assert choice.target is not None
    first, second = whatif_run.answer(asked.base), whatif_run.answer(asked.target)
    view: View | None = st.session_state.get(_DRAWN)
    only = 0
    if first is None or second is None:
        quick = [whatif_run.answer(f) for f in asked.first]
        if len(quick) == 2 and all(q is not None and q.result is not None for q in quick):
            first, second = quick
            only = whatif_run.FIRST_REQUESTS
    under_way = first is None or second is None
    if first is not None and second is not None:
        if first.result is None or second.result is None:
            with st.container(key="whatif_verdict"):
                st.html(f'<p class="bs-verdict">{"The what-if" if second.problem else "The live settings"} cannot run</p>')
            st.error(frame.plain(second.problem or first.problem), icon=":material/block:")
            return
        measured = whatif_run.checked(engine_access.engine(), known.base).pairs
        view = View(known, choice, choice.base, choice.target, first.result, second.result, measured, only)
        st.session_state[_DRAWN] = view
    with st.container(key="whatif_verdict"):
        _verdict(view, under_way)
    if view is None:
        frame.empty("The figures appear when both runs are done.", key="whatif_wait", height=420)
        return
    st.html(_DIMMED if under_way else "<style></style>")
    load = view.choice.load
    frame.figures_are_of(facts_of_what_if(view.target, view.base_what, load.words if load is not None else ""))
    with st.container(key="whatif_body"):
        _hero(view)
        _tabs(view)


def _verdict(view: View | None, under_way: bool) -> None:
    if view is None:
        words, about = "Simulating…", "The first run starts a process of its own, which takes a few seconds."
    elif under_way:
        words, about = "Simulating the change…", "Dimmed below: the what-if before it."
    else:
        same = not view.choice.changed and view.base == view.new
        words = "As live: turn a knob, or take one of the examples above" if same else headline(view.base, view.new)
        changed = "; ".join(f"{n} {a} → {b}" for n, a, b in view.choice.changed)
        part = f"first answer, from {view.only} requests; the whole load follows" if view.only else ""
        about = " · ".join(x for x in (part, changed, view.choice.load.words if view.choice.load else "") if x)
    st.html(f'<p class="bs-verdict">{html.escape(words)}</p><p>{html.escape(about)}</p>')


def _measured(view: View) -> dict[str, float | None]:
    """Measured figures, for the load that the live engine really had."""
    if view.choice.load is None or view.choice.load.trace is not None:
        return {}
    return {p.name: p.measured for p in view.measured}


def _hero(view: View) -> None:
    left, right = st.columns([0.56, 0.44], gap="medium")
    measured = _measured(view)
    with left:
        how = "Above: the live settings. Below: the what-if. Tick: what the live engine measured lately." if measured else (
            "Above: the live settings. Below: the what-if. Both runs get the same requests.")  # fmt: skip
        frame.figure_head("What changes?", "predicted", how=how)
        rows = [
            Pair(label, unit, view.base.figure(name), view.new.figure(name), BETTER.get(name, 0), measured.get(name))
            for name, label, unit in FIGURES
        ]
        costs = whatif_figures.cost_pairs(view.base_what, view.base, view.target, view.new)
        paired([*rows, *costs], (what_if.BASE, what_if.NEW), key="whatif_pairs")
    with right:
        _series(view)
        moved = f"{bound(view.base)} → {bound(view.new)}" if bound(view.base) != bound(view.new) else bound(view.new)
        frame.figure_head("What bounds the batch?", f"mostly {moved} · predicted")
        names = list(dict.fromkeys([n for n, _ in view.base.bound_shares] + [n for n, _ in view.new.bound_shares]))
        first, second = dict(view.base.bound_shares), dict(view.new.bound_shares)
        shares = [Pair(n, "%", first.get(n, 0.0), second.get(n, 0.0)) for n in names]
        paired(shares, (what_if.BASE, what_if.NEW), key="whatif_bound")


def _series(view: View) -> None:
    data = what_if.series_frame(view.base.series, view.new.series)
    ground = frame.theme()
    frame.figure_head("How full is the KV cache?", "predicted", how="Share of the blocks that live requests hold.")
    spec = what_if.series_spec(ground, "kv", True)
    frame.chart(data, spec, key="whatif_kv", alt="KV use over time of both runs")
    frame.figure_head("How many wait?", "predicted", how="Requests in the queue.")
    spec = what_if.series_spec(ground, "waiting", False, 120)
    frame.chart(data, spec, key="whatif_waiting", alt="Waiting requests over time of both runs")


def _tabs(view: View) -> None:
    drawings: tuple[Any, ...] = (
        lambda: whatif_figures.roofline_tab(view.known, view.target, view.new),
        lambda: whatif_figures.memory_tab(view.known, view.target),
        lambda: _sensitivity(view),
        lambda: whatif_trust.trust_tab(view.known),
        lambda: whatif_actions.files_tab(view.known, view.choice, view.target),
    )
    for tab, draw in zip(st.tabs(TABS, key="whatif_tab", bind="query-params", on_change="rerun"), drawings, strict=True):
        with tab:
            if tab.open:
                draw()


def _knobs_of(target: WhatIf) -> list[str]:
    """Knobs with notches: a fitted law has no ceilings to move, a closed loop no rate."""
    known = [k for k in (*NOTCHES, *SWITCHES) if target.coefficients is None or k not in ("memory_bandwidth", "peak_flops")]
    return [k for k in known if k != "rate" or target.load is None or not target.load.is_closed]


def _sensitivity(view: View) -> None:
    goal = st.segmented_control(
        "Goal", GOALS, default=GOALS[0], format_func=_LABELS.__getitem__, key="w_goal", bind="query-params", required=True
    )
    known = _knobs_of(view.target)
    done = whatif_run.notches(view.target, str(goal), known)
    frame.figure_head(
        f"What would a notch of each knob do to {_LABELS[str(goal)]}?",
        f"predicted · {len(done)} of {len(known)} knobs",
        how="Each knob alone, one notch down and one up from the what-if; a knob without a bar changes nothing.",
    )
    data = what_if.sensitivity_frame(done, view.new.figure(str(goal)))
    if data.empty:
        frame.empty("The bars appear as each knob has been simulated.", key="sensitivity", height=330)
    else:
        frame.chart(data, what_if.sensitivity_spec(frame.theme()), key="sensitivity", alt="Change of the goal by knob and notch")
