"""The observer benchmark's arithmetic: rates of windows, intervals of medians, viewers that come and go with a file."""

from __future__ import annotations

import asyncio
import math
import random
from pathlib import Path

import pytest

from benchmarks.observed_app_loop import StepLine, read_steps, tokens_per_s
from benchmarks.observer import median_interval
from benchmarks.viewers import watch_while


def test_steps_read_back_as_they_were_written(tmp_path: Path) -> None:
    steps = [StepLine(0.1 + 0.2, 32, 0.1, 0.09), StepLine(1.0 / 3.0, 0, 1e-9, 0.0)]
    path = tmp_path / "steps"
    path.write_text("".join(step.text() for step in steps))
    assert read_steps(path) == steps


def test_a_rate_is_that_of_whole_steps_and_does_not_depend_on_the_window_s_edges() -> None:
    steps = [StepLine(0.25 * n, 32, 0.25, 0.2) for n in range(100)]
    assert tokens_per_s(steps, 3.0, 8.0) == pytest.approx(128.0)
    assert tokens_per_s(steps, 3.01, 8.24) == pytest.approx(128.0)
    with pytest.raises(ValueError, match="1 steps ended"):
        tokens_per_s(steps, 3.0, 3.2)


@pytest.mark.parametrize(("count", "left_out"), [(1, 0), (2, 0), (5, 0), (6, 0), (8, 0), (9, 1), (12, 2), (20, 5)])
def test_the_interval_leaves_out_as_many_values_on_each_side_as_ranks_allow(count: int, left_out: int) -> None:
    values = list(range(count))
    random.Random(count).shuffle(values)
    assert median_interval(values) == (left_out, count - 1 - left_out)
    chance = 2 * sum(math.comb(count, k) for k in range(left_out + 1)) / 2**count
    assert chance <= 0.05 or left_out == 0


def test_the_interval_covers_the_median_as_often_as_it_says() -> None:
    rng = random.Random(1)
    trials = 2000
    covered = 0
    for _ in range(trials):
        low, high = median_interval([rng.expovariate(1.0) for _ in range(12)])
        covered += low <= math.log(2.0) <= high
    assert covered / trials == pytest.approx(0.961, abs=0.015)


def test_nobody_looks_without_the_file_and_all_end_with_its_end(tmp_path: Path) -> None:
    (tmp_path / "viewers.end").touch()
    assert asyncio.run(watch_while("http://127.0.0.1:9", "live", 2, tmp_path / "viewers")) == []
