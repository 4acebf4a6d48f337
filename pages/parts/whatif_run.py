"""What a session has asked to be simulated, and what came back: one process for all sessions, answers kept by digest.

ask(base), ask(target), check(live)  ->  Future  ->  Outcome         poll; nothing here waits longer than `WAIT_S`
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
from core.load_spec import LoadSpec
from core.prediction import Pair
from core.records import StepRecord
from core.sim_jobs import Outcome, SimulationJobs, key_of
from core.snapshot import EngineSnapshot
from core.whatif import Sensitivity, WhatIf
from core.whatif_base import LiveBase, LiveRun, compare_live, live_base, live_run
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
_KEPT = 64


@lru_cache(maxsize=1)
def jobs() -> SimulationJobs:
    """The process that simulates, for all sessions of this server."""
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


def ask(what: WhatIf, max_time_s: float | None = None) -> Future[Outcome]:
    """Simulate, or take the answer that is there already."""
    return _asked(key_of(what, max_time_s), lambda: jobs().run(what, max_time_s))


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
    run: LiveRun | None
    why_no_run: str
    load: LoadSpec | None
    snapshot: EngineSnapshot  # as of then: lengths observed later would have the base run simulated anew at each click


def _mark(snapshot: EngineSnapshot, load: LoadSpec | None) -> tuple[Any, ...]:
    config = snapshot.config
    return (config, load, snapshot.info.kernels if snapshot.info else "", snapshot.ceilings is not None)


def known(
    snapshot: EngineSnapshot, history: Callable[[], Sequence[StepRecord]], changed_s: float, load: LoadSpec | None
) -> Known:
    """The base of every what-if of this session.

    Raises:
        ConfigError: while there is nothing to predict from; the words say what is missing.
    """
    found: Known | None = st.session_state.get("whatif_known")
    now = time.monotonic()
    fresh = found is not None and found.mark == _mark(snapshot, load) and now - found.made_s < BASE_AGE_S
    if fresh and found is not None and found.run is not None:
        return found
    records = history()
    # While too few requests have ended only they are looked for again: another law would ask for every simulation anew.
    base = found.base if fresh and found is not None else live_base(snapshot, records, float(psutil.virtual_memory().total))
    made_s = found.made_s if fresh and found is not None else now
    run, why = None, ""
    try:
        run = live_run(snapshot, records, changed_s)
    except BatchscopeError as error:
        why = str(error)
    found = Known(base, made_s, _mark(snapshot, load), run, why, load, snapshot)
    st.session_state["whatif_known"] = found
    return found


def opened(access: Access, key: str) -> Known | None:
    """What a page predicts from; None, and said on the page, while there is nothing."""
    try:
        return known(access.latest(), lambda: access.recent(LAW_STEPS), access.settings_changed_s, access.load)
    except BatchscopeError as error:
        frame.empty(str(error), "Look again", look_again, key=key, height=320)
    return None


def look_again() -> None:
    """Measure the live engine again with the next drawing."""
    st.session_state.pop("whatif_known", None)


def ask_check(found: Known) -> Future[Outcome] | None:
    """The live engine's own requests or closed loop, simulated; None while too few have ended."""
    if found.run is None:
        return None
    return ask(found.run.same_load_on(found.base.whatif, found.load), found.run.span_s)


def checked(found: Known, future: Future[Outcome] | None) -> tuple[Pair, ...]:
    """Predicted beside measured; empty while there is no answer."""
    outcome = answer(future) if future is not None else None
    if found.run is None or outcome is None or outcome.result is None:
        return ()
    return compare_live(found.run, outcome.result)
