"""How often a page refreshes on its own: all viewers together cost about what one does.

    one viewer  every 0.5 s      two  every 1 s each      three  every 1.5 s      four and more  every 2 s

A refresh takes processor time from the engine on the same machine. A session counts once it has stayed for some seconds and
until some seconds after its last refresh, so that reloading a page changes nothing.
"""

from __future__ import annotations

import threading

from core.clock import Clock, WallClock

FIRST_S = 0.5
SLOWEST_S = 2.0
STAYED_S = 4.0
FORGET_S = 3.0


class Watchers:
    """Sessions by the times of their first and latest refresh; any thread."""

    def __init__(self, clock: Clock | None = None) -> None:
        self._clock = clock or WallClock()
        self._lock = threading.Lock()
        self._seen: dict[str, tuple[float, float]] = {}

    def saw(self, session: str) -> None:
        """A session refreshes now."""
        now_s = self._clock.now()
        with self._lock:
            self._seen = {s: t for s, t in self._seen.items() if now_s - t[1] <= FORGET_S}
            self._seen[session] = (self._seen.get(session, (now_s, now_s))[0], now_s)

    def period_s(self) -> float:
        """Seconds between two refreshes of one session now."""
        now_s = self._clock.now()
        with self._lock:
            staying = sum(last - first >= STAYED_S and now_s - last <= FORGET_S for first, last in self._seen.values())
        return min(FIRST_S * max(staying, 1), SLOWEST_S)


watchers = Watchers()
