"""The forward pass in a process of its own, behind the same `Executor` protocol as the one in process.

    engine thread --SchedulerOutput--> worker process --ModelRunnerOutput--> engine thread
          (waits in read(), without the GIL)

A forward pass is hundreds of small calls, each of which hands over the GIL; beside one busy Python thread that
costs many times the pass itself. Here the engine's process makes two system calls a step instead.

    transfer_s = round trip seen by the parent - time the worker was busy

A worker that dies is replaced by one with an empty cache. The step in flight raises `WorkerDied`, and the engine
then has every running request recomputed. This module imports no torch.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from core.clock import Clock, WallClock
from core.config import EngineConfig
from core.errors import BatchscopeError, CheckpointError, ConfigError, ExecutorError, WorkerDied
from core.executor import ExecutorInfo
from core.outputs import ModelRunnerOutput, SchedulerOutput
from core.runtime.worker_process import WorkerProcess

DEFAULT_BUILDER = "core.runtime.worker_model:build_runner"

_LOAD_TICK_S = 0.2
_STDERR_CHECK_STEPS = 1000
_OWN_ERRORS: dict[str, type[BatchscopeError]] = {e.__name__: e for e in (CheckpointError, ConfigError, ExecutorError)}


@dataclass(frozen=True, slots=True)
class RestartPolicy:
    """How often a worker may be replaced: at most `max_restarts` times within `window_s` seconds."""

    max_restarts: int = 5
    window_s: float = 60.0


class WorkerExecutor:
    """Runs steps in a worker process; the constructor blocks until it is ready.

    One thread runs steps; `close` may be called from any other.

    Args:
        builder: "package.module:function" called in the worker as function(config, progress) -> Executor.
        on_progress: called with a line of text while a worker loads, several times a second. An exception from it
            ends the wait and the worker.
        wait: False returns while the worker still loads, so that the caller can do its own share of the start
            meanwhile; then call `wait_ready`.

    Raises:
        CheckpointError, ConfigError: from the worker's load, with the worker's own text.
        ExecutorError: any other failure to start.
    """

    def __init__(
        self,
        config: EngineConfig,
        *,
        builder: str = DEFAULT_BUILDER,
        restart_policy: RestartPolicy | None = None,
        clock: Clock | None = None,
        on_progress: Callable[[str], None] | None = None,
        wait: bool = True,
    ) -> None:
        self._config = config
        self._builder = builder
        self._policy = restart_policy or RestartPolicy()
        self._clock = clock or WallClock()
        self._on_progress = on_progress
        self._lock = threading.Lock()
        self._closing = False
        self._failure: ExecutorError | None = None  # set when no worker will be started any more
        self._unreported: WorkerDied | None = None  # a death that no step has raised yet
        self._restart_times_s: deque[float] = deque()
        self._restarts = 0
        self._steps = 0
        self._info: ExecutorInfo | None = None
        self._is_ready = False
        self._progress = "starting the worker process"
        self._process = WorkerProcess(config, builder)
        if wait:
            self.wait_ready()

    def wait_ready(self) -> None:
        """Wait for the first load; see the class for errors, after which the executor is closed."""
        try:
            with self._lock:
                self._await_ready(may_restart=False)
        except BaseException:
            self.close()
            raise

    @property
    def info(self) -> ExecutorInfo:
        if self._info is None:
            raise ExecutorError("the worker has not loaded a model yet")
        return self._info

    @property
    def pid(self) -> int:
        """Process id of the present worker."""
        return self._process.pid

    @property
    def restarts(self) -> int:
        """Workers started since the first."""
        return self._restarts

    @property
    def progress(self) -> str:
        """What a loading worker does; "" once it is ready."""
        return self._progress

    def poll_ready(self, timeout_s: float = 0.0) -> bool:
        """Look after the worker between steps; True if a step would not have to wait for a load.

        A death found here starts a new worker at once and is raised by the next step, so that the engine forgets
        the lost cache.

        Raises:
            ExecutorError: if the worker has failed for good or was closed.
        """
        with self._lock:
            self._refuse_if_down()
            if not self._is_ready:
                return self._poll_load(timeout_s, may_restart=True)
            # Between two steps a worker says nothing: a readable pipe is a closed one.
            if self._process.channel.poll(0.0) or not self._process.is_alive():
                self._unreported = self._replace("between two steps")
                return False
            return True

    def execute_model(self, scheduler_output: SchedulerOutput) -> ModelRunnerOutput:
        """Run one step in the worker.

        Raises:
            WorkerDied: the worker is gone and a new one with an empty cache is loading.
            ExecutorError: the forward pass failed (with the worker's text), or no worker is left.
        """
        with self._lock:
            self._raise_unreported()
            self._await_ready(may_restart=True)
            self._raise_unreported()
            start_s = self._clock.now()
            answer = self._exchange(("step", scheduler_output), f"in step {scheduler_output.step}")
            output: ModelRunnerOutput = answer[1]
            busy_s: float = answer[2]
            if answer[3] is not None:
                self._info = answer[3]
            transfer_s = max(self._clock.now() - start_s - busy_s, 0.0)
            self._steps += 1
            if self._steps % _STDERR_CHECK_STEPS == 0:
                self._process.trim_stderr()
        timing = replace(output.timing, transfer_s=transfer_s)
        return replace(output, timing=timing)

    def prepare_model(self, scheduler_output: SchedulerOutput) -> None:
        """Have the worker build a batch ahead of its launch; see `PreparingExecutor`. Errors as `execute_model`."""
        with self._lock:
            self._raise_unreported()
            self._await_ready(may_restart=True)
            self._raise_unreported()
            self._exchange(("call", "prepare_model", (scheduler_output,)), f"in step {scheduler_output.step}")

    def call(self, name: str, *arguments: Any) -> Any:
        """Call another method of the worker's executor and return its value (it must be picklable).

        Raises:
            WorkerDied: the worker is gone; the next step raises it again, so that the engine forgets the lost cache.
            ConfigError, ExecutorError: as the method raised it.
        """
        with self._lock:
            self._await_ready(may_restart=True)
            try:
                _, value, self._info = self._exchange(("call", name, arguments), f"in {name}")
            except WorkerDied as death:
                self._unreported = death
                raise
        return value

    def resize(self, num_blocks: int, block_size: int, num_swap_blocks: int) -> None:
        """Give the pool another size; every block is empty afterwards.

        Raises:
            ConfigError: if the new pool does not fit; the worker then has one of the old size, empty as well.
            ExecutorError: if the worker has failed for good.
        """
        cache = replace(self._config.cache, num_blocks=num_blocks, block_size=block_size, num_swap_blocks=num_swap_blocks)
        with self._lock:
            self._await_ready(may_restart=True)
            before, self._config = self._config, replace(self._config, cache=cache)
            try:
                _, _, self._info = self._exchange(("call", "resize", (num_blocks, block_size, num_swap_blocks)), "in resize")
            except WorkerDied:
                # The next worker begins with the new pool, empty, which is what was asked for.
                self._await_ready(may_restart=True)
            except (ConfigError, ExecutorError):
                self._config = before
                old = before.cache
                self._exchange(("call", "resize", (old.num_blocks, old.block_size, old.num_swap_blocks)), "in resize")
                raise
            self._unreported = None  # all is forgotten by request, nothing is left to report

    def revive(self) -> None:
        """Start a worker again after the restarts were used up; the cache is empty. Harmless while one runs."""
        with self._lock:
            if self._failure is None or self._closing:
                return
            self._process.close()
            self._failure = None
            self._restart_times_s.clear()
            self._restarts += 1
            self._progress = "starting the worker process again"
            self._process = WorkerProcess(self._config, self._builder)

    def close(self) -> None:
        """End the worker within a few seconds, even in the middle of a step; calling it twice is harmless."""
        self._closing = True
        if not self._lock.acquire(timeout=1.0):
            self._process.kill()  # the thread inside a step then gets an end of file and lets go
            self._lock.acquire()
        try:
            self._process.close()
        finally:
            self._lock.release()

    def _refuse_if_down(self) -> None:
        if self._closing:
            raise ExecutorError("the worker was closed")
        if self._failure is not None:
            raise self._failure

    def _raise_unreported(self) -> None:
        if self._unreported is not None:
            death, self._unreported = self._unreported, None
            raise death

    def _exchange(self, message: tuple[Any, ...], when: str) -> tuple[Any, ...]:
        try:
            answer = self._process.exchange(message)
        except (OSError, EOFError):
            raise self._replace(when) from None
        if answer[0] == "error":
            _, kind, text, trace = answer
            error = _OWN_ERRORS[kind](text) if kind in _OWN_ERRORS else ExecutorError(f"{kind}: {text}")
            error.add_note(f"in the worker process:\n{trace}")
            raise error
        return answer

    def _replace(self, when: str) -> WorkerDied:
        """Bury the dead worker, start the next one and return the error that tells of it.

        Raises:
            ExecutorError: if it was closed on purpose, or has died too often.
        """
        self._is_ready = False
        if self._closing:
            raise ExecutorError("the worker was closed")
        cause = self._process.cause_of_death()
        self._process.close()
        now_s = self._clock.now()
        while self._restart_times_s and now_s - self._restart_times_s[0] > self._policy.window_s:
            self._restart_times_s.popleft()
        if len(self._restart_times_s) >= self._policy.max_restarts:
            self._failure = ExecutorError(
                f"the worker died {len(self._restart_times_s) + 1} times within {self._policy.window_s:g} s and is not"
                f" started again; the last one {cause}"
            )
            raise self._failure
        self._restart_times_s.append(now_s)
        self._restarts += 1
        self._progress = "starting the worker process again"
        self._process = WorkerProcess(self._config, self._builder)
        return WorkerDied(f"the worker process {cause} ({when}); a new one is starting and lost work is recomputed")

    def _await_ready(self, *, may_restart: bool) -> None:
        while True:
            self._refuse_if_down()
            if self._is_ready or self._poll_load(_LOAD_TICK_S, may_restart=may_restart):
                return
            if self._on_progress is not None:
                self._on_progress(self._progress)

    def _poll_load(self, timeout_s: float, *, may_restart: bool) -> bool:
        """Read what a loading worker has to say, for at most `timeout_s` of silence; True once it is ready."""
        try:
            while self._process.channel.poll(timeout_s):
                message = self._process.channel.receive()
                if message[0] == "ready":
                    self._info, self._is_ready, self._progress = message[1], True, ""
                    return True
                if message[0] == "failed":
                    self._fail_load(message[1], message[2])
                self._progress = message[1]
                if self._on_progress is not None:
                    self._on_progress(self._progress)
        except (OSError, EOFError):
            if not may_restart:
                cause = self._process.cause_of_death()
                self._failure = ExecutorError(f"the worker process {cause} (while it loaded {self._config.model})")
                raise self._failure from None
            self._unreported = self._replace("while it loaded the model")
        return False

    def _fail_load(self, kind: str, text: str) -> None:
        if kind in _OWN_ERRORS:
            self._failure = ExecutorError(text)
            if self._info is None:  # the first load: the caller named the model and can name another
                raise _OWN_ERRORS[kind](text)
        else:
            self._failure = ExecutorError(f"the worker could not load {self._config.model}: {kind}: {text}")
        raise self._failure
