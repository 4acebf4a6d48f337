"""The engine as a small library: ask, step, look.

    engine = create_engine(model="tiny", clock="step", dtype="float32")
    engine.add_request("hello", SamplingParams(max_tokens=8))
    while engine.has_work():
        for event in engine.step(): ...

What a step is stands in `core.engine_core`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from core.clock import VirtualClock, let_pass
from core.config import CacheConfig, SchedulerConfig
from core.engine_commands import Cancel, Recover, Reset, SetCache, SetPriority, SetScheduler, Submit
from core.engine_core import EngineCore
from core.errors import ExecutorError, RequestRefused
from core.intake import Prompt, spread, submission
from core.output_processor import ENDING_EVENTS
from core.outputs import RequestEvent
from core.records import StepRecord
from core.request import FinishReason, SamplingParams
from core.snapshot import EngineSnapshot
from core.snapshot_builder import SnapshotBuilder
from core.snapshot_rows import refused_row
from core.step_history import StepHistory
from core.story import Story, story_of

EMPTY_STEP_WAIT_S = 1e-3


@dataclass(frozen=True, slots=True)
class Completion:
    """One answer, whole.

    Attributes:
        token_ids: every output token, the one that ended the output included.
        text: the joined stream: no stop string, no text of an end token.
    """

    request_id: str
    token_ids: tuple[int, ...]
    text: str
    finish_reason: FinishReason | None


class Engine(EngineCore):
    """Continuous batching over any executor and any clock; see `EngineCore` for the arguments."""

    @cached_property
    def _builder(self) -> SnapshotBuilder:
        return SnapshotBuilder(self.scheduler, self._books, self.telemetry)

    # -- what a caller asks for ----------------------------------------------------------------------------

    def add_request(
        self,
        prompt: Prompt,
        sampling: SamplingParams | None = None,
        *,
        request_id: str | None = None,
        arrival_time_s: float | None = None,
        **fields: Any,
    ) -> str:
        """Queue a prompt, text or token ids; return its id ("r-000001", ... where none is given).

        `fields` are the other fields of `Submit`: tenant, priority, cache_salt, use_prefix_cache, deadline_s, slo, source.

        Raises:
            RequestRefused: with a reason and a message; the engine goes on as before.
        """
        request_id = self._books.free_id() if request_id is None else request_id
        command = Submit(request_id, (), sampling or SamplingParams(), arrival_time_s=arrival_time_s, **fields)
        try:
            command = submission(command, prompt, self.tokenizer)
        except RequestRefused as refusal:
            self._books.refused(refusal, refused_row(command, self.clock.now()), before_scheduler=True)
            raise
        self.apply(command)
        return request_id

    def add_requests(
        self,
        prompts: Sequence[Prompt],
        sampling: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        request_ids: Sequence[str] | None = None,
        **fields: Any,
    ) -> list[str]:
        """Queue several prompts, all or none; return their ids.

        Raises:
            RequestRefused: for lists of unequal length (nothing is queued), or for the first prompt that is refused;
                those before it are cancelled.
        """
        params = spread("sampling", sampling, len(prompts))
        ids = spread("request_ids", list(request_ids) if request_ids is not None else None, len(prompts))
        added: list[str] = []
        try:
            for prompt, each, request_id in zip(prompts, params, ids, strict=True):
                added.append(self.add_request(prompt, each, request_id=request_id, **fields))
        except RequestRefused:
            for request_id in added:
                self.cancel(request_id)
            raise
        return added

    def cancel(self, request_id: str) -> None:
        """End a request in whatever state it is; its blocks are free at once (UnknownRequest if it is not live)."""
        self.apply(Cancel(request_id))

    def set_priority(self, request_id: str, priority: int) -> None:
        """Change a live request's priority (UnknownRequest if it is not live)."""
        self.apply(SetPriority(request_id, priority))

    def set_scheduler(self, config: SchedulerConfig) -> None:
        """Take other knobs from the next step on (ConfigError if they cannot be; nothing changes then)."""
        self.apply(SetScheduler(config))

    def set_cache(self, config: CacheConfig) -> None:
        """Take another pool; what runs is recomputed (ConfigError if it cannot be; nothing is lost then)."""
        self.apply(SetCache(config))

    def reset(self) -> None:
        """Cancel everything, empty the cache, forget history and counts; also a way out of a failed state."""
        self.apply(Reset())

    def recover(self) -> None:
        """Leave a failed state and try again; every request is kept (ExecutorError if nothing can be started)."""
        self.apply(Recover())

    # -- to the end ----------------------------------------------------------------------------------------

    def steps(self, max_steps: int = 100_000) -> Iterator[list[RequestEvent]]:
        """Step until nothing is left to do; yield the events of each step.

        Raises:
            ExecutorError: if the engine failed, or work is left after `max_steps` steps.
        """
        for _ in range(max_steps):
            if not self.has_work():
                break
            yield self.step()
            if self.scheduler.has_work() and self._last_output is not None and not self._last_output.request_ids:
                self._let_pass()
        if self.failed:
            raise ExecutorError(self._books.message)
        if self.has_work():
            left = len(self.scheduler.requests)
            raise ExecutorError(f"{left} requests are left after {max_steps} steps; allow more steps")

    def _let_pass(self) -> None:
        """Nothing could run: a virtual clock goes to the next moment at which something can, a wall clock a little."""
        now = self.clock.now()
        wakeup_s = self.scheduler.next_wakeup(now)
        jump = isinstance(self.clock, VirtualClock) and wakeup_s is not None and wakeup_s > now
        let_pass(self.clock, wakeup_s - now if jump and wakeup_s is not None else EMPTY_STEP_WAIT_S)

    def run_until_idle(self, max_steps: int = 100_000) -> list[RequestEvent]:
        """Step until nothing is left to do; return all events (errors as `steps`)."""
        return [event for events in self.steps(max_steps) for event in events]

    def generate(
        self, prompts: Sequence[Prompt], sampling: SamplingParams | Sequence[SamplingParams] | None = None
    ) -> list[Completion]:
        """Run prompts to their end and return the answers in order; events of other requests are not kept.

        Raises:
            RequestRefused: as `add_requests`.
            ExecutorError: as `steps`.
        """
        ids = self.add_requests(prompts, sampling)
        tokens: dict[str, list[int]] = {request_id: [] for request_id in ids}
        texts: dict[str, list[str]] = {request_id: [] for request_id in ids}
        reasons: dict[str, FinishReason | None] = {}
        for events in self.steps():
            for event in events:
                if event.request_id not in tokens:
                    continue
                if event.token_id is not None:
                    tokens[event.request_id].append(event.token_id)
                if event.text:
                    texts[event.request_id].append(event.text)
                if event.kind in ENDING_EVENTS:
                    reasons[event.request_id] = event.finish_reason
        return [Completion(i, tuple(tokens[i]), "".join(texts[i]), reasons.get(i)) for i in ids]

    # -- what can be seen ----------------------------------------------------------------------------------

    @property
    def records(self) -> StepHistory:
        """Step records, bounded: the newest whole, older ones thinned."""
        return self.telemetry.history

    @property
    def latest_record(self) -> StepRecord | None:
        """The record of the latest step that ran something."""
        return self.telemetry.history.last

    @property
    def message(self) -> str:
        """What a person must know now, "" if nothing."""
        return self._books.message

    @property
    def state(self) -> str:
        """ "failed", "running" or "idle"."""
        if self.failed:
            return "failed"
        return "running" if self.scheduler.has_work() else "idle"

    def story(self, request_id: str) -> Story | None:
        """The life of a request, live or ended not long ago."""
        request = self.scheduler.requests.get(request_id)
        return story_of(request) if request is not None else self._books.stories.get(request_id)

    def snapshot(self, wall_s: float | None = None, state: str | None = None) -> EngineSnapshot:
        """A picture of this step boundary.

        Args:
            wall_s: WallClock time, for a loop that takes many pictures: while it runs, block map and queue may then
                be up to 0.1 s old. None is exact.
            state: what the owner of the loop knows better.
        """
        now = self.clock.now()
        return self._builder.build(
            now,
            wall_s,
            state=state or self.state,
            config=self.config,
            info=self.info,
            last_output=self._last_output,
        )
