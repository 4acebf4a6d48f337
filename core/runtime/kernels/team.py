"""Threads that work on one step together, and the barrier between its phases.

    control words, a cache line each:  GENERATION | ARRIVED | PHASE | STOP | SLEEPERS | FUNCTION | DESCRIPTION | WAITERS

Helpers live in one jitted call without the GIL: they spin a little after a step, then sleep on GENERATION. The
caller bumps it, takes part as thread 0, and returns when all have arrived: one hand-over of the GIL a step, however
many phases it has. Nothing here belongs to OpenMP or to Numba's own threads, so their idle spinning never meets
ours. A barrier spins first and sleeps when a peer has lost its core to another process.
"""

from __future__ import annotations

import atexit
import os
import threading
from typing import Any

import numpy as np

from core.runtime.kernels.compiler import jit, part
from core.runtime.kernels.memory import (
    FUTEX,
    call_step,
    fetch_add,
    futex_wait,
    futex_wake,
    load_acquire,
    pause,
    store_release,
    yield_cpu,
)

GENERATION, ARRIVED, PHASE, STOP, SLEEPERS, FUNCTION, DESCRIPTION, WAITERS = (64 * i for i in range(8))
CONTROL_WORDS = 8 * 8
SPIN_BEFORE_WAIT = 2_000
SPIN_BEFORE_SLEEP = 4_000


@part
def barrier(control: int, threads: int) -> None:
    """Wait until all `threads` have come here; what each wrote before is then visible to all."""
    if threads == 1:
        return
    phase = load_acquire(control + PHASE)
    if fetch_add(control + ARRIVED, 1) == threads - 1:
        store_release(control + ARRIVED, 0)
        fetch_add(control + PHASE, 1)
        if FUTEX and load_acquire(control + WAITERS) != 0:
            futex_wake(control + PHASE, 1 << 30)
        return
    spins = 0
    while load_acquire(control + PHASE) == phase:
        spins += 1
        if spins < SPIN_BEFORE_WAIT:
            pause()
        elif FUTEX:
            fetch_add(control + WAITERS, 1)
            futex_wait(control + PHASE, phase)
            fetch_add(control + WAITERS, -1)
        else:
            yield_cpu()


@jit
def _help(control: int, thread: int, threads: int, seen: int, until_idle: bool) -> int:
    """Take part in steps until told to stop; with `until_idle` return after a while without one."""
    while True:
        spins = 0
        while load_acquire(control + GENERATION) == seen:
            spins += 1
            if spins < SPIN_BEFORE_SLEEP:
                pause()
            elif until_idle:
                return seen
            else:
                fetch_add(control + SLEEPERS, 1)
                futex_wait(control + GENERATION, seen)
                fetch_add(control + SLEEPERS, -1)
        seen += 1
        if load_acquire(control + STOP) != 0:
            return -1
        call_step(load_acquire(control + FUNCTION), load_acquire(control + DESCRIPTION), thread)
        barrier(control, threads)


@jit
def _lead(control: int, threads: int, function: int, description: int, use_futex: bool) -> None:
    """Run one step as thread 0."""
    store_release(control + FUNCTION, function)
    store_release(control + DESCRIPTION, description)
    fetch_add(control + GENERATION, 1)
    if use_futex and load_acquire(control + SLEEPERS) != 0:
        futex_wake(control + GENERATION, 1 << 30)
    call_step(function, description, 0)
    barrier(control, threads)


@jit
def _dismiss(control: int, use_futex: bool) -> None:
    """Tell the helpers to return."""
    store_release(control + STOP, 1)
    fetch_add(control + GENERATION, 1)
    if use_futex:
        futex_wake(control + GENERATION, 1 << 30)


class Team:
    """A caller and threads - 1 helpers; one step at a time, whoever calls."""

    def __init__(self, threads: int) -> None:
        self.threads = threads
        self._words = np.zeros(CONTROL_WORDS + 8, np.int64)
        self.control = (self._words.ctypes.data + 63) // 64 * 64
        self._lock = threading.Lock()
        self._ready = threading.Event()
        self._helpers = [
            threading.Thread(target=self._helper, args=(thread,), name=f"kernel-{thread}", daemon=True)
            for thread in range(1, threads)
        ]
        for helper in self._helpers:
            helper.start()

    def _helper(self, thread: int) -> None:
        seen = 0
        while seen >= 0:
            seen = _help(self.control, thread, self.threads, seen, not FUTEX)
            if seen >= 0:
                self._ready.wait()

    def run(self, function: Any, description: int) -> None:
        """Run function(description, thread) on every thread and return when all are done."""
        with self._lock:
            if not FUTEX:
                self._ready.set()
            _lead(self.control, self.threads, function.address, description, FUTEX)
            if not FUTEX:
                self._ready.clear()

    def stop(self) -> None:
        """End the helpers; at exit, before the code that they run is unloaded."""
        with self._lock:
            if self._helpers:
                _dismiss(self.control, FUTEX)
                self._ready.set()
                for helper in self._helpers:
                    helper.join()
                self._helpers = []


_teams: dict[tuple[int, int], Team] = {}
_teams_lock = threading.Lock()


def team(threads: int) -> Team:
    """Return this process's team of that size; it lives as long as the process."""
    key = (os.getpid(), max(threads, 1))
    with _teams_lock:
        if key not in _teams:
            _teams[key] = Team(key[1])
            atexit.register(_teams[key].stop)
        return _teams[key]


def largest_team() -> Team | None:
    """Return the largest team of this process, or None where no kernels are in use."""
    with _teams_lock:
        mine = [t for (process, _), t in _teams.items() if process == os.getpid()]
    return max(mine, key=lambda t: t.threads, default=None)
