"""When the ceilings of the machine are measured: at the start, again at rest, and again once steps have passed them.

The start may be the busiest moment of all (a browser opens, kernels are being compiled), so one probe is not enough. Later
ones are short, few and far apart: while one runs, no step does.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from core.ceilings import best_of
from core.clock import Clock, WallClock
from core.engine import Engine
from core.errors import BatchscopeError
from core.snapshot import RooflineCeilings

log = logging.getLogger(__name__)

Probe = Callable[[Engine], RooflineCeilings | None]

REST_BEFORE_S = 2.0
APART_S = 60.0
MOST_AGAIN = 6


class CeilingProbes:
    """Measures for one engine after the other; engine's thread only.

    Args:
        first: the thorough probe, once an engine is up; None leaves the ceilings unknown.
        again: a short one for later; None never repeats it.
        wall: what the times between probes are counted on.
    """

    def __init__(self, first: Probe | None, again: Probe | None, wall: Clock | None = None) -> None:
        self._first, self._again = first, again
        self._wall = wall or WallClock()
        self._known: RooflineCeilings | None = None
        self._seen_raises = 0
        self._left = MOST_AGAIN
        self._last_s = self._rest_s = float("-inf")

    def begin(self, engine: Engine, tell: Callable[[str], None]) -> None:
        """Give a new engine its ceilings, measured now if they never were; a probe that fails leaves them unknown."""
        if self._first is not None and self._known is None:
            tell("measuring what this machine can do")
            try:
                self._known = self._first(engine)
            except BatchscopeError as error:  # e.g. its worker was killed: the engine runs without ceilings
                log.warning("the ceilings of this machine could not be measured: %s", error)
            self._last_s = self._wall.now()
        self._seen_raises = engine.telemetry.watch.raised_by_steps
        if self._known is not None:
            engine.telemetry.ceilings = self._known

    def keep(self, engine: Engine) -> None:
        """An engine ends: what its steps have taught stays."""
        self._known = engine.telemetry.ceilings or self._known

    def after_step(self, engine: Engine) -> None:
        """Measure again if steps have just passed a ceiling: the first probe was disturbed."""
        raised = engine.telemetry.watch.raised_by_steps
        self._rest_s = float("-inf")
        if raised != self._seen_raises and self._measure(engine):
            self._seen_raises = raised

    def at_rest(self, engine: Engine) -> None:
        """Nothing runs and nothing is due soon: after a while of this, measure again."""
        now_s = self._wall.now()
        if self._rest_s == float("-inf"):
            self._rest_s = now_s
        if now_s - self._rest_s >= REST_BEFORE_S:
            self._measure(engine)

    def _measure(self, engine: Engine) -> bool:
        """Probe again, unless it was done lately or often; True if it was tried."""
        known, now_s = engine.telemetry.ceilings, self._wall.now()
        if self._again is None or known is None or not self._left or now_s - self._last_s < APART_S:
            return False
        self._left -= 1
        try:
            found = self._again(engine)
        except BatchscopeError as error:
            log.info("the ceilings are not measured again: %s", error)
            found, self._left = None, 0
        self._last_s = self._wall.now()
        if found is not None:
            engine.telemetry.ceilings = best_of(known, found, engine.scheduler.step, engine.clock.now())
        return True
