"""A failure mode shown live: the same seeded load twice on the engine, once sick and once cured.

    reset + sick knobs + load  ->  until idle  ->  reset + cured knobs + load  ->  until idle  ->  old knobs again

Runs in a thread of its own, gives only commands that a person could give, and holds nothing that the engine
waits for. A page polls `state`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

from core.background import BackgroundWork
from core.clock import Clock, WallClock
from core.commands import CommandResult
from core.config import CacheConfig, SchedulerConfig
from core.detectors import DETECTORS, Verdict
from core.errors import BatchscopeError, ControlRefused
from core.live import LiveEngine
from core.load_spec import LoadSpec
from core.outputs import RequestEvent
from core.records import RequestRecord, StepRecord
from core.run_summary import RunSummary, improvement, summarise

POLL_S = 0.05
LIMIT_S = 240.0
MODEL_LIMIT_S = 120.0
COMMAND_LIMIT_S = 30.0
"""A command waits for the step under way, which may take seconds on a busy machine; that is no refusal."""


NOTHING_TO_FIND = Verdict("", False, None, None, 0.0, "", "a comparison of two configurations has no fault to find")


class Transcript:
    """Output tokens by request, told by the engine's thread."""

    def __init__(self) -> None:
        self._tokens: dict[str, list[int]] = {}

    def __call__(self, events: Sequence[RequestEvent]) -> None:
        for event in events:
            if event.kind == "token" and event.token_id is not None:
                self._tokens.setdefault(event.request_id, []).append(event.token_id)

    def tokens(self, requests: Sequence[RequestRecord]) -> tuple[tuple[int, ...], ...]:
        """One tuple for each of the requests, in order of submission (ids are numbered by it, and never again)."""
        ids = sorted((r.request_id for r in requests), key=lambda name: (len(name), name))
        return tuple(tuple(self._tokens.get(name, ())) for name in ids)


def equal_outputs(first: RunResult, second: RunResult) -> tuple[int, int]:
    """(requests whose tokens agree, requests compared)."""
    pairs = list(zip(first.tokens, second.tokens, strict=False))
    return sum(a == b for a, b in pairs), max(len(first.tokens), len(second.tokens))


@dataclass(frozen=True)
class RunResult:
    """One of the two runs: its steps, its ended requests, what the detector says, and the summary.

    Attributes:
        tokens: output token ids of each request, in the order in which the load made the requests.
    """

    scheduler: SchedulerConfig
    cache: CacheConfig
    load: LoadSpec
    records: tuple[StepRecord, ...]
    requests: tuple[RequestRecord, ...]
    verdict: Verdict
    summary: RunSummary
    tokens: tuple[tuple[int, ...], ...] = ()


class Runs(Protocol):
    """What may be run twice: a failure mode with its cure, or a fork with its two sides."""

    @property
    def key(self) -> str: ...

    @property
    def title(self) -> str: ...

    @property
    def detector(self) -> str: ...

    @property
    def compare(self) -> str: ...

    @property
    def engine(self) -> Mapping[str, Any]:
        """Knobs of EngineConfig for both runs; empty for the engine as it is."""
        ...

    def configs(self, cured: bool) -> tuple[SchedulerConfig, CacheConfig, LoadSpec]: ...


@dataclass(frozen=True)
class ComparisonState:
    """How far a comparison is.

    Attributes:
        phase: "before", "after", "done", "failed" or "cancelled".
        done, total: ended and expected requests of the run under way.
        before, after: results, None until they are there.
        improvement: how many times better the cured run is in the mode's figure.
    """

    mode: Runs
    phase: str = "before"
    done: int = 0
    total: int = 0
    message: str = ""
    before: RunResult | None = None
    after: RunResult | None = None
    improvement: float | None = None

    @property
    def is_running(self) -> bool:
        return self.phase in ("before", "after")


@dataclass(frozen=True)
class _Old:
    """What to restore afterwards."""

    engine: dict[str, Any]
    scheduler: SchedulerConfig
    cache: CacheConfig
    load: LoadSpec | None
    paused: bool


class Comparison(BackgroundWork):
    """One comparison on one live engine.

    Args:
        live: the engine; the calling session must have control of it.
        session_id: in whose name the commands are given.
        cure_too: False runs only the sick half.
    """

    def __init__(
        self, live: LiveEngine, mode: Runs, *, session_id: str, cure_too: bool = True, clock: Clock | None = None
    ) -> None:
        super().__init__("comparison")
        self._live = live
        self._session = session_id
        self._cure_too = cure_too
        self._clock = clock or WallClock()
        self.state = ComparisonState(mode)

    def start(self) -> None:
        """Begin; returns at once.

        Raises:
            ControlRefused: if this session has no control.
        """
        self._live.heartbeat(self._session)
        self._thread.start()

    def _run(self) -> None:
        picture = self._live.latest()
        config, knobs = picture.config, self.state.mode.engine
        here = {name: getattr(config, name) for name in knobs}
        old = _Old(here, config.scheduler, config.cache, self._live.load, picture.state == "paused")
        try:
            self._set_engine(knobs)
            before = self._one_run(cured=False)
            self.state = replace(self.state, before=before, phase="after" if self._cure_too else "done")
            if self._cure_too:
                after = self._one_run(cured=True)
                gain = improvement(before.summary, after.summary, self.state.mode.compare)
                self.state = replace(self.state, after=after, improvement=gain, phase="done")
        except _Cancelled:
            self.state = replace(self.state, phase="cancelled", message="cancelled; the former settings are back")
        except BatchscopeError as error:
            self.state = replace(self.state, phase="failed", message=str(error))
        finally:
            self._restore(old)

    def _restore(self, old: _Old) -> None:
        try:
            self._set_engine(old.engine)
            self._live.configure(
                session_id=self._session,
                scheduler=old.scheduler,
                cache=old.cache,
                load=old.load,
                reset=True,
                wait_s=COMMAND_LIMIT_S,
            )
            if old.paused:
                self._live.pause(session_id=self._session, wait_s=COMMAND_LIMIT_S)
        except BatchscopeError as error:
            self.state = replace(
                self.state, message=f"{self.state.message} The former settings did not come back: {error}".strip()
            )

    def _set_engine(self, knobs: Mapping[str, Any]) -> None:
        """Start another engine where a comparison needs one."""
        if knobs and any(getattr(self._live.config, name) != value for name, value in knobs.items()):
            self._accepted(self._live.set_model(session_id=self._session, wait_s=MODEL_LIMIT_S, **knobs))

    def _accepted(self, result: CommandResult) -> None:
        if not result.accepted:
            raise ControlRefused(result.message)

    def _one_run(self, *, cured: bool) -> RunResult:
        """Run the load once under one set of knobs, from an empty engine to the last request's end."""
        live, session = self._live, self._session
        scheduler, cache, load = self.state.mode.configs(cured)
        total = load.total_requests or 0
        self.state = replace(self.state, done=0, total=total)
        live.heartbeat(session)
        heard = Transcript()
        with live.listening(heard):
            self._accepted(
                live.configure(
                    session_id=session, scheduler=scheduler, cache=cache, load=load, reset=True, wait_s=COMMAND_LIMIT_S
                )
            )
            self._accepted(live.start(session_id=session, wait_s=COMMAND_LIMIT_S))
            records, requests = self._follow(total)
        detector = self.state.mode.detector
        verdict = DETECTORS[detector](records) if detector else NOTHING_TO_FIND
        return RunResult(scheduler, cache, load, records, requests, verdict, summarise(records, requests), heard.tokens(requests))

    def _follow(self, total: int) -> tuple[tuple[StepRecord, ...], tuple[RequestRecord, ...]]:
        """Wait until every request of the load has ended."""
        live = self._live
        end_s = self._clock.now() + LIMIT_S
        while True:
            counts = live.load_counts
            self.state = replace(self.state, done=counts.ended + counts.refused)
            if counts.ended + counts.refused >= total and live.latest().num_running == 0:
                break
            if self._cancelled.wait(POLL_S):
                raise _Cancelled
            if not live.is_alive or live.latest().state == "failed":
                raise ControlRefused(f"the engine stopped: {live.latest().message or 'no message'}")
            if self._clock.now() > end_s:
                raise ControlRefused(f"{counts.ended} of {total} requests ended within {LIMIT_S:.0f} s; this machine is too slow")
            live.heartbeat(self._session)
        return live.history(-1), live.requests()  # the engine was reset: all of history is this run


class _Cancelled(Exception):
    """Leaves the runs; never leaves this module."""
