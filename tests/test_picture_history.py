"""Looking back: pictures are bounded, reach to the beginning, and are found by their step."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import pytest

from core.picture_history import KEPT_WAITING, PictureHistory, picture_at
from core.snapshot import EngineSnapshot
from tests.fake_snapshots import FakeRun


@pytest.fixture(scope="module")
def picture() -> EngineSnapshot:
    return FakeRun(load=120).advance(3).snapshot()


def shown(picture: EngineSnapshot, step: int, wall_s: float) -> EngineSnapshot:
    return replace(picture, step=step, wall_time_s=wall_s)


def test_a_long_run_is_kept_whole_in_bounded_memory_and_thins_with_age(picture: EngineSnapshot) -> None:
    history = PictureHistory(keep=32, period_s=1.0)
    for second in range(1000):
        history.add(shown(picture, 10 * second + 1, float(second)))
        assert len(history.pictures) <= 32
    steps = [p.step for p in history.pictures]
    gaps = [b - a for a, b in pairwise(steps)]
    assert steps[0] == 1
    assert steps[-1] == 9991
    assert gaps[-1] == 10
    assert gaps[0] > 50 * gaps[-1]


def test_what_is_kept_is_small(picture: EngineSnapshot) -> None:
    history = PictureHistory()
    history.add(shown(picture, 1, 0.0))
    assert len(picture.waiting) > KEPT_WAITING
    assert len(history.pictures[0].waiting) == KEPT_WAITING
    assert history.pictures[0].num_waiting == picture.num_waiting
    assert history.pictures[0].recent_requests == ()


def test_one_picture_a_period_and_a_step(picture: EngineSnapshot) -> None:
    history = PictureHistory(period_s=1.0)
    for step, wall_s in ((1, 0.0), (2, 0.4), (3, 1.1), (3, 9.0)):
        history.add(shown(picture, step, wall_s))
    assert [p.step for p in history.pictures] == [1, 3]
    history.add(replace(shown(picture, 4, 20.0), step_record=None))
    assert [p.step for p in history.pictures] == [1, 3]


def test_a_reset_begins_afresh(picture: EngineSnapshot) -> None:
    history = PictureHistory(period_s=0.0)
    for step in (5, 6, 2):
        history.add(shown(picture, step, float(step)))
    assert [p.step for p in history.pictures] == [2]
    history.clear()
    assert history.pictures == ()


@pytest.mark.parametrize(("asked", "found"), [(0, 5), (5, 5), (6, 5), (9, 9), (12, 9), (99, 20)])
def test_the_last_picture_that_is_not_younger_is_found(picture: EngineSnapshot, asked: int, found: int) -> None:
    at = picture_at([shown(picture, step, 0.0) for step in (5, 9, 20)], asked)
    assert at is not None
    assert at.step == found
    assert picture_at((), asked) is None
