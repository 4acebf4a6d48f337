"""Earlier pictures of a run in bounded memory, to look back at: the older, the further apart.

    pictures   |.   .   .   .   | . . . . . | ........ |      one every `period_s` at first
               oldest: every 4th  every 2nd   newest

When the list is full, every second picture of its older half goes. So it always reaches back to the beginning, and
the newest are dense. A picture kept for later holds the head of the queue only, no records of ended requests, and percentiles
instead of the thousands of values that they follow from.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import replace

from core.on_demand import PercentilesOnDemand
from core.snapshot import EngineSnapshot

KEPT_PICTURES = 240
PERIOD_S = 0.5
KEPT_WAITING = 40


class PictureHistory:
    """At most `keep` pictures. The engine's thread adds; any thread may read `pictures`, one reference, without a lock.

    Args:
        keep: most pictures; at least 4.
        period_s: least WallClock time between two of them, s.
    """

    def __init__(self, keep: int = KEPT_PICTURES, period_s: float = PERIOD_S) -> None:
        self._keep = max(keep, 4)
        self._period_s = period_s
        self.pictures: tuple[EngineSnapshot, ...] = ()

    def add(self, picture: EngineSnapshot) -> None:
        """Keep a picture if it shows another step than the last one and it is time; a step that falls starts afresh."""
        kept = self.pictures
        if picture.step_record is None or picture.info is None:
            return
        if kept and picture.step < kept[-1].step:
            kept = ()
        if kept and (picture.step == kept[-1].step or picture.wall_time_s - kept[-1].wall_time_s < self._period_s):
            return
        if len(kept) >= self._keep:
            middle = len(kept) // 2
            kept = kept[:middle:2] + kept[middle:]
        for percentiles in (picture.kpis.ttft, picture.kpis.itl, picture.kpis.tpot, picture.kpis.e2e):
            if isinstance(percentiles, PercentilesOnDemand):
                percentiles.whole()
        self.pictures = (*kept, replace(picture, waiting=picture.waiting[:KEPT_WAITING], recent_requests=()))

    def clear(self) -> None:
        """Forget everything. Engine's thread only."""
        self.pictures = ()


def picture_at(pictures: Sequence[EngineSnapshot], step: int) -> EngineSnapshot | None:
    """The last picture that is not younger than `step`, or else the oldest; None if there is none."""
    if not pictures:
        return None
    return pictures[max(bisect_right(pictures, step, key=lambda p: p.step) - 1, 0)]
