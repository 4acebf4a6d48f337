"""Commands on their way to a step boundary.

any thread: put() -> [ c c c ] bounded -> engine thread, between two steps: drain() -> run -> Pending.resolve()
              |                                                                            |
              +--> Pending <------------------- result(timeout_s) <------------------------+
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from core.errors import ControlRefused


class Outcome(StrEnum):
    """What became of a command."""

    ACCEPTED = "accepted"
    REFUSED = "refused"
    WAITING = "waiting"  # no step boundary was reached within the time that the caller wanted to wait


@dataclass(frozen=True, slots=True)
class CommandResult:
    """The answer to a command: outcome, one sentence for a person, and a value (e.g. a request id)."""

    outcome: Outcome
    message: str = ""
    value: Any = None

    @property
    def accepted(self) -> bool:
        return self.outcome is Outcome.ACCEPTED


class Pending:
    """A small future. The engine's thread resolves it once and never waits for whoever holds it."""

    def __init__(self) -> None:
        self._event = threading.Event()
        self._result = CommandResult(Outcome.WAITING, "waiting for the next step boundary")

    @property
    def done(self) -> bool:
        return self._event.is_set()

    def result(self, timeout_s: float = 5.0) -> CommandResult:
        """Wait at most `timeout_s`; the outcome is WAITING if no step boundary came by then."""
        self._event.wait(timeout_s)
        return self._result

    def resolve(self, result: CommandResult) -> None:
        """Give the answer; the first one counts."""
        if not self._event.is_set():
            self._result = result
            self._event.set()


@dataclass(slots=True)
class Command:
    """One command: `run` is called in the engine's thread, between two steps."""

    name: str
    run: Callable[[], CommandResult]
    session_id: str
    detail: str = ""
    is_shown: bool = True  # a picture follows before the answer; too dear for submissions by the hundred
    pending: Pending = field(default_factory=Pending)


class CommandQueue:
    """Bounded; `put` never waits, `drain` takes what is there."""

    def __init__(self, max_commands: int) -> None:
        self._queue: queue.SimpleQueue[Command] = queue.SimpleQueue()
        self._max = max_commands
        self._closed_reason = ""
        self.wake = threading.Event()

    def put(self, command: Command) -> Pending:
        """Queue a command and wake the engine.

        Raises:
            ControlRefused: if too many wait already, or the engine takes no more.
        """
        if self._closed_reason:
            raise ControlRefused(self._closed_reason)
        if self._queue.qsize() >= self._max:
            raise ControlRefused(
                f"{self._max} commands already wait for a step boundary; try again in a moment", is_temporary=True
            )
        self._queue.put(command)
        self.wake.set()
        self._refuse_late(command)
        return command.pending

    def _refuse_late(self, command: Command) -> None:
        """Answer a command that slipped in while another thread closed the queue: nobody will drain it."""
        if self._closed_reason:
            command.pending.resolve(CommandResult(Outcome.REFUSED, self._closed_reason))

    def drain(self, most: int) -> list[Command]:
        """Take at most `most` commands, oldest first."""
        found: list[Command] = []
        while len(found) < most:
            try:
                found.append(self._queue.get_nowait())
            except queue.Empty:
                break
        return found

    def __len__(self) -> int:
        return self._queue.qsize()

    def close(self, reason: str) -> None:
        """Refuse all that wait and all that come, with this reason."""
        self._closed_reason = reason
        for command in self.drain(self._queue.qsize() + self._max):
            command.pending.resolve(CommandResult(Outcome.REFUSED, reason))
