"""What may be done to the live engine between two steps, and the steps themselves; engine's thread only.

step | single step | jump over an idle time | cancel | checks | new settings          its life: `core.live_life`
"""

from __future__ import annotations

import logging
from dataclasses import replace

from core.clock import PausableClock, StepClock, VirtualClock
from core.config import CacheConfig, SchedulerConfig
from core.live_changes import apply_both
from core.live_life import EngineLife
from core.outputs import RequestEvent
from core.request import FinishReason

log = logging.getLogger(__name__)


class EngineHost(EngineLife):
    """Runs the present engine and changes it between two steps; see `EngineLife` for its arguments and state."""

    def step(self) -> bool:
        """Run one step; False if it had nothing to run although something waits."""
        engine = self.engine
        before = engine.records.last
        try:
            events = engine.step()
        except Exception as error:
            log.exception("a step failed")
            self.broken = f"a step failed: {type(error).__name__}: {error}. Reset to go on"
            self.publish(force=True)
            return False
        self.board.streams.on_events(events)
        self.driver.on_events(events)
        for listener in tuple(self.listeners):
            listener(events)
        self._probes.after_step(engine)
        self.publish(force=self.paused)
        return engine.records.last is not before or not engine.has_work()

    def single_step(self) -> bool:
        """While paused: what is due arrives, then one step runs; False if there was nothing to do."""
        if not self.can_step:
            return False
        engine = self.engine
        clock = engine.clock
        if isinstance(clock, PausableClock):
            clock.resume()
        try:
            self.driver.feed(clock.now())
            due_s = self.driver.next_due_s
            if not engine.has_work() and due_s is not None:
                # Nobody wants to press the button until the next arrival comes: jump to it.
                self.jump_to(due_s)
                self.driver.feed(clock.now())
            if not engine.has_work():
                return False
            self.step()
            return True
        finally:
            if isinstance(clock, PausableClock) and self.paused:
                clock.pause()

    def jump_to(self, time_s: float) -> None:
        """Move the engine's clock, if it can be moved, to the time of the next arrival."""
        clock = self.engine.clock
        if isinstance(clock, (VirtualClock, PausableClock)):
            clock.advance_to(time_s)
        elif isinstance(clock, StepClock):
            while clock.now() < time_s:
                clock.on_step_end()  # time is counted in steps: empty ones pass

    def rest(self) -> None:
        """Nothing runs and nothing is due soon."""
        self._probes.at_rest(self.engine)

    def cancel(self, request_id: str) -> None:
        """End a request; its reader hears of it at once, paused or not (UnknownRequest if it is not live)."""
        engine = self.engine
        engine.cancel(request_id)
        event = RequestEvent(
            request_id,
            "cancelled",
            engine.clock.now(),
            engine.scheduler.step,
            finish_reason=FinishReason.CANCELLED,
            message="cancelled",
        )
        self.board.streams.on_events([event])
        self.driver.on_events([event])

    def set_checks(self, on: bool) -> None:
        """Check the conservation laws now and after every step and command, or not any more (InvariantError)."""
        engine = self.engine
        engine.check_laws = on
        engine.config = self.config = replace(engine.config, check_invariants=on)
        if on:
            engine.check_invariants()

    def reconfigure(self, scheduler: SchedulerConfig, cache: CacheConfig) -> None:
        """Take both settings or neither (ConfigError)."""
        apply_both(self.engine, scheduler, cache)
        self.config = self.engine.config
