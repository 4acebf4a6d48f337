"""How slow the machine is now beside the steps that a law was fitted to: memory and arithmetic apart.

    measured = memory * (weights at one row, KV bytes) + arithmetic * (all else)      the latest steps, robust

On a shared machine the memory's rate moves by tens of per cent within a minute while products stay as quick as they were,
and the other way round. One factor for both would carry the slowness of lone decodes over to prompts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from core.cost_model import CostModel
from core.records import StepRecord
from core.robust_fit import robust_fit
from core.step_residuals import LEAST_STEPS, Observation, observe
from core.step_timer import KNOTS, CalibratedTimer, StepCoefficients

PACE_S = 20.0
"""Seconds of the latest steps that say how slow the machine is now."""

PULL = 0.7
"""Weight of "as slow as then": as much as one step that is off by this share; decides only what the latest steps do not show."""


@dataclass(frozen=True, slots=True)
class Pace:
    """Times now / times in the steps of the fit; `overall` weighs the two as the latest steps do."""

    memory: float
    arithmetic: float
    overall: float


def memory_only(law: StepCoefficients) -> StepCoefficients:
    """What of the law is reading memory: the weights once, and the KV."""
    level = (law.law_s[0],) * len(KNOTS)
    return replace(
        law, fixed_s=0.0, row_s=0.0, law_s=level, attention_flop_s=0.0, swap_byte_s=0.0, host_fixed_s=0.0, host_row_s=0.0,
        host_token_s=0.0, between_s=0.0, run_factor=1.0, pace=1.0,
    )  # fmt: skip


def pace_of(law: StepCoefficients, seen: Sequence[Observation], model: CostModel) -> Pace | None:
    """The pace of the latest PACE_S seconds of steps, oldest first; None if they are fewer than LEAST_STEPS."""
    latest: list[Observation] = []
    seconds = 0.0
    for one in reversed(seen):
        if seconds >= PACE_S:
            break
        latest.append(one)
        seconds += one.total_s
    if len(latest) < LEAST_STEPS:
        return None
    whole, reading = CalibratedTimer(model, replace(law.of_one_step(), pace=1.0)), CalibratedTimer(model, memory_only(law))
    memory_s = np.array([reading.seconds(o.run) for o in latest])
    rest_s = np.array([whole.seconds(o.run, o.swap_bytes) for o in latest]) - memory_s
    measured_s = np.array([o.total_s for o in latest])
    ones, weights = np.ones(2), 1.0 / (memory_s + rest_s)  # of the prediction: a slow step must not count for less
    memory, arithmetic = robust_fit(np.column_stack([memory_s, rest_s]), measured_s, ones, ones, weights, PULL)
    typical = float(np.median(measured_s / (memory * memory_s + arithmetic * rest_s)))  # slow steps are `run_factor`'s
    memory, arithmetic = typical * memory, typical * arithmetic
    overall = float((memory * memory_s + arithmetic * rest_s).sum() / (memory_s + rest_s).sum())
    return Pace(max(float(memory), 0.01), max(float(arithmetic), 0.01), max(overall, 0.01))


def paced(law: StepCoefficients, seen: Sequence[Observation], model: CostModel) -> StepCoefficients:
    """The law at the pace of the latest steps; as it was if they are too few. Its `pace` is the overall one."""
    found = pace_of(law, seen, model)
    if found is None:
        return law
    memory, rest = found.memory / found.overall, found.arithmetic / found.overall
    read = law.law_s[0]
    return replace(
        law, pace=found.overall, law_s=tuple(memory * read + rest * (value - read) for value in law.law_s),
        kv_byte_s=memory * law.kv_byte_s, attention_flop_s=rest * law.attention_flop_s, fixed_s=rest * law.fixed_s,
        row_s=rest * law.row_s, host_fixed_s=rest * law.host_fixed_s, host_row_s=rest * law.host_row_s,
        host_token_s=rest * law.host_token_s,
    )  # fmt: skip


def at_pace(law: StepCoefficients, latest: Sequence[StepRecord], model: CostModel) -> StepCoefficients:
    """`paced` by step records; those that were not measured do not count."""
    return paced(law, [o for r in latest if r.kind == "measured" and (o := observe(r, model)) is not None], model)
