"""A ceiling is an upper bound: the best of all probes, raised when several steps agree that it is too low."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from itertools import pairwise

import pytest

from core.ceilings import CONFIRMED_BY, KEPT_CHANGES, PROBE, CeilingWatch, best_of, excess, is_below, raised_by_steps
from core.engine import Engine
from core.errors import ExecutorError
from core.live_ceilings import APART_S, MOST_AGAIN, REST_BEFORE_S, CeilingProbes
from core.plain_data import from_plain, to_plain
from core.records import StepRecord
from core.snapshot import CeilingChange, RooflineCeilings
from core.telemetry import Telemetry
from core.utilisation import mbu, mfu
from tests.fake_snapshots import busy_run

CEILINGS = RooflineCeilings("test", 1e12, 20e9, 100e9, 1 << 30, "float32", cache_bytes=10e6)
BASE = busy_run(3).history()[-1]


def step(number: int, flops: float, moved: float, seconds: float, host_s: float = 0.0) -> StepRecord:
    return dataclasses.replace(
        BASE, step=number, start_s=float(number), duration_s=seconds + host_s, forward_s=seconds, flops=flops, useful_flops=flops,
        weight_bytes=moved, kv_read_bytes=0.0, kv_write_bytes=0.0, useful_bytes=moved, swap_bytes=0.0,
    )  # fmt: skip


def compute(number: int, times: float) -> StepRecord:
    """A step at `times` the peak."""
    return step(number, times * 1e12, 1e6, 1.0)


def test_one_or_two_fast_steps_move_nothing_and_the_third_raises_to_the_best() -> None:
    watch = CeilingWatch(CEILINGS)
    assert watch.on_step(compute(1, 0.9))
    assert not watch.on_step(compute(2, 1.10))
    assert not watch.on_step(compute(3, 1.20))
    assert watch.ceilings == CEILINGS
    assert watch.on_step(compute(4, 1.05))
    assert watch.ceilings is not None
    assert watch.ceilings.peak_flops == pytest.approx(1.20e12)
    assert watch.ceilings.changes == (CeilingChange("compute", "measured steps", 4, 5.0, 1e12, pytest.approx(1.20e12)),)
    assert all(is_below(watch.ceilings, compute(k, times)) for k, times in enumerate((0.9, 1.10, 1.20, 1.05)))
    assert watch.raised_by_steps == 1


def test_a_rate_far_from_the_others_stays_in_doubt() -> None:
    watch = CeilingWatch(CEILINGS)
    for k, times in enumerate((50.0, 1.10, 1.05, 1.08)):
        watch.on_step(compute(k, times))
    assert watch.ceilings is not None
    assert watch.ceilings.peak_flops == pytest.approx(1.10e12)
    assert not watch.on_step(compute(9, 50.0))


def test_doubts_are_forgotten_with_the_run() -> None:
    watch = CeilingWatch(CEILINGS)
    watch.on_step(compute(1, 1.1))
    watch.on_step(compute(2, 1.1))
    watch.forget_doubts()
    watch.on_step(compute(3, 1.1))
    assert watch.ceilings == CEILINGS


@pytest.mark.parametrize(
    ("moved", "seconds", "names"),
    [
        (5e6, 5e6 / 150e9, ["cache"]),  # inside the cache: its own figure
        (1e9, 0.9 * (10e6 / 100e9 + 990e6 / 20e9), ["DRAM"]),  # beyond it: what memory must have delivered
        (20e6, 20e6 / 300e9, ["cache", "DRAM"]),  # faster than the cache alone
    ],
)
def test_memory_is_raised_where_the_bytes_lay(moved: float, seconds: float, names: list[str]) -> None:
    records = [step(k, 1.0, moved, seconds) for k in range(CONFIRMED_BY)]
    known, below = raised_by_steps(CEILINGS, records)
    assert [change.name for change in known.changes] == names
    assert below == records
    assert excess(known, records[0])[1] == pytest.approx(1.0)
    assert known.cache_bytes_per_s is not None
    assert known.cache_bytes_per_s >= known.dram_bytes_per_s


def test_without_a_cache_main_memory_is_raised() -> None:
    plain = dataclasses.replace(CEILINGS, cache_bytes_per_s=None, cache_bytes=0.0)
    known, _ = raised_by_steps(plain, [step(k, 1.0, 1e9, 0.04) for k in range(CONFIRMED_BY)])
    assert (known.dram_bytes_per_s, known.cache_bytes_per_s) == (pytest.approx(25e9), None)


def test_the_changes_are_bounded_and_neighbours_are_one() -> None:
    known = CEILINGS
    for k in range(40):
        raised = dataclasses.replace(known, peak_flops=known.peak_flops * 1.01)
        known = best_of(known, raised, k, float(k))
    assert known.changes == (CeilingChange("compute", PROBE, 39, 39.0, 1e12, known.peak_flops),)
    for k in range(40):
        name = "peak_flops" if k % 2 else "dram_bytes_per_s"
        known = best_of(known, dataclasses.replace(known, **{name: 1.01 * getattr(known, name)}), k, float(k))
    assert len(known.changes) == KEPT_CHANGES
    assert best_of(known, CEILINGS, 99, 99.0) == known, "a probe that measured less says nothing"
    assert from_plain(RooflineCeilings, to_plain(known)) == known


def test_no_mixture_of_steps_takes_utilisation_above_one() -> None:
    """Steps at the ceilings, whatever their size: MFU and MBU of their sums reach 1 and never pass it, without a cut."""
    for sizes in ((1e6, 1e6), (5e6, 1e9), (9e6, 11e6, 12e6), (1e5, 199e6, 210e6, 1e9)):
        records = [step(k, 1e9, size, 1e-9) for k, size in enumerate(sizes)]
        records = [dataclasses.replace(r, forward_s=excess(CEILINGS, r)[1] * 1e-9) for r in records]
        assert all(is_below(CEILINGS, dataclasses.replace(r, flops=0.0, useful_flops=0.0)) for r in records)
        share, _ = mbu(sum(sizes), sum(r.forward_s for r in records), len(sizes), CEILINGS)
        assert share is not None
        assert share <= 1.0 + 1e-9
    assert mfu(2e12, 1.0, CEILINGS) == 2.0, "what is above the ceilings is not hidden"


@pytest.mark.parametrize("times", [1.01, 1.3, 40.0])
def test_telemetry_stays_at_or_below_one_at_every_moment(times: float) -> None:
    telemetry = Telemetry(window_s=100.0)
    telemetry.ceilings = CEILINGS
    for k in range(8):
        telemetry.on_step(step(k, times * 1e12, times * 20e9, 1.0), 0)
        kpis = telemetry.kpis(k + 1.0, idle=False, fragmentation=0.0)
        assert kpis.mfu is None or kpis.mfu <= 1.0 + 1e-9
        assert kpis.mbu is None or kpis.mbu <= 1.0 + 1e-9
    assert telemetry.ceilings.peak_flops == pytest.approx(times * 1e12)
    assert kpis.mfu == pytest.approx(1.0)


def test_host_time_lowers_utilisation_and_is_no_ceiling() -> None:
    telemetry = Telemetry(window_s=100.0)
    telemetry.ceilings = CEILINGS
    telemetry.on_step(step(0, 1e12, 1e6, 1.0, host_s=1.0), 0)
    assert telemetry.kpis(2.0, idle=False, fragmentation=0.0).mfu == pytest.approx(0.5)
    assert telemetry.ceilings == CEILINGS


class Wall:
    def __init__(self) -> None:
        self.time_s = 0.0

    def now(self) -> float:
        return self.time_s

    def on_step_end(self) -> None:
        return None


class FakeEngine:
    """What the probes ask of an engine."""

    def __init__(self) -> None:
        self.telemetry, self.clock = Telemetry(), Wall()
        self.scheduler = self.clock
        self.scheduler.step = 7  # type: ignore[attr-defined]


def probes(again: Callable[[Engine], RooflineCeilings | None]) -> tuple[CeilingProbes, FakeEngine, Wall]:
    wall, engine = Wall(), FakeEngine()
    made = CeilingProbes(lambda _: CEILINGS, again, wall)
    made.begin(engine, lambda _: None)  # type: ignore[arg-type]
    return made, engine, wall


def test_the_machine_is_measured_again_at_rest_but_seldom() -> None:
    higher = dataclasses.replace(CEILINGS, peak_flops=1.4e12, dram_bytes_per_s=10e9)
    calls: list[float] = []
    made, engine, wall = probes(lambda _: calls.append(wall.time_s) or higher)
    for tick in range(4 * int(APART_S) * (MOST_AGAIN + 3)):
        wall.time_s = tick / 4
        made.at_rest(engine)  # type: ignore[arg-type]
    assert len(calls) == MOST_AGAIN
    assert min(b - a for a, b in pairwise(calls)) >= APART_S
    found = engine.telemetry.ceilings
    assert found is not None
    assert (found.peak_flops, found.dram_bytes_per_s) == (1.4e12, 20e9)
    assert [(c.name, c.source, c.step) for c in found.changes] == [("compute", PROBE, 7)]


def test_a_short_rest_is_none() -> None:
    made, engine, wall = probes(lambda _: pytest.fail("measured in a pause between two steps"))
    wall.time_s = 2 * APART_S
    for _ in range(20):
        made.at_rest(engine)  # type: ignore[arg-type]
        wall.time_s += REST_BEFORE_S / 2
        made.after_step(engine)  # type: ignore[arg-type]


def test_steps_above_the_ceiling_call_for_a_probe_and_a_failed_one_is_the_last() -> None:
    calls = []

    def again(_: Engine) -> RooflineCeilings:
        calls.append(1)
        raise ExecutorError("no memory")

    made, engine, wall = probes(again)
    for k in range(CONFIRMED_BY):
        engine.telemetry.on_step(compute(k, 1.2), 0)
        made.after_step(engine)  # type: ignore[arg-type]
    assert not calls, "too soon after the first"
    for _ in range(3):
        wall.time_s += 2 * APART_S
        made.after_step(engine)  # type: ignore[arg-type]
    assert calls == [1]
    kept = engine.telemetry.ceilings
    made.keep(engine)  # type: ignore[arg-type]
    following = FakeEngine()
    made.begin(following, lambda _: pytest.fail("what is known is not measured again"))  # type: ignore[arg-type]
    assert following.telemetry.ceilings == kept
