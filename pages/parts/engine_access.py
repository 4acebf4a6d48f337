"""The only door from the pages to the engine: pictures come out, commands go in, refusals come back as words.

    latest(), recent(n), story(), stream()     reads; no lock, never waits for the engine
    pause(), submit(), set_scheduler(), ...    commands; run at the next step boundary, answered with an `Answer`

A page never sees the engine itself. Tests and scenery put something else behind the door with `install`.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import streamlit as st
from streamlit import runtime
from streamlit.runtime.scriptrunner import get_script_run_ctx

from core import scenario_follow
from core.bundle import RunBundle
from core.clock import WallClock
from core.comparison import Comparison, Runs
from core.control import AuditEntry
from core.errors import BatchscopeError
from core.live_bundle import bundle_of
from core.load_spec import LoadSpec
from core.records import RequestRecord, StepRecord
from core.replay_view import ReplayView
from core.request import SamplingParams
from core.snapshot import EngineSnapshot

LEAST_WAIT_S, MOST_WAIT_S = 0.3, 2.0
"""How long a page waits for a step boundary: two steps of the present length, between these; it says "waiting" after that."""

wall_clock = WallClock()
_installed: list[Any] = []
_tabs: dict[str, str] = {}
"""Session id -> Streamlit's id of the browser tab behind it; a tab that is gone gives control back at once."""
MAX_TABS = 1000
_REPLAY = "replay_view"
_UNANSWERED = "unanswered_commands"


@dataclass(frozen=True, slots=True)
class Answer:
    """What became of a command: `ok`, one sentence for the person, a value such as a request id.

    `waiting`: no step boundary came in time; a refusal is shown when it comes.
    """

    ok: bool
    message: str = ""
    value: Any = None
    waiting: bool = False


def install(live: Any) -> None:
    """Put `live` behind the door in place of the process's engine; None takes it away again."""
    _installed[:] = [] if live is None else [live]


def _live() -> Any:
    if _installed:
        return _installed[0]
    from core.live import get_live  # imports the engine only where one is wanted

    return get_live()


def session_id() -> str:
    """This browser session's id, for the lease and the audit list."""
    session = str(st.session_state.setdefault("batchscope_session_id", secrets.token_hex(8)))
    context = get_script_run_ctx(suppress_warning=True)
    if context is not None and session not in _tabs:
        while len(_tabs) >= MAX_TABS:
            del _tabs[next(iter(_tabs))]
        _tabs[session] = context.session_id
    return session


def _is_gone(session: str) -> bool:
    """True if the browser tab of a session was closed or loaded anew."""
    tab = _tabs.get(session)
    return tab is not None and runtime.exists() and not runtime.get_instance().is_active_session(tab)


class Access:
    """The engine as one browser session may use it."""

    def __init__(self, live: Any, session: str) -> None:
        self._live = live
        self.session = session

    def latest(self) -> EngineSnapshot:
        """The newest picture."""
        picture: EngineSnapshot = self._live.latest()
        return picture

    def recent(self, steps: int, until: int | None = None) -> tuple[StepRecord, ...]:
        """Records of the last `steps` steps, up to step `until` where one looks back; oldest first."""
        newest = self._live.latest().step if until is None else until
        records: tuple[StepRecord, ...] = self._live.history(newest - steps)
        return records if until is None else tuple(r for r in records if r.step <= until)

    def requests(self) -> tuple[RequestRecord, ...]:
        """Records of ended requests, newest first; bounded."""
        records: tuple[RequestRecord, ...] = self._live.requests()
        return records

    def pictures(self) -> tuple[EngineSnapshot, ...]:
        """Earlier pictures of this run, oldest first; bounded, the older the fewer."""
        kept: tuple[EngineSnapshot, ...] = self._live.pictures()
        return kept

    def audit(self) -> tuple[AuditEntry, ...]:
        """The last commands, newest first."""
        entries: tuple[AuditEntry, ...] = self._live.audit()
        return entries

    @property
    def is_replay(self) -> bool:
        """True where what is shown is a recorded run."""
        return isinstance(self._live, ReplayView)

    def bundle_source(self) -> Callable[[], RunBundle]:
        """What makes a bundle of the run that is shown; it may be called in another thread and takes its time."""
        live = self._live
        return lambda: bundle_of(live)

    def story(self, request_id: str) -> Any:
        """Everything that happened to a request."""
        return self._live.story(request_id)

    def stream(self, request_id: str) -> Any:
        """The answer of a submitted request as it grows: `.text`, `.end`, `.num_tokens`."""
        return self._live.stream(request_id)

    @property
    def load(self) -> LoadSpec | None:
        """The running load; None if there is none."""
        spec: LoadSpec | None = self._live.load
        return spec

    @property
    def steps_per_s(self) -> float | None:
        """The speed limit; None is as fast as it goes."""
        limit: float | None = self._live.steps_per_s
        return limit

    @property
    def needs_token(self) -> bool:
        """True where taking control needs the dashboard's token."""
        return bool(self._live.lease().needs_token)

    @property
    def is_controller(self) -> bool:
        """True where this session may give commands: it has control, or nobody has and none is needed to take it."""
        lease = self._lease()
        return lease.holder == self.session or (lease.holder is None and not lease.needs_token)

    @property
    def holder(self) -> str:
        """Label of whoever has control; empty if nobody."""
        lease = self._lease()
        return str(lease.label or "another session") if lease.holder else ""

    def _lease(self) -> Any:
        """The lease, taken back from a holder whose browser tab is gone."""
        lease = self._live.lease()
        if lease.holder is not None and lease.holder != self.session and _is_gone(lease.holder):
            self._live.release(lease.holder)
            lease = self._live.lease()
        return lease

    def _do(self, command: Callable[[], Any]) -> Answer:
        try:
            result = command()
        except BatchscopeError as error:
            return Answer(False, str(error))
        outcome = getattr(result, "outcome", None)
        if outcome is None:
            return Answer(True, "", result)
        return Answer(str(outcome) != "refused", result.message, result.value, str(outcome) == "waiting")

    def _give(self, name: str, *args: Any, **kwargs: Any) -> Answer:
        """Give a command; a session that gives one while nobody has control takes it."""

        def run() -> Any:
            if self._lease().holder is None:
                self._live.acquire(self.session)
            return getattr(self._live, name)(*args, **kwargs, session_id=self.session, wait_s=self._patience_s())

        asked_s = wall_clock.now()  # what was refused before is told already
        answer = self._do(run)
        if answer.waiting:
            st.session_state.setdefault(_UNANSWERED, []).append(asked_s)
        return answer

    def _patience_s(self) -> float:
        record = self._live.latest().step_record
        return min(max(LEAST_WAIT_S, 2.0 * record.duration_s if record else 0.0), MOST_WAIT_S)

    def late_refusals(self) -> list[str]:
        """What became of commands of this session that were still waiting when they were answered: the refusals, each once."""
        since: list[float] = st.session_state.get(_UNANSWERED, [])
        if not since:
            return []
        ends = [e for e in self._live.audit() if e.session_id == self.session and e.outcome != "waiting" and e.time_s >= since[0]]
        if not ends:
            return []
        st.session_state[_UNANSWERED] = []
        return [f"{e.command}: {e.message}" for e in ends if e.outcome == "refused"]

    def start(self) -> Answer:
        return self._give("start")

    def pause(self) -> Answer:
        return self._give("pause")

    def step_once(self) -> Answer:
        return self._give("step_once")

    def reset(self) -> Answer:
        return self._give("reset")

    def cancel(self, request_id: str) -> Answer:
        return self._give("cancel", request_id)

    def submit(
        self, text: str, sampling: SamplingParams, *, chat: bool, request_id: str, tenant: str = "default", priority: int = 0
    ) -> Answer:
        """Submit a prompt as one turn of a conversation, or as it stands; the value is the request's id."""
        prompt: dict[str, Any] = {"chat": [{"role": "user", "content": text}]} if chat else {"text": text}
        return self._give("submit", **prompt, sampling=sampling, request_id=request_id, tenant=tenant, priority=priority)

    def set_speed(self, steps_per_s: float | None) -> Answer:
        return self._give("set_speed", steps_per_s)

    def set_checks(self, on: bool) -> Answer:
        return self._give("set_checks", on)

    def set_scheduler(self, **knobs: Any) -> Answer:
        return self._give("set_scheduler", **knobs)

    def set_cache(self, **knobs: Any) -> Answer:
        return self._give("set_cache", **knobs)

    def set_load(self, **knobs: Any) -> Answer:
        return self._give("set_load", **knobs)

    def set_model(self, **knobs: Any) -> Answer:
        return self._give("set_model", **knobs)

    def configure(self, **changes: Any) -> Answer:
        """Change scheduler, cache and load at one step boundary, all or none; what is None stays as it is."""
        return self._give("configure", **{name: change for name, change in changes.items() if change is not None})

    @property
    def settings_changed_s(self) -> float:
        """Engine time of the latest accepted change of settings; 0 if there was none."""
        picture = self._live.latest()
        times = [e.time_s for e in self._live.audit() if e.outcome == "accepted" and e.command in ("configure", "model", "reset")]
        return max(picture.time_s - (picture.wall_time_s - times[0]), 0.0) if times else 0.0

    def follow(self, path: str) -> Answer:
        """Have the engine follow a scenario file; only who has control may say so."""

        def run() -> Any:
            if self._live.lease().holder is None:
                self._live.acquire(self.session)
            self._live.check_control(self.session)
            return scenario_follow.follow(self._live, Path(path))

        return self._do(run)

    def unfollow(self) -> Answer:
        """Follow no file any more."""
        return self._do(lambda: scenario_follow.unfollow(self._live))

    def following(self) -> scenario_follow.FollowStatus | None:
        """How following stands; None if no file is followed."""
        return scenario_follow.following(self._live)

    def compare(self, mode: Runs) -> Comparison:
        """Run a load twice on the engine: a failure mode sick and cured, or a fork under its two configurations.

        Raises:
            ControlRefused: if another session has control.
        """
        if self._lease().holder is None:
            self._live.acquire(self.session)
        comparison = Comparison(self._live, mode, session_id=self.session)
        comparison.start()
        return comparison

    def acquire(self, token: str | None = None) -> Answer:
        return self._do(lambda: self._live.acquire(self.session, token))

    def release(self) -> Answer:
        return self._do(lambda: self._live.release(self.session))

    def heartbeat(self) -> None:
        """Keep the lease alive while the page ticks."""
        self._live.heartbeat(self.session)


def engine() -> Access:
    """What this session looks at: the engine of this process, or the replay that it has opened."""
    view = replay()
    return Access(_live() if view is None else view, session_id())


def replay() -> ReplayView | None:
    """The replay that this session looks at; None while it looks at the live engine."""
    view: ReplayView | None = st.session_state.get(_REPLAY)
    return view


def show_replay(view: ReplayView | None) -> None:
    """Put a replay in the place of the engine, for this session alone; None goes back to the live engine."""
    st.session_state[_REPLAY] = view


def start_load() -> None:
    """From a callback: let the engine run under its load, the usual one where it has none."""
    access = engine()
    if access.load is None:
        access.set_load()
    access.start()
