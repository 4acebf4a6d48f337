"""Several viewers share one viewer's refresh rate, and a page that is reloaded is no second viewer."""

from __future__ import annotations

import pytest

from pages.parts.watching import FORGET_S, SLOWEST_S, STAYED_S, Watchers


class Wall:
    def __init__(self) -> None:
        self.time_s = 100.0

    def now(self) -> float:
        return self.time_s

    def on_step_end(self) -> None:
        return None


def watch(watchers: Watchers, wall: Wall, sessions: list[str], seconds: float) -> list[float]:
    """All of them refresh twice a second; the periods that they were told."""
    told = []
    for _ in range(round(2 * seconds)):
        wall.time_s += 0.5
        for session in sessions:
            watchers.saw(session)
        told.append(watchers.period_s())
    return told


@pytest.mark.parametrize(("viewers", "period_s"), [(0, 0.5), (1, 0.5), (2, 1.0), (3, 1.5), (4, 2.0), (40, SLOWEST_S)])
def test_all_viewers_together_refresh_as_often_as_one(viewers: int, period_s: float) -> None:
    wall = Wall()
    watchers = Watchers(wall)
    told = watch(watchers, wall, [str(k) for k in range(viewers)], STAYED_S + 1) or [watchers.period_s()]
    assert told[0] == 0.5
    assert told[-1] == period_s


def test_a_reload_is_no_second_viewer_and_who_leaves_is_forgotten() -> None:
    wall = Wall()
    watchers = Watchers(wall)
    watch(watchers, wall, ["old"], 20)
    assert set(watch(watchers, wall, ["new"], 20)) == {0.5}
    assert watch(watchers, wall, ["new", "other"], 20)[-1] == 1.0
    assert watch(watchers, wall, ["new"], FORGET_S + 1)[-1] == 0.5


def test_the_slowest_refresh_is_quicker_than_forgetting() -> None:
    assert SLOWEST_S < FORGET_S
