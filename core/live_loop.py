"""The engine's thread: commands, arrivals, one step, a picture; then again.

    +-> drain commands -> worker ready? -> feed the load -> step -> events to streams -> picture (throttled) --+
    +------------------ wait for a command, the next arrival or the idle tick, whichever is first <-----------+

It waits for nothing but the executor and its own wake event; readers get what it publishes by swapping references.
No streamlit, no reader, no lock of a reader.
"""

from __future__ import annotations

import logging
import threading

from core.clock import WallClock
from core.commands import Command, CommandQueue, CommandResult, Outcome
from core.errors import BatchscopeError, InvariantError
from core.executor import RemoteExecutor
from core.live_host import EngineHost
from core.live_life import StopRequested

log = logging.getLogger(__name__)

IDLE_TICK_S = 0.25
QUIET_AHEAD_S = 1.0
EMPTY_STEP_WAIT_S = 0.002
LOADING_TICK_S = 0.1
MAX_COMMANDS_A_STEP = 64
STOPPED = "the engine has stopped"
SUBMIT = "submit"


class EngineLoop:
    """What the engine's thread does. `run` returns when `stop` is set."""

    def __init__(self, host: EngineHost, commands: CommandQueue, stop: threading.Event) -> None:
        self.host = host
        self.steps_per_s: float | None = None
        self._commands = commands
        self._stop = stop
        self._wall = WallClock()
        self._next_step_s = 0.0
        self._is_shown = False  # the latest step of a speed-limited run is in a picture
        self._held: list[Command] = []  # taken from the queue while a step was launched, to be carried out after it
        self._answers: list[tuple[Command, CommandResult]] = []  # of submissions that were carried out meanwhile
        host.late_commands = self._submit_late

    def run(self) -> None:
        """Live until `stop` is set; ends with the executor closed and the last picture saying so."""
        host, failure = self.host, ""
        try:
            host.build(host.config)
            while not self._stop.is_set():
                self._commands.wake.clear()
                self._drain()
                wait_s = self._guarded_turn()
                if wait_s > 0 and not self._stop.is_set():
                    self._commands.wake.wait(wait_s)
        except StopRequested:
            log.info("stopped while a model was loading")
        except BaseException as error:
            log.exception("the engine's thread ends with an error")
            failure = f"the engine's thread ended with {type(error).__name__}: {error}"
            raise
        finally:
            self._commands.close(failure or STOPPED)
            for command, result in self._answers + [(c, CommandResult(Outcome.REFUSED, STOPPED)) for c in self._held]:
                command.pending.resolve(result)
            host.close_engine(failure or STOPPED)
            host.broken, host.down = failure, ""
            host.publish("failed" if failure else "stopped", force=True)

    def set_speed(self, steps_per_s: float | None) -> None:
        """Run at most so many steps a second; None is no limit."""
        self.steps_per_s = steps_per_s
        self._next_step_s = 0.0

    def interrupt(self) -> None:
        """Free a thread that is stuck in a step, from another thread: its worker is closed under it."""
        remote = self.host.remote
        if remote is not None:
            remote.close()

    def _drain(self) -> None:
        """Carry out what waits, show and note it, and only then answer: who was told sees it in picture and audit list."""
        answers, self._answers = self._answers, []
        held, self._held = self._held, []
        try:
            for command in held + self._commands.drain(MAX_COMMANDS_A_STEP):
                answers.append((command, CommandResult(Outcome.REFUSED, STOPPED)))
                answers[-1] = (command, self._execute(command))
            if any(command.is_shown for command, _ in answers):
                self.host.publish(force=True)
        finally:
            for command, result in answers:
                self.host.board.audit_result(command, result, self._wall.now())
                command.pending.resolve(result)

    def _submit_late(self) -> None:
        """While a decided step waits to be launched: carry out the submissions at the head of the queue.

        What comes after another kind of command keeps its place and waits for the step boundary, as do the answers.
        """
        self._held += self._commands.drain(MAX_COMMANDS_A_STEP - len(self._held))
        while self._held and self._held[0].name == SUBMIT:
            command = self._held.pop(0)
            self._answers.append((command, self._execute(command)))

    def _execute(self, command: Command) -> CommandResult:
        try:
            result = command.run()
        except InvariantError as error:
            self.host.broken = f"{command.name} broke a law of the engine: {error}. Reset to go on"
            result = CommandResult(Outcome.REFUSED, self.host.broken)
        except BatchscopeError as error:
            result = CommandResult(Outcome.REFUSED, str(error), error)
        except Exception as error:
            log.exception("command %s failed", command.name)
            result = CommandResult(Outcome.REFUSED, f"{command.name} failed: {type(error).__name__}: {error}")
        return result

    def _guarded_turn(self) -> float:
        """One round; an error that nobody foresaw stops the steps and is shown, the thread and its commands go on."""
        try:
            return self._turn()
        except Exception as error:
            host, before = self.host, self.host.broken
            host.broken = f"the engine failed: {type(error).__name__}: {error}. Reset to go on"
            if host.broken != before:
                log.exception("a round of the engine failed")
                host.pictures.failed(host.broken)
            return IDLE_TICK_S

    def _turn(self) -> float:
        """One round; returns how long the thread may sleep if nothing happens, s."""
        host = self.host
        if not host.can_step:
            host.publish()
            return IDLE_TICK_S
        if host.remote is not None and not self._worker_is_ready(host.remote):
            return LOADING_TICK_S
        if host.paused:
            host.publish()
            return IDLE_TICK_S
        engine = host.engine
        host.driver.feed(engine.clock.now())
        if not engine.has_work():
            return self._idle()
        wait_s = self._next_step_s - self._wall.now()
        if wait_s > 0:
            host.publish(force=not self._is_shown)
            self._is_shown = True
            return min(wait_s, IDLE_TICK_S)
        self._is_shown = False
        if self.steps_per_s is not None:
            self._next_step_s = max(self._next_step_s + 1.0 / self.steps_per_s, self._wall.now())
        return 0.0 if host.step() else EMPTY_STEP_WAIT_S

    def _idle(self) -> float:
        """Nothing to run: let time pass in the way of the engine's clock."""
        host = self.host
        due_s = host.driver.next_due_s
        host.publish()
        clock = host.engine.clock
        if due_s is None or (isinstance(clock, WallClock) and due_s - clock.now() > QUIET_AHEAD_S):
            host.rest()
        if due_s is None:
            return IDLE_TICK_S
        if isinstance(clock, WallClock):
            return min(max(due_s - clock.now(), 0.0), IDLE_TICK_S)
        host.jump_to(due_s)
        return 0.0

    def _worker_is_ready(self, remote: RemoteExecutor) -> bool:
        host = self.host
        try:
            if remote.poll_ready(0.0):
                return True
        except BatchscopeError as error:
            host.down = f"{error}; every request is kept, start to try again"
            host.publish(force=True)
            return False
        host.publish(progress=f"new worker: {remote.progress}", force=True)
        return False
