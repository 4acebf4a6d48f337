"""How slow the machine is while a held-out run goes on: a few seconds of a calibration load before it and after it.

    pace load | held-out run | pace load | held-out run | pace load ...

A run of many seconds on a shared machine is not at the pace that was found before it. What a user's prediction of the
future cannot know is not what is judged here; the steps of a held-out run itself say nothing about its pace.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

from benchmarks import whatif_loads as loads
from core.engine import Engine
from core.pace import at_pace
from core.records import StepRecord
from core.step_timer import StepCoefficients
from core.whatif_base import live_cost

PACE_LOAD_S = 3.0

T = TypeVar("T")


class PaceWatch:
    """Runs pace loads around other runs; the one after a run is the one before the next.

    Args:
        law: fitted before.
        seed: of the lengths; token ids are new each time, or the prefix cache would leave no prompts to measure.
    """

    def __init__(self, engine: Engine, law: StepCoefficients, seed: int) -> None:
        self._engine, self._law, self._seed = engine, law, seed
        self._loads = 0
        self._before: Sequence[StepRecord] = ()

    def around(self, run: Callable[[], T]) -> tuple[T, StepCoefficients]:
        """What `run` returns, and the law at the pace before and after it."""
        before = self._before or self._measure()
        result = run()
        self._before = self._measure()
        return result, at_pace(self._law, [*before, *self._before], live_cost(self._engine.info))

    def _measure(self) -> Sequence[StepRecord]:
        self._loads += 1
        spec = loads.load_for_pace(self._seed + self._loads % 4)
        return loads.run_live(self._engine, spec, PACE_LOAD_S, again=1_000 + self._loads).records
