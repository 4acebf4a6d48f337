"""An engine and a load, run to the end of the load, a limit or a stop; every record is kept.

    arrivals due -> add_request -> step -> note record, ended requests -> tell the load        until all has ended
    nothing to run: wait (wall clock) or jump (virtual clock) to the next arrival

Whatever the executor and the clock are: the real model, the simulator, or a what-if of either.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from core.clock import StepClock, VirtualClock, let_pass
from core.engine import Engine
from core.errors import RequestRefused
from core.load_driver import MAX_SUBMISSIONS_A_STEP, REFUSED_PAUSE_S
from core.output_processor import ENDING_EVENTS
from core.records import RequestRecord, StepRecord
from core.request import SLO, SamplingParams
from core.simulator import Load
from core.workload import Arrival

POLL_S = 0.2


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a run is; `total` is None for a load without end."""

    steps: int
    ended: int
    total: int | None
    output_tokens: int
    time_s: float


class EngineRun:
    """One run. `run` it, then read `steps`, `requests` (in the order of their ends), `refused`, `complete` and `note`.

    Args:
        sampling: of every request; `max_tokens` comes from the arrival.
        total: number of requests of the load, for progress; None if it has no end.
        max_steps, max_time_s: limits; reaching one that was asked for is a complete run.
        source: who asked, for the books.
    """

    def __init__(
        self,
        engine: Engine,
        load: Load,
        sampling: SamplingParams,
        *,
        total: int | None = None,
        max_steps: int | None = None,
        max_time_s: float | None = None,
        should_stop: Callable[[], bool] = lambda: False,
        source: str = "scenario",
    ) -> None:
        self.engine, self._load, self._sampling, self._source = engine, load, sampling, source
        self._total, self._max_steps, self._max_time_s, self._should_stop = total, max_steps, max_time_s, should_stop
        self.steps: list[StepRecord] = []
        self.requests: list[RequestRecord] = []
        self.refused: dict[str, int] = {}
        self.note = ""
        self.complete = False
        self._users: dict[str, int] = {}
        self._tokens = 0
        engine.between_launches = self._submit_due

    def run(self, on_step: Callable[[Progress], None] | None = None) -> None:
        """Run to the end, a limit, or until `should_stop` says so; closes the engine."""
        start_s = self.engine.clock.now()
        try:
            while not self._is_over(start_s):
                if not self._advance():
                    self.complete = True
                    break
                if on_step is not None:
                    ended = len(self.requests) + sum(self.refused.values())
                    on_step(Progress(len(self.steps), ended, self._total, self._tokens, self.engine.clock.now() - start_s))
        except KeyboardInterrupt:
            self.note = f"stopped by the user after {len(self.steps)} steps"
        finally:
            self.engine.close()

    def _is_over(self, start_s: float) -> bool:
        """True at a limit or on a stop; says which."""
        if self._should_stop():
            self.note = f"stopped by the user after {len(self.steps)} steps"
        elif self.engine.failed:
            self.note = self.engine.message
        elif self._max_steps is not None and len(self.steps) >= self._max_steps:
            self.complete, self.note = True, f"ended at the limit of {self._max_steps} steps that was asked for"
        elif self._max_time_s is not None and self.engine.clock.now() - start_s >= self._max_time_s:
            self.complete, self.note = True, f"ended at the limit of {self._max_time_s:g} s that was asked for"
        return bool(self.note)

    def _advance(self) -> bool:
        """Submit what is due and run a step, or let time pass; False at the end."""
        engine = self.engine
        self._submit_due()
        if not engine.has_work():
            due_s = self._load.next_time_s
            if due_s is None:
                return False
            self._wait_until(due_s)
            return True
        before = engine.latest_record
        events = engine.step()
        ends = [e for e in events if e.kind in ENDING_EVENTS and e.kind != "refused"]
        self._tokens += sum(e.kind == "token" for e in events)
        if ends:
            self.requests += reversed(engine.telemetry.requests[: len(ends)])
        for event in ends:
            self._load.on_end(self._users.pop(event.request_id, -1), event.time_s)
        if engine.latest_record is not before and engine.latest_record is not None:
            self.steps.append(engine.latest_record)
        elif engine.scheduler.has_work():
            self._wait_for_wakeup()
        return True

    def _submit_due(self) -> None:
        for arrival in self._load.due(self.engine.clock.now(), MAX_SUBMISSIONS_A_STEP):
            self._submit(arrival)

    def _wait_until(self, due_s: float) -> None:
        clock = self.engine.clock
        if isinstance(clock, VirtualClock):
            clock.advance_to(due_s)
        elif isinstance(clock, StepClock):
            clock.on_step_end()
        else:
            let_pass(clock, min(max(due_s - clock.now(), 0.0), POLL_S))

    def _wait_for_wakeup(self) -> None:
        """Something waits and nothing could run: until a quota, a deadline or an arrival changes that."""
        now_s = self.engine.clock.now()
        times = [t for t in (self._load.next_time_s, self.engine.scheduler.next_wakeup(now_s)) if t is not None and t > now_s]
        self._wait_until(min(times, default=now_s + 1e-3))

    def _submit(self, arrival: Arrival) -> None:
        params = replace(self._sampling, max_tokens=arrival.max_tokens)
        try:
            request_id = self.engine.add_request(
                arrival.prompt_token_ids,
                params,
                tenant=arrival.tenant,
                priority=arrival.priority,
                slo=SLO(arrival.slo_ttft_s, arrival.slo_itl_s),
                source=self._source,
                arrival_time_s=arrival.time_s,
            )
        except RequestRefused as refusal:
            self.refused[str(refusal.reason)] = self.refused.get(str(refusal.reason), 0) + 1
            self._load.on_end(arrival.user, self.engine.clock.now() + REFUSED_PAUSE_S)
            return
        if arrival.user >= 0:
            self._users[request_id] = arrival.user
