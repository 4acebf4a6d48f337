"""What a session has asked to be simulated, and what came back: two processes for all sessions, answers kept by digest.

ask(base), ask(target), checked(live)  ->  Future  ->  Outcome         poll; nothing here waits longer than `WAIT_S`
"""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import psutil
import streamlit as st

from core.errors import BatchscopeError
from core.live_check import LiveRun, compare_live, kernels_since, live_run, unchanged_since
from core.load_spec import LoadSpec
from core.prediction import Pair
from core.sim_jobs import Outcome, SimulationJobs, key_of
from core.snapshot import EngineSnapshot
from core.whatif import Sensitivity, WhatIf
from core.whatif_base import LiveBase, live_base
from pages.parts import frame
from pages.parts.engine_access import Access

WAIT_S = 0.6
"""How long a page run waits for a first answer before it draws without: no tick of the page comes meanwhile."""

MORE_S = 0.1
"""How much longer it waits for the whole load, which then saves drawing twice."""

FIRST_REQUESTS = 40
"""A first answer comes from so many requests of the load; the page says so, and draws the whole load when it is there."""

POLL_S = 0.25

LAW_STEPS = 4000
BASE_AGE_S = 300.0
"""A law is kept for so long: anew it would have every run of the page simulated again. Measure again does it at once."""

YOUNG_STEPS = 1000
"""A law of fewer steps is fitted anew as soon as there are twice as many."""

CHECK_AGE_S, CHECK_RETRY_S = 30.0, 5.0
"""The live engine is held against its prediction as often; and, while too few requests have ended, looked at."""
_KEPT = 64
_KNOWN, _CHECK = "whatif_known", "whatif_check"


@lru_cache(maxsize=2)
def jobs(first: bool = False) -> SimulationJobs:
    """The process that simulates, for all sessions of this server; `first`: the one for first answers.

    They have one of their own because a person waits for them, and the other may be at a long run.
    """
    made = SimulationJobs()
    made.warm()
    return made


def _futures() -> OrderedDict[str, Future[Any]]:
    kept: OrderedDict[str, Future[Any]] = st.session_state.setdefault("whatif_futures", OrderedDict())
    while len(kept) > _KEPT:
        kept.popitem(last=False)
    return kept


def _asked(key: str, submit: Callable[[], Future[Any]]) -> Future[Any]:
    kept = _futures()
    if key not in kept or kept[key].cancelled() or (kept[key].done() and kept[key].exception() is not None):
        kept[key] = submit()
    kept.move_to_end(key)
    return kept[key]


def ask(what: WhatIf, max_time_s: float | None = None, warm_up_s: float = 0.0) -> Future[Outcome]:
    """Simulate, or take the answer that is there already."""
    return _asked(key_of(what, max_time_s, warm_up_s), lambda: jobs().run(what, max_time_s, warm_up_s))


def ask_first(what: WhatIf) -> Future[Outcome]:
    """Simulate the first requests of a load at once, whatever else is being simulated."""
    return _asked(key_of(what, "first"), lambda: jobs(first=True).run(what))


def ask_notch(what: WhatIf, goal: str, knob: str) -> Future[Sensitivity]:
    """One knob's notches."""
    return _asked(key_of(what, goal, knob), lambda: jobs().sensitivity(what, goal, knob))


def notches(what: WhatIf, goal: str, knobs: Sequence[str]) -> list[Sensitivity]:
    """Answers so far; two knobs are asked for at a time, so that another question does not wait behind them all."""
    done: list[Sensitivity] = []
    open_ones = 0
    for knob in knobs:
        future = ask_notch(what, goal, knob)
        if future.done() and not future.cancelled() and future.exception() is None:
            done.append(future.result())
            continue
        open_ones += 1
        if open_ones == 2:
            break
    return done


def wait(futures: Sequence[Future[Any]], limit_s: float = WAIT_S) -> bool:
    """Wait a moment; True if all have answered."""
    end = time.monotonic() + limit_s
    while not all(f.done() for f in futures) and time.monotonic() < end:
        time.sleep(0.01)
    return all(f.done() for f in futures)


def drop(futures: Iterable[Future[Any]]) -> None:
    """Take back what was asked for another choice and has not begun: the next answer shall not wait behind it."""
    for future in futures:
        future.cancel()


def answer(future: Future[Outcome]) -> Outcome | None:
    """The outcome; None while it is under way; a process that died is an outcome with its words."""
    if not future.done() or future.cancelled():
        return None
    error = future.exception()
    return Outcome(None, f"the simulation ended with {type(error).__name__}: {error}") if error else future.result()


# -- the live engine ----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, eq=False)
class Known:
    """The live engine as it was when the page looked: kept for some minutes, or until its settings change."""

    base: LiveBase
    made_s: float
    mark: tuple[Any, ...]
    load: LoadSpec | None
    snapshot: EngineSnapshot  # as of then: lengths observed later would have the base run simulated anew at each click


@dataclass(slots=True, eq=False)
class Check:
    """The live engine held against its own prediction, once in a while.

    Attributes:
        run: what it did; None, and `why` says why, while too few requests have ended.
        pairs: the latest answer, which stands until the next one is there; `of` is the run that it belongs to.
        pace, like_steps, held_s: how slow the window's steps were beside what the law says now, how far like ones differ, and
            for how long the machine stood still.
    """

    base: LiveBase
    made_s: float
    run: LiveRun | None = None
    why: str = ""
    future: Future[Outcome] | None = None
    pairs: tuple[Pair, ...] = ()
    of: LiveRun | None = None
    pace: float = 1.0
    like_steps: float | None = None
    held_s: float = 0.0


def _mark(snapshot: EngineSnapshot, load: LoadSpec | None) -> tuple[Any, ...]:
    config = snapshot.config
    return (config, load, snapshot.info.kernels if snapshot.info else "", snapshot.ceilings is not None)


def known(access: Access) -> Known:
    """The base of every what-if of this session.

    Raises:
        ConfigError: while there is nothing to predict from; the words say what is missing.
    """
    snapshot, load = access.latest(), access.load
    found: Known | None = st.session_state.get(_KNOWN)
    now = time.monotonic()
    if found is not None and found.mark == _mark(snapshot, load) and now - found.made_s < BASE_AGE_S:
        is_grown = found.base.steps >= YOUNG_STEPS or snapshot.step < found.snapshot.step + found.base.steps
        if is_grown:
            return found
    since_s = kernels_since(snapshot, access.pictures())
    records = [r for r in access.recent(LAW_STEPS) if r.start_s >= since_s]
    found = Known(live_base(snapshot, records, float(psutil.virtual_memory().total)), now, _mark(snapshot, load), load, snapshot)
    st.session_state[_KNOWN] = found
    return found


def opened(access: Access, key: str) -> Known | None:
    """What a page predicts from; None, and said on the page, while there is nothing."""
    for made in (jobs(), jobs(first=True)):
        made.warm()  # the process may have ended since; it is there again when a knob is turned
    try:
        return known(access)
    except BatchscopeError:
        _until_known(access, key)
    return None


def _until_known(access: Access, key: str) -> None:
    """What is missing; the page is drawn by itself once it is there."""

    @st.fragment(run_every=CHECK_RETRY_S)
    def look() -> None:
        try:
            known(access)
        except BatchscopeError as error:
            frame.empty(str(error), "Look again", look_again, key=key, height=320)
        else:
            st.rerun()

    look()


def look_again() -> None:
    """Measure the live engine again with the next drawing."""
    st.session_state.pop(_KNOWN, None)
    st.session_state.pop(_CHECK, None)


def is_known() -> bool:
    """False once somebody has asked to look again: the page is then drawn anew."""
    return _KNOWN in st.session_state


def checked(access: Access, base: LiveBase) -> Check:
    """The live engine's own requests or closed loop, simulated and compared; looked at anew when that is old."""
    found: Check | None = st.session_state.get(_CHECK)
    now = time.monotonic()
    age_s = CHECK_AGE_S if found is not None and found.run is not None else CHECK_RETRY_S
    is_asked = found is not None and found.future is not None and not found.future.done()
    is_other = found is not None and found.base is not base  # another law: what was said of the old one does not hold for it
    if found is None or is_other or (now - found.made_s >= age_s and not is_asked):
        found = st.session_state[_CHECK] = _look(access, base, found, now)
    outcome = answer(found.future) if found.future is not None else None
    if outcome is not None and found.of is not found.run and found.run is not None:
        found.of = found.run
        found.pairs = compare_live(found.run, outcome.result) if outcome.result is not None else ()
        found.why = outcome.problem
    return found


def _look(access: Access, base: LiveBase, before: Check | None, now: float) -> Check:
    snapshot = access.latest()
    made = Check(base, now)
    if before is not None and before.base is base:
        made.pairs, made.of = before.pairs, before.of
    if access.steps_per_s is not None:
        made.why = "the engine runs under a speed limit, which no prediction knows"
        return made
    try:
        since_s = unchanged_since(snapshot, access.pictures(), access.audit())
        run = live_run(snapshot, access.recent(LAW_STEPS), since_s, access.load)
    except BatchscopeError as error:
        made.why, made.pairs, made.of = str(error), (), None
        return made
    cost = base.whatif.setup().cost
    made.run, made.pace, made.like_steps = run, run.pace(base.whatif), run.like_steps_differ(cost)
    made.held_s = run.held_s(base.whatif)
    made.future = ask(run.what(base.whatif), run.span_s, run.warm_up_s)
    return made
