"""Stands in for the live engine behind `pages.parts.engine_access`: plays fake snapshots, notes the commands."""

from __future__ import annotations

import threading
from dataclasses import replace
from typing import Any

from core.clock import WallClock
from core.commands import CommandResult, Outcome
from core.config import check_pair, replace_knobs
from core.control import LOCAL, AuditEntry, Lease, LeaseView
from core.errors import ControlRefused, UnknownRequest
from core.load_spec import LoadSpec
from core.picture_history import PictureHistory
from core.records import RequestRecord, StepRecord
from core.request import SamplingParams, validate_sampling
from core.run_record import RunRecord
from core.snapshot import EngineSnapshot
from core.story import Story
from core.streams import RequestStream, StreamEnd, StreamPiece
from tests.fake_snapshots import FakeRun, busy_run


class FakeLive:
    """The calls that pages make, on a `FakeRun`; `play()` moves it in a thread, else it stands still."""

    def __init__(self, run: FakeRun | None = None) -> None:
        self.run = run or busy_run()
        self.clock = WallClock()
        self.control = Lease(lease_s=600.0)  # no test of a slow machine is about silence
        self.commands: list[tuple[str, dict[str, Any]]] = []
        self.load: LoadSpec | None = LoadSpec()
        self.steps_per_s: float | None = None
        self.streams: dict[str, RequestStream] = {}
        self.state = "running"
        self.past = PictureHistory(period_s=0.0)
        self.picture = self._publish()
        self._thread: threading.Thread | None = None
        self._stop = threading.Event()

    def _publish(self) -> EngineSnapshot:
        picture = replace(self.run.snapshot(wall_time_s=self.clock.now()), state=self.state)
        self.past.add(picture)
        return picture

    def play(self, period_s: float = 0.12) -> FakeLive:
        """Advance one step every `period_s` in a daemon thread."""

        def loop() -> None:
            while not self._stop.wait(period_s):
                if self.state == "running":
                    self.run.advance()
                    del self.run.records[:-3000]
                    self._speak()
                self.picture = self._publish()

        self._thread = threading.Thread(target=loop, name="fake-live", daemon=True)
        self._thread.start()
        return self

    def _speak(self) -> None:
        for stream in self.streams.values():
            if stream.end is None:
                stream.push(StreamPiece(1, " token", self.clock.now()))
                if stream.num_tokens >= 40:
                    stream.finish(StreamEnd("finished", "length", "", self.clock.now()))

    def close(self) -> None:
        self._stop.set()

    def latest(self) -> EngineSnapshot:
        return self.picture

    def history(self, since_step: int = -1) -> tuple[StepRecord, ...]:
        return tuple(r for r in tuple(self.run.records) if r.step > since_step)

    def pictures(self) -> tuple[EngineSnapshot, ...]:
        return self.past.pictures

    def requests(self) -> tuple[RequestRecord, ...]:
        return tuple(self.run.requests)

    def run_record(self) -> RunRecord:
        raise ControlRefused("this engine records nothing; start it with a recorder")

    def audit(self) -> tuple[AuditEntry, ...]:
        return ()

    def story(self, request_id: str) -> Story | None:
        return self.run.story(request_id)

    def lease(self) -> LeaseView:
        return self.control.view()

    def acquire(self, session_id: str, token: str | None = None) -> LeaseView:
        return self.control.acquire(session_id, token)

    def release(self, session_id: str) -> bool:
        return self.control.release(session_id)

    def heartbeat(self, session_id: str) -> bool:
        return self.control.heartbeat(session_id)

    def check_control(self, session_id: str) -> None:
        self.control.check(session_id)

    def _note(self, name: str, session_id: str, **detail: Any) -> CommandResult:
        self.control.check(session_id)
        self.commands.append((name, detail))
        self.picture = self._publish()
        return CommandResult(Outcome.ACCEPTED)

    def start(self, *, session_id: str = LOCAL, wait_s: float = 2.0) -> CommandResult:
        self.state = "running"
        return self._note("start", session_id)

    def pause(self, *, session_id: str = LOCAL, wait_s: float = 2.0) -> CommandResult:
        self.state = "paused"
        return self._note("pause", session_id)

    def step_once(self, *, session_id: str = LOCAL, wait_s: float = 2.0) -> CommandResult:
        self.run.advance()
        return self._note("step_once", session_id)

    def reset(self, *, session_id: str = LOCAL, wait_s: float = 2.0) -> CommandResult:
        self.run = FakeRun()
        return self._note("reset", session_id)

    def cancel(self, request_id: str, *, session_id: str = LOCAL, wait_s: float = 2.0) -> CommandResult:
        if request_id in self.streams:
            self.streams[request_id].finish(StreamEnd("cancelled", "cancelled", "", self.clock.now()))
        return self._note("cancel", session_id, request_id=request_id)

    def submit(
        self,
        text: str | None = None,
        *,
        sampling: SamplingParams,
        request_id: str,
        session_id: str = LOCAL,
        wait_s: float = 2.0,
        **rest: Any,
    ) -> CommandResult:
        validate_sampling(request_id, sampling)
        self.streams[request_id] = RequestStream(request_id)
        self._note("submit", session_id, text=text, sampling=sampling, **rest)
        return CommandResult(Outcome.ACCEPTED, value=request_id)

    def set_speed(self, steps_per_s: float | None, *, session_id: str = LOCAL, wait_s: float = 2.0) -> CommandResult:
        self.steps_per_s = steps_per_s
        return self._note("set_speed", session_id, steps_per_s=steps_per_s)

    def stream(self, request_id: str) -> RequestStream:
        if request_id not in self.streams:
            raise UnknownRequest(f"no answer is kept for request {request_id}")
        return self.streams[request_id]

    def set_checks(self, on: bool, *, session_id: str = LOCAL, wait_s: float = 2.0) -> CommandResult:
        return self._note("set_checks", session_id, on=on)

    def set_scheduler(self, *, session_id: str = LOCAL, wait_s: float = 2.0, **knobs: Any) -> CommandResult:
        self.control.check(session_id)
        changed = replace_knobs(self.run.scheduler, **knobs)
        check_pair(changed, self.run.cache)
        self.run.scheduler = changed
        return self._note("set_scheduler", session_id, **knobs)

    def set_cache(self, *, session_id: str = LOCAL, wait_s: float = 2.0, **knobs: Any) -> CommandResult:
        self.control.check(session_id)
        check_pair(self.run.scheduler, replace_knobs(self.run.cache, **knobs))
        return self._note("set_cache", session_id, **knobs)

    def set_load(self, *, on: bool = True, session_id: str = LOCAL, wait_s: float = 2.0, **knobs: Any) -> CommandResult:
        self.control.check(session_id)
        self.load = replace_knobs(self.load or LoadSpec(), **knobs) if on else None
        return self._note("set_load", session_id, **knobs)

    def configure(self, *, session_id: str = LOCAL, wait_s: float = 2.0, **changes: Any) -> CommandResult:
        self.control.check(session_id)
        self.load = changes.get("load", self.load)
        self.run.scheduler = changes.get("scheduler") or self.run.scheduler
        return self._note("configure", session_id, **changes)

    def set_model(self, *, session_id: str = LOCAL, wait_s: float = 2.0, **knobs: Any) -> CommandResult:
        return self._note("set_model", session_id, **knobs)
