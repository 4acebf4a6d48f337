"""A recorded run, given again to the same scheduler on a virtual clock.

    recorded commands and start times -> schedule -> decision == recorded decision ? -> recorded tokens -> update

The decisions of a run follow from its configuration, its commands, the times and the sampled tokens. If a replay
decides otherwise, something else got in: `Divergence` names the step and the field.
"""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass

from core.clock import VirtualClock
from core.engine import Engine
from core.errors import BatchscopeError, ExecutorError, WorkerDied
from core.executor import ExecutorInfo
from core.output_processor import TextCodec
from core.outputs import ModelRunnerOutput, SchedulerOutput
from core.records import StepRecord
from core.run_entries import CommandEntry, Entry, FailureEntry
from core.run_record import RunRecord
from core.scheduler import Scheduler
from core.step_record import StepCounts, StepTimes


@dataclass(frozen=True, slots=True)
class Divergence:
    """The first difference between a decision and the recorded one."""

    step: int
    field: str
    recorded: str
    decided: str

    def __str__(self) -> str:
        return f"step {self.step}: {self.field} was {self.recorded} in the record and is {self.decided} now"


class ReplayDivergedError(BatchscopeError):
    """The replay decided otherwise than the record."""

    def __init__(self, divergence: Divergence) -> None:
        super().__init__(str(divergence))
        self.divergence = divergence


def first_difference(recorded: SchedulerOutput, decided: SchedulerOutput) -> Divergence | None:
    """The first field in which two decisions differ, None if they are equal."""
    if recorded == decided:
        return None
    for field in dataclasses.fields(SchedulerOutput):
        old, new = getattr(recorded, field.name), getattr(decided, field.name)
        if old != new:
            return Divergence(recorded.step, field.name, _shortened(old), _shortened(new))
    return None


def _shortened(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 300 else f"{text[:300]}... ({len(text)} characters)"


class ReplayExecutor:
    """Answers each decision as the record did, and moves the clock to the time of the answer.

    Raises (from `execute_model`):
        ReplayDivergedError: if the decision is not the recorded one.
    """

    def __init__(self, record: RunRecord, clock: VirtualClock) -> None:
        self._info = dataclasses.replace(record.header.info, kind="replayed")
        self._clock = clock
        self._entries = record.entries
        self._next = 0

    @property
    def info(self) -> ExecutorInfo:
        return self._info

    def execute_model(self, scheduler_output: SchedulerOutput) -> ModelRunnerOutput:
        """The recorded answer to the next decision."""
        entry: Entry | None = None
        while entry is None or isinstance(entry, CommandEntry):
            if self._next >= len(self._entries):
                raise ExecutorError("the record ends here; nothing says what the executor answered")
            entry = self._entries[self._next]
            self._next += 1
        difference = first_difference(entry.output, scheduler_output)
        if difference is not None:
            raise ReplayDivergedError(difference)
        if isinstance(entry, FailureEntry):
            self._clock.advance_to(entry.failed_s)
            raise (WorkerDied if entry.worker_died else ExecutorError)(entry.message)
        self._clock.advance_to(entry.answered_s)
        return entry.result

    def resize(self, num_blocks: int, block_size: int, num_swap_blocks: int) -> None:
        """Take note of another pool."""
        self._info = dataclasses.replace(self._info, num_blocks=num_blocks, block_size=block_size)

    def close(self) -> None:
        """Nothing to free."""


class _ReplayedEngine(Engine):
    """Books the records of the run itself where they are at hand: they know what the host's work took."""

    stored: Mapping[int, StepRecord] = {}

    def _note(self, output: SchedulerOutput, result: ModelRunnerOutput, times: StepTimes, counts: StepCounts) -> None:
        record = self.stored.get(output.step)
        if record is None:
            super()._note(output, result, times, counts)
            return
        self.telemetry.on_step(dataclasses.replace(record, kind=self.info.kind), counts.queried_tokens)
        self._books.on_decision(output)


class Replay:
    """A recorded run that can be stepped through.

    Args:
        record: the run.
        tokenizer: gives the texts again; None leaves them empty.
        check_laws: check the conservation laws after every step.
        stored: step records of the run by step; without them the replay makes its own, in which the host took no time.
    """

    def __init__(
        self,
        record: RunRecord,
        *,
        tokenizer: TextCodec | None = None,
        check_laws: bool = False,
        stored: Mapping[int, StepRecord] | None = None,
    ) -> None:
        header = record.header
        self.record = record
        self.clock = VirtualClock(_first_time_s(record))
        self.executor = ReplayExecutor(record, self.clock)
        scheduler = Scheduler(
            header.config.scheduler,
            header.config.cache,
            max_model_len=header.max_model_len,
            vocab_size=header.info.spec.vocab_size,
            eos_token_ids=header.eos_token_ids,
            seed=header.config.seed,
            kv_bytes_per_token=header.info.kv_bytes_per_token,
        )
        self.engine = _ReplayedEngine(
            scheduler, self.executor, self.clock, config=header.config, tokenizer=tokenizer, check_laws=check_laws
        )
        self.engine.stored = stored or {}
        self.engine.between_launches = self._submit_late
        self._late: list[CommandEntry] = []
        self._at = 0

    def use(self, executor: ReplayExecutor) -> None:
        """Let another executor answer, from the beginning on."""
        self.executor = self.engine.executor = executor

    def advance(self) -> bool:
        """Carry out the commands up to the next step and that step; False at the end of the record.

        Raises:
            ReplayDivergedError: if the decision is not the recorded one.
        """
        while self._at < len(self.record.entries):
            entry = self.record.entries[self._at]
            self._at += 1
            if isinstance(entry, CommandEntry):
                if entry.late:
                    self._late.append(entry)
                    continue
                self.clock.advance_to(entry.time_s)
                self.engine.apply(entry.command)
                continue
            self.clock.advance_to(entry.start_s)
            self.engine.step()
            self._late = []
            return True
        return False

    def _submit_late(self) -> None:
        """Give the submissions again that came between the decision of this step and its launch."""
        for entry in self._late:
            self.clock.advance_to(entry.time_s)
            self.engine.apply(entry.command)

    def fork(self) -> Replay:
        """A second replay at the same place; both go on independently. What never changes is shared."""
        engine = self.engine
        shared: list[object] = [self.record, self.record.entries, engine.config, engine.info]
        shared += [engine.stored, engine.tokenizer]
        shared += engine.telemetry.requests
        shared += [story for i in engine._books.stories.ids() if (story := engine._books.stories.get(i)) is not None]
        shared += list(engine._books.ended)
        shared += [event for request in engine.scheduler.requests.values() for event in request.story]
        for part in (engine._last_output, engine.scheduler.config, engine.scheduler.cache):
            shared += [part] if part is not None else []
        return copy.deepcopy(self, {id(part): part for part in shared if part is not None})


@dataclass(frozen=True, slots=True)
class ReplayResult:
    """How a replay went: `divergence` is None if every decision was the recorded one."""

    engine: Engine
    steps: int
    divergence: Divergence | None

    @property
    def identical(self) -> bool:
        """True if every decision was the recorded one."""
        return self.divergence is None


def replay(record: RunRecord, *, tokenizer: TextCodec | None = None, check_laws: bool = False) -> ReplayResult:
    """Replay a run to its end or to the first difference."""
    run = Replay(record, tokenizer=tokenizer, check_laws=check_laws)
    steps = 0
    try:
        while run.advance():
            steps += 1
    except ReplayDivergedError as error:
        return ReplayResult(run.engine, steps, error.divergence)
    return ReplayResult(run.engine, steps, None)


def _first_time_s(record: RunRecord) -> float:
    for entry in record.entries:
        return entry.time_s if isinstance(entry, CommandEntry) else entry.start_s
    return 0.0
