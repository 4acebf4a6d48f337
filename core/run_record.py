"""A run as data: how it was configured, what was asked of it and when, what the executor answered.

    header
    command  step, time_s                        between two steps
    step     start_s -> decision -> answered_s   sampled tokens, timing
    failure  start_s -> decision                 the executor's error

Given again in this order on a virtual clock, commands and answers produce the same decisions (`core.replay`).
The text form is JSON lines, one canonical line an entry, so equal runs are equal bytes.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from core.config import EngineConfig
from core.engine_commands import Cancel, EngineCommand, Recompute, Recover, Reset, SetCache, SetPriority, SetScheduler, Submit
from core.errors import BatchscopeError, TraceError, WorkerDied
from core.executor import ExecutorInfo
from core.outputs import ModelRunnerOutput, SchedulerOutput
from core.packed_entries import PIECE, PackedEntries, pack_entries
from core.plain_data import canonical_json, from_plain, to_plain
from core.run_entries import CommandEntry, Entry, FailureEntry, StepEntry

FORMAT_VERSION = 1
MAX_RECORDED_STEPS = 50_000
_COMMANDS: dict[str, type] = {
    c.__name__: c for c in (Submit, Cancel, SetPriority, SetScheduler, SetCache, Reset, Recover, Recompute)
}


@dataclass(frozen=True, slots=True)
class RunHeader:
    """What the run began with.

    Attributes:
        config: as it was at the start.
        max_model_len, eos_token_ids: of the scheduler.
    """

    config: EngineConfig
    info: ExecutorInfo
    max_model_len: int
    eos_token_ids: tuple[int, ...]
    version: int = FORMAT_VERSION


_ENTRIES: dict[str, type] = {"step": StepEntry, "failure": FailureEntry}


@dataclass(frozen=True, slots=True)
class RunRecord:
    """A whole run.

    Attributes:
        entries: a tuple, or `PackedEntries` of a run that was recorded in this process.
        truncated: the run went on after the last entry.
    """

    header: RunHeader
    entries: Sequence[Entry] = ()
    truncated: bool = False

    def outputs(self) -> Iterator[SchedulerOutput]:
        """The decisions, in order."""
        for entry in self.entries:
            if not isinstance(entry, CommandEntry):
                yield entry.output

    def lines(self) -> Iterator[str]:
        """Canonical JSON lines, without line ends."""
        yield canonical_json({"kind": "header", "truncated": self.truncated, **to_plain(self.header)})
        for entry in self.entries:
            match entry:
                case CommandEntry(step, time_s, command, late):
                    line: dict[str, Any] = {"kind": "command", "step": step, "time_s": time_s}
                    line |= {"late": True} if late else {}
                    line |= {"name": type(command).__name__, "command": to_plain(command)}
                case StepEntry():
                    line = {"kind": "step", **to_plain(entry)}
                case FailureEntry():
                    line = {"kind": "failure", **to_plain(entry)}
            yield canonical_json(line)

    @staticmethod
    def from_lines(lines: Iterable[str]) -> RunRecord:
        """Read what `lines` wrote.

        Raises:
            TraceError: naming the line and what was found there.
        """
        header: RunHeader | None = None
        truncated = False
        entries: list[Entry] = []
        for number, text in enumerate(lines, 1):
            if not text.strip():
                continue
            try:
                value = json.loads(text)
                kind = value.pop("kind")
                if kind == "header":
                    if value.get("version") != FORMAT_VERSION:
                        raise TraceError(
                            f"the run was recorded in format {value.get('version')!r}, this program reads {FORMAT_VERSION}"
                        )
                    truncated = bool(value.pop("truncated", False))
                    header = from_plain(RunHeader, value)
                else:
                    entries.append(_read_entry(kind, value))
            except (json.JSONDecodeError, AttributeError, KeyError, TypeError, ValueError, BatchscopeError) as error:
                raise TraceError(f"line {number} of the run record cannot be read: {error}") from error
        if header is None:
            raise TraceError("the run record has no header line; it is empty or not a run record")
        return RunRecord(header, tuple(entries), truncated)


def _read_entry(kind: str, value: dict[str, Any]) -> Entry:
    if kind == "command":
        command: EngineCommand = from_plain(_COMMANDS[value["name"]], value["command"])
        return CommandEntry(value["step"], float(value["time_s"]), command, bool(value.get("late", False)))
    entry: Entry = from_plain(_ENTRIES[kind], value)
    return entry


class RunRecorder:
    """Keeps a run from its first step on, at most `max_steps` steps of it, packed (`core.packed_entries`).

    What follows after the bound is not kept and `truncated` says so; a replay then covers the beginning. One thread
    writes, any thread may ask for the record.
    """

    def __init__(self, max_steps: int = MAX_RECORDED_STEPS) -> None:
        self._max_steps = max_steps
        self._steps = 0
        self._kept: tuple[tuple[bytes, ...], list[Entry]] = ((), [])  # packed pieces, the piece that is being filled
        self._header: RunHeader | None = None
        self.truncated = False

    def begin(self, header: RunHeader) -> None:
        """Forget what was kept and begin; called by the engine."""
        self._header, self._kept, self._steps, self.truncated = header, ((), []), 0, False

    def on_command(self, step: int, time_s: float, command: EngineCommand, *, late: bool = False) -> None:
        """Keep a command that was carried out."""
        if not self.truncated:
            self._keep(CommandEntry(step, time_s, command, late))

    def on_step(self, start_s: float, answered_s: float, output: SchedulerOutput, result: ModelRunnerOutput) -> None:
        """Keep a finished step."""
        self._add(StepEntry(start_s, answered_s, output, result))

    def on_failure(self, start_s: float, failed_s: float, output: SchedulerOutput, error: Exception) -> None:
        """Keep a step that failed."""
        self._add(FailureEntry(start_s, failed_s, output, isinstance(error, WorkerDied), str(error)))

    def _add(self, entry: Entry) -> None:
        if self._steps >= self._max_steps:
            self.truncated = True
            return
        self._steps += 1
        self._keep(entry)

    def _keep(self, entry: Entry) -> None:
        pieces, opened = self._kept
        opened.append(entry)
        if len(opened) == PIECE:
            self._kept = ((*pieces, pack_entries(opened)), [])

    def record(self) -> RunRecord:
        """The run so far.

        Raises:
            TraceError: if no engine has begun with this recorder.
        """
        if self._header is None:
            raise TraceError("nothing was recorded; give the recorder to an engine first")
        pieces, opened = self._kept
        return RunRecord(self._header, PackedEntries(pieces, tuple(opened)), self.truncated)
