"""Time as an argument: the only module of the core that reads a clock.

The engine asks its `Clock` and nothing else, so the same scheduler runs on the wall clock (live), on
a virtual clock that the executor moves (simulation, replay) and on a step counter (tests).
"""

from __future__ import annotations

import time
from typing import Protocol


class Clock(Protocol):
    """A source of time in seconds; only differences mean anything."""

    def now(self) -> float:
        """Return the present time, s."""
        ...

    def on_step_end(self) -> None:
        """Called once by the engine after each step."""
        ...


class WallClock:
    """Monotonic wall time, s."""

    def now(self) -> float:
        return time.perf_counter()

    def on_step_end(self) -> None:
        return None


class PausableClock(WallClock):
    """Wall time since the clock was made, s, that can be held: while it is paused nothing ages and no arrival comes due.

    One thread pauses, resumes and moves it; any thread may read it.
    """

    def __init__(self) -> None:
        self._offset_s = super().now()
        self._held_s: float | None = None

    def now(self) -> float:
        held_s = self._held_s
        return super().now() - self._offset_s if held_s is None else held_s

    def pause(self) -> None:
        """Hold the present time; harmless if it is held."""
        self._held_s = self.now()

    def resume(self) -> None:
        """Go on from the time that was held; harmless if it runs."""
        if self._held_s is not None:
            self._offset_s = super().now() - self._held_s
            self._held_s = None

    def advance_to(self, time_s: float) -> None:
        """Jump forward to `time_s`; a time in the past leaves the clock where it is."""
        ahead_s = time_s - self.now()
        if ahead_s > 0:
            self._offset_s -= ahead_s
            if self._held_s is not None:
                self._held_s = time_s


class VirtualClock:
    """A clock that moves only when told to: the executor adds what a step would have cost."""

    def __init__(self, start_s: float = 0.0) -> None:
        self._now_s = start_s

    def now(self) -> float:
        return self._now_s

    def on_step_end(self) -> None:
        return None

    def advance(self, seconds: float) -> None:
        """Move forward by `seconds` (>= 0).

        Raises:
            ValueError: if `seconds` is negative or not a number.
        """
        if not seconds >= 0.0:
            raise ValueError(f"a clock cannot move by {seconds} s")
        self._now_s += seconds

    def advance_to(self, time_s: float) -> None:
        """Move forward to `time_s`; a time in the past leaves the clock where it is."""
        self._now_s = max(self._now_s, time_s)


class StepClock:
    """One unit of time a step: time is the number of finished steps."""

    def __init__(self, start_s: float = 0.0, step_s: float = 1.0) -> None:
        self._now_s = start_s
        self._step_s = step_s

    def now(self) -> float:
        return self._now_s

    def on_step_end(self) -> None:
        self._now_s += self._step_s


def let_pass(clock: Clock, seconds: float) -> None:
    """Let `seconds` go by where a step had nothing to run: sleep, move a virtual clock, or nothing (steps count).

    Raises:
        ValueError: if `seconds` is negative.
    """
    if isinstance(clock, VirtualClock):
        clock.advance(seconds)
    elif isinstance(clock, WallClock):
        time.sleep(seconds)
