"""Fault 5: with a pool far below demand requests evict one another for ever."""

from __future__ import annotations

import itertools

import pytest

from core.config import BatchPolicy, CacheConfig, PreemptionMode, SchedulerConfig, VictimPolicy
from core.cost_model import CostModel
from core.detectors import judge
from core.devices import custom_device
from core.model_spec import TINY
from core.outputs import SchedulerOutput
from core.request import FinishReason, SamplingParams
from core.sim_setup import SimulationSetup
from core.simulator import ArrivalList, Simulation
from core.step_timer import RooflineTimer
from core.workload import Arrival
from tests.engine_cases import scripted_engine
from tests.scheduler_helpers import Driver, create_requests, create_scheduler

MOST_PREEMPTIONS = 10


@pytest.mark.parametrize(
    ("batch", "victim", "mode"),
    list(itertools.product([b for b in BatchPolicy if b is not BatchPolicy.FIXED], VictimPolicy, PreemptionMode)),
)
def test_all_finish_and_the_oldest_always_advances(batch: BatchPolicy, victim: VictimPolicy, mode: PreemptionMode) -> None:
    driver = Driver(
        create_scheduler(
            num_blocks=16, block_size=4, batch_policy=batch, victim_policy=victim, preemption_mode=mode, num_swap_blocks=6
        )
    )
    requests = create_requests(20, 12, 24)
    driver.add(*requests)
    idle = 0
    while driver.scheduler.has_work():
        oldest = min(driver.scheduler.requests.values(), key=lambda r: r.arrival_index)
        before = (oldest.num_output_tokens, oldest.num_computed_tokens)
        out = driver.step()
        victims = {p.victim for p in out.preemptions}
        assert not victims & set(out.request_ids)
        assert oldest.request_id not in victims
        advanced = (oldest.num_output_tokens, oldest.num_computed_tokens) > before
        idle = 0 if advanced else idle + 1
        assert idle <= (1 if batch in (BatchPolicy.PREFILL_FIRST, BatchPolicy.SEPARATE) else 0) + 2
        assert out.step < 2000
    assert all(r.finish_reason is FinishReason.LENGTH and r.num_output_tokens == 24 for r in requests)
    assert max(r.num_preemptions for r in requests) <= MOST_PREEMPTIONS
    assert sum(r.num_preemptions for r in requests) > 0


@pytest.mark.parametrize("mode", PreemptionMode)
def test_the_simulator_finishes_all_within_the_same_bound(mode: PreemptionMode) -> None:
    cost = CostModel.of(TINY)
    timer = RooflineTimer(cost, custom_device("slow", peak_tflops=0.02, bandwidth_gb_s=0.05, memory_gb=1))
    arrivals = [Arrival(0.0, n, tuple(range(n, n + 12)), 24) for n in range(20)]
    lost: dict[str, int] = {}

    def note(output: SchedulerOutput, *_: object) -> None:
        assert not {p.victim for p in output.preemptions} & set(output.request_ids)
        for preemption in output.preemptions:
            lost[preemption.victim] = lost.get(preemption.victim, 0) + 1

    cache = CacheConfig(block_size=4, num_blocks=16, num_swap_blocks=6)
    setup = SimulationSetup(cost, timer, SchedulerConfig(preemption_mode=mode), cache)
    result = Simulation(setup, ArrivalList(arrivals), on_step=note).run(max_steps=2000)
    assert (result.finished, result.unfinished, result.output_tokens) == (20, 0, 20 * 24)
    assert 0 < result.preemptions == sum(lost.values())
    assert max(lost.values()) <= MOST_PREEMPTIONS


def test_the_view_warns_of_thrashing() -> None:
    engine = scripted_engine(num_blocks=16, block_size=4, enable_prefix_caching=False)
    for _ in range(20):
        engine.add_request(range(1, 13), SamplingParams(max_tokens=24, ignore_eos=True))
    engine.run_until_idle()
    verdict = next(v for v in judge(engine.records) if v.name == "preemption thrash")
    assert verdict.found
    assert verdict.began_at is not None
