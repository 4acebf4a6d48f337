"""What a run consists of, in the order in which it came: see `core.run_record`, which writes it."""

from __future__ import annotations

from dataclasses import dataclass

from core.engine_commands import EngineCommand
from core.outputs import ModelRunnerOutput, SchedulerOutput


@dataclass(frozen=True, slots=True)
class CommandEntry:
    """A command that was carried out after the decision of step `step`.

    Attributes:
        late: the step had not been launched yet, so the request of this submission could still join it.
    """

    step: int
    time_s: float
    command: EngineCommand
    late: bool = False


@dataclass(frozen=True, slots=True)
class StepEntry:
    """A step that was run."""

    start_s: float
    answered_s: float
    output: SchedulerOutput
    result: ModelRunnerOutput


@dataclass(frozen=True, slots=True)
class FailureEntry:
    """A step that the executor did not bring to its end; `worker_died` tells the two kinds apart."""

    start_s: float
    failed_s: float
    output: SchedulerOutput
    worker_died: bool
    message: str


Entry = CommandEntry | StepEntry | FailureEntry
