"""Whole runs in virtual time: same decisions as the engine, figures that follow from the cost model, bounded memory."""

from __future__ import annotations

import dataclasses
import gc
import tracemalloc

import pytest

from core.clock import VirtualClock
from core.config import (
    AdmissionPolicy,
    BatchPolicy,
    CacheConfig,
    PreemptionMode,
    QueuePolicy,
    SchedulerConfig,
    TenantConfig,
)
from core.cost_model import CostModel, StepComposition
from core.devices import DEVICES, DeviceSpec, custom_device
from core.engine import Engine
from core.errors import ConfigError
from core.lengths import LengthSpec
from core.load_spec import ArrivalProcess, LoadSpec, PromptKind, TenantShare
from core.model_spec import TINY
from core.models_catalog import model_named
from core.outputs import SchedulerOutput
from core.prompts import RandomPrompts
from core.request import SLO, SamplingParams
from core.roofline import IDEAL, decode_curve
from core.scheduler import Scheduler
from core.sim_executor import SimExecutor
from core.sim_series import GapHistogram, ThinnedSeries
from core.simulator import NothingFinished, Simulation, SimulationSetup, setup_on_device, simulate
from core.step_timer import CalibratedTimer, RooflineTimer, predict_composition, roofline_coefficients, step_seconds
from core.workload import Arrival, LoadGenerator, arrivals

DEVICE = custom_device("slow", peak_tflops=0.02, bandwidth_gb_s=0.2, memory_gb=1, host_gb_s=0.1, step_overhead_s=1e-4)
COST = CostModel.of(TINY)


def setup(scheduler: SchedulerConfig | None = None, cache: CacheConfig | None = None, **more) -> SimulationSetup:
    return SimulationSetup(
        COST, RooflineTimer(COST, DEVICE), scheduler or SchedulerConfig(max_num_seqs=8, max_num_batched_tokens=64),
        cache or CacheConfig(block_size=4, num_blocks=64), DEVICE, **more,
    )  # fmt: skip


def load(**more) -> LoadSpec:
    fields = {
        "rate_per_s": 40.0, "num_requests": 120, "prompt_tokens": LengthSpec.uniform(1, 60),
        "output_tokens": LengthSpec.uniform(1, 30), "prompt_kind": PromptKind.RANDOM, "seed": 3,
    }  # fmt: skip
    return LoadSpec(**(fields | more))


def feed(spec: LoadSpec) -> LoadGenerator:
    return LoadGenerator(spec, RandomPrompts(TINY.vocab_size))


KNOBS = {
    "chunked": {},
    "priority": {"queue_policy": QueuePolicy.PRIORITY},
    "separate": {"batch_policy": BatchPolicy.SEPARATE},
    "fixed": {"batch_policy": BatchPolicy.FIXED},
    "reserve": {"admission_policy": AdmissionPolicy.RESERVE},
    "swap": {"preemption_mode": PreemptionMode.SWAP},
    "fair": {"queue_policy": QueuePolicy.WEIGHTED_FAIR, "tenants": (TenantConfig("b", 3.0), TenantConfig("a", 1.0))},
    "quota": {"tenants": (TenantConfig("a", max_tokens_per_s=400.0),)},
}


@pytest.mark.parametrize("name", KNOBS)
def test_decisions_are_those_of_the_engine(name: str) -> None:
    """The engine gets the same requests at the same times and the same seconds a step: every decision is equal."""
    config = SchedulerConfig(max_num_seqs=8, max_num_batched_tokens=64, **KNOBS[name])
    cache = CacheConfig(block_size=4, num_blocks=40, num_swap_blocks=16)
    tenants = (TenantShare("a", 1.0, 2), TenantShare("b", 1.0, 0))
    spec = load(num_requests=60, tenants=tenants, shared_prefix_share=0.5, shared_prefix_tokens=12)
    seen: list[tuple[SchedulerOutput, float]] = []
    Simulation(setup(config, cache), feed(spec), on_step=lambda o, r, s, e: seen.append((o, e))).run()

    todo = list(arrivals(spec, RandomPrompts(TINY.vocab_size)))
    clock = VirtualClock(todo[0].time_s)
    executor = SimExecutor(COST, RooflineTimer(COST, DEVICE), clock, cache)
    scheduler = Scheduler(
        config, cache, max_model_len=TINY.max_model_len, eos_token_ids=TINY.eos_token_ids,
        kv_bytes_per_token=COST.kv_read_per_token,
    )  # fmt: skip
    engine = Engine(scheduler, executor, clock, check_laws=True)
    for output, end_s in seen:
        while todo and todo[0].time_s <= clock.now():
            a = todo.pop(0)
            params = SamplingParams(max_tokens=a.max_tokens, ignore_eos=True)
            engine.add_request(
                a.prompt_token_ids,
                params,
                request_id=f"r{a.index}",
                arrival_time_s=a.time_s,
                tenant=a.tenant,
                priority=a.priority,
            )
        engine.step()
        assert engine._last_output == output
        clock.advance_to(end_s)
        if not engine.has_work() and todo:
            clock.advance_to(todo[0].time_s)
    assert not todo
    assert not engine.has_work()
    assert any(o.preemptions for o, _ in seen) or name in ("reserve", "fixed")


def test_a_lone_request_takes_what_the_cost_model_says() -> None:
    result = simulate(setup(), [Arrival(5.0, 0, tuple(range(40)), 11)])
    timer = RooflineTimer(COST, DEVICE)
    prefill = step_seconds(predict_composition(timer, StepComposition.prefill(40)))
    decodes = [step_seconds(predict_composition(timer, StepComposition.decode((40 + i,)))) for i in range(10)]
    assert result.ttft.p50 == pytest.approx(prefill)
    assert result.e2e.p50 == pytest.approx(prefill + sum(decodes))
    assert result.tpot.p50 == pytest.approx(sum(decodes) / 10)
    assert result.itl.p50 == pytest.approx(sorted(decodes)[5], rel=0.01)
    assert result.duration_s == pytest.approx(prefill + sum(decodes))
    assert (result.steps, result.output_tokens, result.mean_batch) == (11, 11, 1.0)
    assert result.flops == pytest.approx(
        sum(COST.cost(c).flops for c in [StepComposition.prefill(40), *(StepComposition.decode((40 + i,)) for i in range(10))])
    )
    assert result.busy_share == 1.0


def test_equal_decoders_run_at_the_point_of_the_curve() -> None:
    """A closed loop of 32 equal users on an H100: throughput is that of the decode curve at batch 32, prompts aside."""
    spec, device = model_named("Llama 3.1 8B"), DEVICES["H100 SXM"]
    made = setup_on_device(spec, device, SchedulerConfig(max_num_seqs=64, max_num_batched_tokens=8192), max_model_len=2048)
    users = [Arrival(0.0, i, (i + 1,) * 16, 500) for i in range(32)]
    result = simulate(made, users)
    point = decode_curve(made.cost, device, 16 + 250, (32,), made.timer.efficiency)[0]
    assert result.output_tokens_per_s == pytest.approx(point.tokens_per_s, rel=0.02)
    assert result.mbu == pytest.approx(4.3 / 4.8, rel=0.02)
    assert result.bound_shares == (("load", pytest.approx(1.0)),)


def test_runs_are_repeatable_and_seeds_matter() -> None:
    first, second = simulate(setup(), feed(load())), simulate(setup(), feed(load()))
    assert first == second
    assert simulate(setup(), feed(load(seed=4))).duration_s != first.duration_s


def test_more_load_waits_longer_and_laws_hold() -> None:
    slow, fast = (simulate(setup(), feed(load(rate_per_s=rate))) for rate in (5.0, 500.0))
    assert fast.ttft.p95 > 3 * slow.ttft.p95
    assert slow.busy_share < fast.busy_share
    assert fast.mean_batch > slow.mean_batch
    for result in (slow, fast):
        assert result.submitted == result.finished == 120
        assert result.e2e.p50 > result.ttft.p50 > result.queue.p50 >= 0
        assert 0 < result.peak_kv_usage <= 1
        assert sum(share for _, share in result.bound_shares) == pytest.approx(1.0)
        assert 0 < result.mfu < 1
        assert 0 < result.mbu <= 1
    assert fast.full_batch_share is not None


def test_closed_loop_users_ask_again() -> None:
    spec = load(process=ArrivalProcess.CLOSED_LOOP, users=4, num_requests=40)
    result = simulate(setup(), feed(spec))
    assert result.finished == 40
    assert result.mean_batch <= 4
    assert max(p.running for p in result.series) <= 4 + 1e-9


def test_figures_of_a_warm_loop_begin_after_the_warm_up() -> None:
    spec = load(process=ArrivalProcess.CLOSED_LOOP, users=6, num_requests=4000)
    whole = Simulation(setup(), feed(spec)).run(max_time_s=15.0)
    warm = Simulation(setup(), feed(spec)).run(max_time_s=10.0, warm_up_s=5.0)
    assert warm.duration_s == pytest.approx(10.0, rel=0.05)
    assert warm.finished < whole.finished
    assert warm.steps < whole.steps
    assert warm.output_tokens_per_s == pytest.approx(whole.output_tokens_per_s, rel=0.1)
    assert warm.submitted <= warm.finished + warm.unfinished + 6
    cold = Simulation(setup(), feed(spec)).run(max_time_s=5.0)
    assert cold.output_tokens + warm.output_tokens == pytest.approx(whole.output_tokens, abs=60)


def test_limits_and_cancel() -> None:
    by_time = simulate(setup(), feed(load()), max_time_s=1.0)
    assert 0.9 <= by_time.duration_s < 1.1
    assert by_time.unfinished + by_time.finished == by_time.submitted < 120
    by_steps = simulate(setup(), feed(load(rate_per_s=1000.0)), max_steps=50)
    assert by_steps.steps == 50
    calls: list[tuple[int, float]] = []
    stopped = simulate(
        setup(), feed(load()), should_stop=lambda: len(calls) >= 2, on_progress=lambda done, at: calls.append((done, at))
    )
    assert stopped.finished < 120
    assert len(calls) == 2


def test_refusals_are_counted_and_nothing_finished_is_an_error() -> None:
    mixed = [Arrival(0.0, 0, (1,) * 10, 5), Arrival(0.1, 1, (1,) * 400, 5)]
    result = simulate(setup(), mixed)
    assert (result.finished, result.refused) == (1, (("pool_too_small", 1),))
    with pytest.raises(NothingFinished, match=r"0 of 1 requests finished .* 1 refused \(pool_too_small\).*needs 100 blocks"):
        simulate(setup(), mixed[1:])
    with pytest.raises(ConfigError, match="sort them"):
        simulate(setup(), [Arrival(1.0, 0, (1,), 1), Arrival(0.5, 1, (1,), 1)])


def test_tenants_and_targets() -> None:
    spec = load(tenants=(TenantShare("big", 3.0), TenantShare("small", 1.0)), rate_per_s=200.0)
    tight = simulate(setup(slo=SLO(ttft_s=0.02, itl_s=0.05)), feed(spec))
    loose = simulate(setup(slo=SLO(ttft_s=100.0, itl_s=100.0)), feed(spec))
    assert loose.goodput_per_s == pytest.approx(loose.requests_per_s)
    assert tight.goodput_per_s < loose.goodput_per_s
    assert [t.name for t in tight.tenants] == ["big", "small"]
    assert sum(t.finished for t in tight.tenants) == 120
    assert tight.tenants[0].submitted > 2 * tight.tenants[1].submitted
    assert simulate(setup(), feed(spec)).goodput_per_s is None


def test_prefix_hits_make_prefills_cheaper() -> None:
    spec = load(shared_prefix_share=1.0, shared_prefix_tokens=48, prompt_tokens=LengthSpec.fixed(52), rate_per_s=100.0)
    cache = CacheConfig(block_size=4, num_blocks=400)
    warm = simulate(setup(cache=cache), feed(spec))
    cold = simulate(setup(cache=dataclasses.replace(cache, enable_prefix_caching=False)), feed(spec))
    assert warm.prefix_hit_rate > 0.8
    assert cold.prefix_hit_rate is None
    assert warm.flops < 0.75 * cold.flops
    assert warm.ttft.p50 < cold.ttft.p50


def test_padding_of_a_fixed_batch_is_not_useful() -> None:
    fixed = simulate(
        setup(SchedulerConfig(max_num_seqs=8, max_num_batched_tokens=512, batch_policy=BatchPolicy.FIXED)), feed(load())
    )
    flowing = simulate(setup(), feed(load()))
    assert flowing.useful_share == 1.0
    assert fixed.useful_share < 0.9


def test_known_output_lengths_end_with_the_end_token() -> None:
    clock = VirtualClock()
    cache = CacheConfig(block_size=4, num_blocks=64)
    executor = SimExecutor(COST, RooflineTimer(COST, DEVICE), clock, cache, output_lengths={"a": 3})
    scheduler = Scheduler(SchedulerConfig(), cache, max_model_len=512, eos_token_ids=TINY.eos_token_ids)
    engine = Engine(scheduler, executor, clock)
    for name in ("a", "b"):
        engine.add_request((1, 2, 3), SamplingParams(max_tokens=7), request_id=name)
    ends = {e.request_id: e.finish_reason for e in engine.run_until_idle() if e.kind == "finished"}
    assert ends == {"a": "stop", "b": "length"}
    assert engine.info.kind == "predicted"


def test_memory_grows_with_requests_only_and_little() -> None:
    """Forty bytes of latencies and the pending gaps: 8 bytes each, at most 65,536 of them."""
    spec = load(num_requests=400, rate_per_s=60.0, output_tokens=LengthSpec.fixed(10))
    run = Simulation(setup(), feed(spec))

    def kept_after(finished: int) -> int:
        while run.requests.finished < finished:
            assert run.advance()
        gc.collect()
        return tracemalloc.get_traced_memory()[0]

    tracemalloc.start()
    first, last = kept_after(200), kept_after(390)
    tracemalloc.stop()
    assert len(run.series.points()) <= 1024
    assert last - first < 190 * (40 + 9 * 8) * 2 + 1024 * 200


def test_gap_percentiles_are_within_half_a_percent() -> None:
    gaps = GapHistogram()
    values = [0.001 * 1.01**i for i in range(1000)]
    gaps.extend(tuple(values))
    found = gaps.percentiles()
    assert found.count == 1000
    assert found.p50 == pytest.approx(values[499], rel=0.011)
    assert found.p99 == pytest.approx(values[989], rel=0.011)
    assert GapHistogram().percentiles().p50 is None


def test_series_keeps_sums_when_it_thins() -> None:
    series = ThinnedSeries(max_points=8, width_s=1.0)
    for i in range(100):
        series.add(float(i), 1.0, running=i, waiting=1, usage=0.5, tokens=2)
    points = series.points()
    assert len(points) <= 8
    assert points[0].running == pytest.approx(sum(range(16)) / 16)
    assert all(p.output_tokens_per_s == pytest.approx(2.0) for p in points[:-1])
    assert all(p.kv_usage == pytest.approx(0.5) for p in points)


def test_a_model_that_does_not_fit_is_refused_and_groups_are_priced() -> None:
    spec, knobs = model_named("Llama 3.1 70B"), SchedulerConfig(max_num_seqs=32, max_num_batched_tokens=2048)
    with pytest.raises(ConfigError, match="does not fit"):
        setup_on_device(spec, DEVICES["H100 SXM"], knobs, max_model_len=4096)
    users = [Arrival(0.0, i, (i + 1,) * 32, 40) for i in range(8)]
    four, eight = (
        simulate(setup_on_device(spec, DEVICES["H100 SXM"], knobs, max_model_len=4096, tensor_parallel=tp), users)
        for tp in (4, 8)
    )
    assert eight.tpot.p50 < four.tpot.p50 < 2 * eight.tpot.p50
    assert four.label == "Llama 3.1 70B on H100 SXM x 4"


def test_every_figure_has_a_name() -> None:
    result = simulate(setup(), feed(load()))
    assert result.figure("ttft_p95") == result.ttft.p95
    assert result.figure("output_tokens_per_s") == result.output_tokens_per_s
    assert result.figure("goodput_per_s") is None
    with pytest.raises(KeyError, match="nonsense"):
        result.figure("nonsense")


@pytest.mark.parametrize("name", KNOBS)
def test_booking_by_columns_changes_nothing(name: str) -> None:
    """Every decision and every figure of a quiet run is that of a run booked event by event."""
    config = SchedulerConfig(max_num_seqs=8, max_num_batched_tokens=64, **KNOBS[name])
    cache = CacheConfig(block_size=4, num_blocks=40, num_swap_blocks=16)
    spec = load(
        num_requests=80, rate_per_s=80.0, tenants=(TenantShare("a", 1.0, 2), TenantShare("b", 1.0, 0)), shared_prefix_share=0.5,
        shared_prefix_tokens=12, output_tokens=LengthSpec.uniform(1, 90),
    )  # fmt: skip
    seen: dict[bool, list[SchedulerOutput]] = {True: [], False: []}
    results = {}
    for quiet, outputs in seen.items():
        run = Simulation(
            setup(config, cache, max_model_len=100), feed(spec), on_step=lambda o, r, s, e, to=outputs: to.append(o), quiet=quiet
        )
        results[quiet] = run.run()
        run.scheduler.check_invariants()
    assert seen[True] == seen[False]
    assert results[True] == results[False]
    assert any(len(o.request_ids) > 1 for o in seen[True])


def test_a_law_above_the_ceilings_raises_them_and_never_passes_one() -> None:
    """A device that is stated too slow: its fitted law prices steps below the least time of its ceilings."""
    slow = DeviceSpec("slow", 1e9, 1e8, 16e9, cache_bandwidth=4e8, cache_bytes=1e6)
    law = roofline_coefficients(DeviceSpec("real", 1e12, 1e11, 16e9), 2.0, 1e9)
    made = dataclasses.replace(setup(), timer=CalibratedTimer(COST, law), device=slow)
    result = simulate(made, feed(load()))
    assert result.mfu is not None
    assert result.mbu is not None
    assert 0 < result.mfu <= 1
    assert 0 < result.mbu <= 1
    plain = dataclasses.replace(made, device=DeviceSpec("fast", 1e15, 1e14, 16e9))
    other = simulate(plain, feed(load()))
    assert other.duration_s == result.duration_s, "a ceiling changes no time"
    assert other.mfu < result.mfu


def test_a_model_inside_the_cache_is_held_against_the_cache() -> None:
    """Priced by the cache's bandwidth, a step that only reads is at its ceiling, not at several times that of memory."""
    device = DeviceSpec("small", 1e18, 1e9, 16e9, cache_bandwidth=8e9, cache_bytes=1e12)
    result = simulate(dataclasses.replace(setup(), timer=RooflineTimer(COST, device, IDEAL), device=device), feed(load()))
    assert result.mbu == pytest.approx(1.0, rel=1e-6)
