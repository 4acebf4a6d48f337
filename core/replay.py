"""A recorded run, given again to the same scheduler on a virtual clock.

    recorded commands and start times -> schedule -> decision == recorded decision ? -> recorded tokens -> update

The decisions of a run follow from its configuration, its commands, the times and the sampled tokens. If a replay
decides otherwise, something else got in: `Divergence` names the step and the field.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from dataclasses import dataclass

from core.clock import VirtualClock
from core.engine import Engine
from core.errors import BatchscopeError, ExecutorError, WorkerDied
from core.executor import ExecutorInfo
from core.output_processor import TextCodec
from core.outputs import ModelRunnerOutput, SchedulerOutput
from core.run_record import CommandEntry, FailureEntry, RunRecord, StepEntry
from core.scheduler import Scheduler


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
        self._answers: Iterator[StepEntry | FailureEntry] = (e for e in record.entries if not isinstance(e, CommandEntry))

    @property
    def info(self) -> ExecutorInfo:
        return self._info

    def execute_model(self, scheduler_output: SchedulerOutput) -> ModelRunnerOutput:
        """The recorded answer to the next decision."""
        entry = next(self._answers, None)
        if entry is None:
            raise ExecutorError("the record ends here; nothing says what the executor answered")
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


class Replay:
    """A recorded run that can be stepped through.

    Args:
        record: the run.
        tokenizer: gives the texts again; None leaves them empty.
        check_laws: check the conservation laws after every step.
    """

    def __init__(self, record: RunRecord, *, tokenizer: TextCodec | None = None, check_laws: bool = False) -> None:
        header = record.header
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
        self.engine = Engine(
            scheduler, self.executor, self.clock, config=header.config, tokenizer=tokenizer, check_laws=check_laws
        )
        self._entries = iter(record.entries)

    def advance(self) -> bool:
        """Carry out the commands up to the next step and that step; False at the end of the record.

        Raises:
            ReplayDivergedError: if the decision is not the recorded one.
        """
        for entry in self._entries:
            if isinstance(entry, CommandEntry):
                self.clock.advance_to(entry.time_s)
                self.engine.apply(entry.command)
                continue
            self.clock.advance_to(entry.start_s)
            self.engine.step()
            return True
        return False


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
