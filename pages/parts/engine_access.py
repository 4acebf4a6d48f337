"""The only door from the pages to the engine: pictures come out, commands go in, refusals come back as words.

    latest(), recent(n), story(), stream()     reads; no lock, never waits for the engine
    pause(), submit(), set_scheduler(), ...    commands; run at the next step boundary, answered with an `Answer`

A page never sees the engine itself. Tests and scenery put something else behind the door with `install`.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import streamlit as st

from core.comparison import Comparison
from core.errors import BatchscopeError
from core.failure_modes import FailureMode
from core.load_spec import LoadSpec
from core.records import StepRecord
from core.request import SamplingParams
from core.snapshot import EngineSnapshot

WAIT_S = 0.3
"""How long a page waits for the next step boundary before it says "waiting"; a long step must not hold a page."""

_installed: list[Any] = []


@dataclass(frozen=True, slots=True)
class Answer:
    """What became of a command: `ok`, one sentence for the person, and a value such as a request id."""

    ok: bool
    message: str = ""
    value: Any = None


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
    return str(st.session_state.setdefault("batchscope_session_id", secrets.token_hex(8)))


class Access:
    """The engine as one browser session may use it."""

    def __init__(self, live: Any, session: str) -> None:
        self._live = live
        self.session = session

    def latest(self) -> EngineSnapshot:
        """The newest picture."""
        picture: EngineSnapshot = self._live.latest()
        return picture

    def recent(self, steps: int) -> tuple[StepRecord, ...]:
        """Records of the last `steps` steps, oldest first."""
        newest = self._live.latest().step
        records: tuple[StepRecord, ...] = self._live.history(newest - steps)
        return records

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
        lease = self._live.lease()
        return lease.holder == self.session or (lease.holder is None and not lease.needs_token)

    @property
    def holder(self) -> str:
        """Label of whoever has control; empty if nobody."""
        lease = self._live.lease()
        return str(lease.label or "another session") if lease.holder else ""

    def _do(self, command: Callable[[], Any]) -> Answer:
        try:
            result = command()
        except BatchscopeError as error:
            return Answer(False, str(error))
        outcome = getattr(result, "outcome", None)
        if outcome is None:
            return Answer(True, "", result)
        return Answer(str(outcome) != "refused", result.message, result.value)

    def _give(self, name: str, *args: Any, **kwargs: Any) -> Answer:
        """Give a command; a session that gives one while nobody has control takes it."""

        def run() -> Any:
            if self._live.lease().holder is None:
                self._live.acquire(self.session)
            return getattr(self._live, name)(*args, **kwargs, session_id=self.session, wait_s=WAIT_S)

        return self._do(run)

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

    def set_scheduler(self, **knobs: Any) -> Answer:
        return self._give("set_scheduler", **knobs)

    def set_cache(self, **knobs: Any) -> Answer:
        return self._give("set_cache", **knobs)

    def set_load(self, **knobs: Any) -> Answer:
        return self._give("set_load", **knobs)

    def set_model(self, **knobs: Any) -> Answer:
        return self._give("set_model", **knobs)

    def compare(self, mode: FailureMode) -> Comparison:
        """Run a failure mode twice on the engine, sick and cured.

        Raises:
            ControlRefused: if another session has control.
        """
        if self._live.lease().holder is None:
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
    """The engine of this process, for this session."""
    return Access(_live(), session_id())
