"""Simulations in a process of their own, so that neither the engine's thread nor a page shares its interpreter with them.

    page -> submit(what-if) -> worker process -> Future        one worker; it ends when nobody asked for a while

A simulation is pure Python for a second or so; run in a thread it would take the interpreter from the live engine.
"""

from __future__ import annotations

import os
import pickle
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any, TypeVar

from joblib.externals.loky import ProcessPoolExecutor  # spawns without running the caller's main module

from core.ending import also_ends
from core.errors import BatchscopeError
from core.sim_result import SimulationResult
from core.whatif import Sensitivity, WhatIf, sensitivity

T = TypeVar("T")

IDLE_S = 300
PARENT_CHECK_S = 0.5


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of a simulation: its result, or why there is none."""

    result: SimulationResult | None
    problem: str = ""


def run_one(what: WhatIf, max_time_s: float | None = None, warm_up_s: float = 0.0) -> Outcome:
    """Simulate; settings that make no sense are an outcome, not an error."""
    try:
        return Outcome(what.run(max_time_s=max_time_s, warm_up_s=warm_up_s))
    except BatchscopeError as error:
        return Outcome(None, str(error))


def run_sensitivity(what: WhatIf, goal: str, knob: str) -> Sensitivity:
    """One knob a notch down and a notch up."""
    return next(sensitivity(what, goal, knobs=(knob,)))


def key_of(*parts: Any) -> str:
    """A digest of everything that an answer depends on."""
    return blake2b(pickle.dumps(parts), digest_size=16).hexdigest()


def _end_with(parent_pid: int) -> None:
    """In a worker: end soon after the process that started it, however that ended."""

    def watch() -> None:
        while os.getppid() == parent_pid:
            time.sleep(PARENT_CHECK_S)
        os._exit(0)

    threading.Thread(target=watch, name="parent-watch", daemon=True).start()


def _ready() -> bool:
    return True


class SimulationJobs:
    """Runs simulations in worker processes that start with the first one.

    Args:
        workers: processes. They are not niced: an answer is a burst of a second or less that a person waits for.
    """

    def __init__(self, workers: int = 1) -> None:
        self._pool: ProcessPoolExecutor | None = ProcessPoolExecutor(
            max_workers=workers, timeout=IDLE_S, initializer=_end_with, initargs=(os.getpid(),)
        )
        also_ends(self.close)

    def warm(self) -> Future[bool]:
        """Start a worker, so that the first question does not wait for its imports."""
        return self._submit(_ready)

    def run(self, what: WhatIf, max_time_s: float | None = None, warm_up_s: float = 0.0) -> Future[Outcome]:
        """Simulate a what-if."""
        return self._submit(run_one, what, max_time_s, warm_up_s)

    def sensitivity(self, what: WhatIf, goal: str, knob: str) -> Future[Sensitivity]:
        """Simulate one knob's notches."""
        return self._submit(run_sensitivity, what, goal, knob)

    def close(self) -> None:
        """End the workers; asking for more raises RuntimeError."""
        pool, self._pool = self._pool, None
        if pool is not None:
            pool.shutdown(wait=True, kill_workers=True)

    def _submit(self, function: Callable[..., T], *arguments: Any) -> Future[T]:
        if self._pool is None:
            raise RuntimeError("the simulation processes have ended with the server")
        future: Future[T] = self._pool.submit(function, *arguments)
        return future
