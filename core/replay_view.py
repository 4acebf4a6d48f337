"""A recorded run behind the same questions as the live engine, at any step of it: `latest()`, `history()`, `story()`, ...

    step 0 ----[fork]--------[fork]--------[fork]---- ... ---- last step
                               ^ nearest below the wanted step; from here it is replayed forward

Going back never repeats more than the stretch between two forks. Pictures are those of the replayed engine, numbers of
steps are those that were recorded, and everything is marked "replayed". Commands are refused.
"""

from __future__ import annotations

import threading
from bisect import bisect_right
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from core.bundle import RunBundle
from core.control import AuditEntry, LeaseView
from core.errors import ControlRefused, UnknownRequest
from core.output_processor import TextCodec
from core.records import RequestRecord, StepRecord
from core.replay import Divergence, Replay, ReplayDivergedError
from core.run_record import RunRecord
from core.snapshot import EngineSnapshot, RooflineCeilings
from core.story import Story
from core.streams import RequestStream

MIN_STRIDE, MAX_FORKS = 100, 48
REFUSED = "this is a replay: nothing can be changed in it. Go back to the live engine to give commands"


class ReplayView:
    """A run at one of its steps; any thread, one at a time.

    Args:
        steps: recorded step records, oldest first; they replace those that the replay would make.
        requests: recorded requests; None takes those of the replay.
        tokenizer: gives the texts again, and is needed where requests had stop strings.

    Attributes:
        bundle: what it was made of; None if it was made of a record alone.
        divergence: where this program decides otherwise than the recorded run; the replay ends there.
    """

    def __init__(
        self,
        record: RunRecord,
        *,
        steps: Iterable[StepRecord] = (),
        ceilings: RooflineCeilings | None = None,
        tokenizer: TextCodec | None = None,
        name: str = "",
        load: str = "",
    ) -> None:
        self.name = name
        self.bundle: RunBundle | None = None
        self.divergence: Divergence | None = None
        self._steps = tuple(replace(r, kind="replayed") for r in steps)
        self._step_numbers = [r.step for r in self._steps]
        self._decided = [output.step for output in record.outputs()]
        self._load = load
        self._replay = Replay(record, tokenizer=tokenizer, stored={r.step: r for r in self._steps})
        self._replay.engine.telemetry.ceilings = ceilings
        self._done = 0  # decisions that the replay has made
        self._stride = max(MIN_STRIDE, len(self._decided) // MAX_FORKS)
        self._forks: dict[int, Replay] = {0: self._replay.fork()}
        self._lock = threading.Lock()
        self._picture: EngineSnapshot | None = None

    @staticmethod
    def of(bundle: RunBundle, tokenizer: TextCodec | None = None) -> ReplayView:
        """The view of a bundle."""
        about = bundle.manifest
        view = ReplayView(
            bundle.record,
            steps=bundle.steps,
            ceilings=bundle.ceilings,
            tokenizer=tokenizer,
            name=about.name,
            load=about.load,
        )
        view.bundle = bundle
        return view

    # -- the time bar ----------------------------------------------------------------------------------------

    @property
    def first_step(self) -> int:
        """The first recorded step; 0 for an empty record."""
        return self._decided[0] if self._decided else 0

    @property
    def last_step(self) -> int:
        """The last step that can be shown."""
        if self.divergence is not None:
            return max(self.divergence.step - 1, self.first_step)
        return self._decided[-1] if self._decided else 0

    @property
    def step(self) -> int:
        """The step that is shown."""
        return self._decided[self._done - 1] if self._done else 0

    def seek(self, step: int) -> int:
        """Show the run just after `step` (the nearest one that exists); returns the step that is shown."""
        with self._lock:
            wanted = max(bisect_right(self._decided, step), 1 if self._decided else 0)
            if wanted != self._done:
                self._start_near(wanted)
                self._run_to(wanted)
                self._picture = None
            return self.step

    def _start_near(self, wanted: int) -> None:
        best = max(done for done in self._forks if done <= wanted)
        if not best <= self._done <= wanted:
            self._replay, self._done = self._forks[best].fork(), best

    def _run_to(self, wanted: int) -> None:
        try:
            while self._done < wanted and self._replay.advance():
                self._done += 1
                if self._done % self._stride == 0 and self._done not in self._forks:
                    self._forks[self._done] = self._replay.fork()
        except ReplayDivergedError as error:
            self.divergence = error.divergence

    # -- as core.live_view -----------------------------------------------------------------------------------

    def latest(self) -> EngineSnapshot:
        """The picture of the step that is shown; its state is "paused"."""
        with self._lock:
            if self._picture is None:
                engine = self._replay.engine
                engine.__dict__.pop("_builder", None)  # it reuses rows of earlier pictures, which may be later steps here
                picture = engine.snapshot(state="paused")
                self._picture = replace(picture, wall_time_s=0.0, load_label=self._load, revision=self._done)
            return self._picture

    def history(self, since_step: int = -1) -> tuple[StepRecord, ...]:
        """Recorded steps after `since_step` up to the one that is shown, oldest first."""
        if not self._steps:
            return self._replay.engine.records.since(since_step)
        low, high = bisect_right(self._step_numbers, since_step), bisect_right(self._step_numbers, self.step)
        return self._steps[low:high]

    def requests(self) -> tuple[RequestRecord, ...]:
        """Requests that have ended by now, newest first."""
        return self._replay.engine.telemetry.requests

    def story(self, request_id: str) -> Story | None:
        """A request's life up to the step that is shown."""
        return self._replay.engine.story(request_id)

    def stream(self, request_id: str) -> RequestStream:
        """Answers are not streamed again (UnknownRequest)."""
        raise UnknownRequest(f"{request_id}: a replay streams no answers; the request's text stands in the sets")

    def pictures(self) -> tuple[EngineSnapshot, ...]:
        """No kept pictures: every step can be asked for."""
        return ()

    def audit(self) -> tuple[AuditEntry, ...]:
        """Nothing is commanded in a replay."""
        return ()

    load = None
    steps_per_s = None

    def lease(self) -> LeaseView:
        """Nobody has control of a replay."""
        return LeaseView(holder="replay", label="The replay", needs_token=False)

    def heartbeat(self, session_id: str) -> bool:
        """Nothing to keep."""
        return False

    def __getattr__(self, name: str) -> Any:
        """Every command of the live engine is refused.

        Raises:
            AttributeError: for a name that is no command either.
        """
        if name.startswith("_") or name not in _COMMANDS:
            raise AttributeError(name)

        def refuse(*_args: Any, **_kwargs: Any) -> Any:
            raise ControlRefused(REFUSED)

        return refuse


_COMMANDS = frozenset(
    (
        "start", "pause", "step_once", "reset", "cancel", "submit", "set_priority", "set_speed", "set_scheduler", "set_cache",
        "set_load", "set_model", "configure", "acquire", "release", "hand_over", "check_control",
    )
)  # fmt: skip
