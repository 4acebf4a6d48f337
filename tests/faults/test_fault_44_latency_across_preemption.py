"""Fault 44: end-to-end time misses the wait and the recompute of a preemption, first-token time follows no clear rule."""

from __future__ import annotations

import pytest

from core.config import CacheConfig, SchedulerConfig
from core.cost_model import CostModel, StepSums
from core.model_spec import TINY
from core.outputs import StepTiming
from core.request import Request, SamplingParams
from core.sim_setup import SimulationSetup
from core.simulator import ArrivalList, Simulation
from core.workload import Arrival
from tests.engine_cases import scripted_engine


@pytest.mark.parametrize("mode", ["recompute", "swap"])
def test_a_preemption_is_one_long_gap_and_moves_nothing_else(mode: str) -> None:
    engine = scripted_engine(
        max_num_seqs=1,
        max_num_batched_tokens=4,
        queue_policy="priority",
        victim_policy="lowest_priority",
        enable_prefix_caching=False,
        preemption_mode=mode,
        num_swap_blocks=16 if mode == "swap" else 0,
    )
    catch_up = 4 if mode == "recompute" else 1  # 15 tokens to compute again under a budget of 4, or one to go on
    engine.add_request(range(1, 13), SamplingParams(max_tokens=3 + 11 - catch_up, ignore_eos=True), request_id="b", priority=5)
    events = [e for _ in range(5) for e in engine.step()]
    assert [e.time_s for e in events if e.kind == "token"] == [3.0, 4.0, 5.0]
    engine.add_request([1, 2, 3], SamplingParams(max_tokens=15, ignore_eos=True), request_id="a", priority=0)
    events = engine.run_until_idle()
    assert [e.time_s for e in events if e.kind == "preempted" and e.request_id == "b"] == [5.0]
    assert [e.time_s for e in events if e.kind == "resumed"] == [20.0]
    record = next(r for r in engine.snapshot().recent_requests if r.request_id == "b")
    assert (record.ttft_s, record.e2e_s) == (3.0, 30.0)
    assert record.num_preemptions == 1
    assert record.preempted_s == 15.0
    assert record.itl_s[:2] == (1.0, 1.0)
    assert record.itl_s[2] == record.max_itl_s == 15.0 + catch_up
    assert set(record.itl_s[3:]) == {1.0}
    row = next(r for r in engine.snapshot().ended if r.request_id == "b")
    assert row.preempted_spans_s == ((5.0, 20.0),)
    assert row.age_s == 30.0
    assert engine.snapshot().kpis.itl.count == sum(r.output_tokens - 1 for r in engine.snapshot().recent_requests)


class OneSecond:
    """Every step takes a second."""

    label = "one second a step"

    def predict(self, run: StepSums, swap_bytes: float = 0.0, copy_bytes: float = 0.0) -> StepTiming:
        return StepTiming(forward_s=1.0)

    def seconds(self, run: StepSums, swap_bytes: float = 0.0, copy_bytes: float = 0.0) -> float:
        return 1.0


@pytest.mark.parametrize("quiet", [True, False])
@pytest.mark.parametrize("mode", ["recompute", "swap"])
def test_the_simulator_counts_the_same(mode: str, quiet: bool) -> None:
    catch_up = 4 if mode == "recompute" else 1
    knobs = SchedulerConfig(
        max_num_seqs=1, max_num_batched_tokens=4, queue_policy="priority", victim_policy="lowest_priority", preemption_mode=mode
    )
    cache = CacheConfig(block_size=4, num_blocks=64, enable_prefix_caching=False, num_swap_blocks=16)
    b = Arrival(0.0, 0, tuple(range(1, 13)), 3 + 11 - catch_up, priority=5)
    a = Arrival(5.0, 1, (1, 2, 3), 15, priority=0)
    run = Simulation(SimulationSetup(CostModel.of(TINY), OneSecond(), knobs, cache), ArrivalList([b, a]), quiet=quiet)
    ended: list[Request] = []
    pop = run.scheduler.pop_ended

    def noted() -> list[Request]:
        ended.extend(found := pop())
        return found

    run.scheduler.pop_ended = noted  # type: ignore[method-assign]
    result = run.run()
    request = next(r for r in ended if r.request_id == "r0")
    assert (request.first_token_time_s, request.finished_time_s) == (3.0, 30.0)
    assert request.preempted_spans_s == [(5.0, 20.0)]
    assert request.token_times_s[:4] == [3.0, 4.0, 5.0, 20.0 + catch_up]
    assert (result.preemptions, result.finished, result.duration_s) == (1, 2, 30.0)
    assert result.e2e.p99 == pytest.approx(30.0, rel=0.02)
    assert result.itl.count == 3 + 11 - catch_up - 1 + 14
    assert result.itl.p99 is not None
    assert result.itl.p99 > 1.0
