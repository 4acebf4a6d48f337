"""A live run again in the simulator: with the true law every figure agrees."""

from __future__ import annotations

import dataclasses

import pytest

from core.calibration import Calibration, calibrate
from core.clock import VirtualClock
from core.config import CacheConfig, EngineConfig, SchedulerConfig
from core.cost_model import CostModel
from core.devices import custom_device
from core.engine import Engine
from core.lengths import LengthSpec
from core.load_spec import LoadSpec, PromptKind, TenantShare
from core.model_spec import TINY
from core.prediction import Pair, live_arrivals, pair_run, this_machine
from core.prompts import RandomPrompts
from core.request import SamplingParams
from core.scheduler import Scheduler
from core.sim_executor import SimExecutor
from core.step_timer import KNOTS, CalibratedTimer, StepCoefficients
from core.workload import arrivals

COST = CostModel.of(TINY)
LAW = StepCoefficients(1e-3, 1e-5, tuple(2e-8 + 1e-9 * i * i for i in range(len(KNOTS))), 1e-8, 1e-9, 1e-10, 3e-4, 1e-5, 1e-6)
DEVICE = custom_device("two cores", peak_tflops=0.1, bandwidth_gb_s=1.0, memory_gb=1.0)
LOAD = LoadSpec(
    rate_per_s=30.0, num_requests=60, prompt_tokens=LengthSpec.uniform(5, 90), output_tokens=LengthSpec.uniform(2, 30),
    prompt_kind=PromptKind.RANDOM, shared_prefix_share=0.6, shared_prefix_tokens=32, tenants=(TenantShare("a"), TenantShare("b")),
)  # fmt: skip
CONFIG = EngineConfig(
    model="tiny",
    scheduler=SchedulerConfig(max_num_seqs=6, max_num_batched_tokens=64),
    cache=CacheConfig(block_size=8, num_blocks=60),
)


@pytest.fixture(scope="module")
def engine() -> Engine:
    """An engine that has run a load in the time of LAW; its records stand in for measured ones."""
    clock = VirtualClock(100.0)
    executor = SimExecutor(COST, CalibratedTimer(COST, LAW), clock, CONFIG.cache)
    scheduler = Scheduler(CONFIG.scheduler, CONFIG.cache, max_model_len=512, kv_bytes_per_token=COST.kv_read_per_token)
    engine = Engine(scheduler, executor, clock, config=CONFIG)
    todo = list(arrivals(LOAD, RandomPrompts(TINY.vocab_size), start_s=100.0))
    while todo or engine.has_work():
        if not engine.has_work():
            clock.advance_to(todo[0].time_s)
        while todo and todo[0].time_s <= clock.now():
            a = todo.pop(0)
            params = SamplingParams(max_tokens=a.max_tokens, ignore_eos=True)
            engine.add_request(a.prompt_token_ids, params, arrival_time_s=a.time_s, tenant=a.tenant)
        engine.step()
    return engine


@pytest.fixture(scope="module")
def fitted(engine: Engine) -> Calibration:
    records = [dataclasses.replace(r, kind="measured") for r in engine.records]
    return calibrate(records, COST, DEVICE)


def test_the_law_is_found_again(fitted: Calibration) -> None:
    assert fitted.error.median < 0.02


def test_the_run_again_gives_the_measured_figures(engine: Engine, fitted: Calibration) -> None:
    requests = engine.telemetry.requests
    machine = this_machine(engine.config, engine.info, DEVICE, fitted.coefficients, live_arrivals(requests, TINY.vocab_size))
    result = machine.run()
    assert result.finished == len(requests) == 60
    pairs = {p.name: p for p in pair_run(result, list(engine.records), requests)}
    for name in ("output_tokens_per_s", "mean_step_s", "mean_batch"):
        assert abs(pairs[name].error) < 0.06
    for name in ("tpot_p50", "e2e_p50", "ttft_p50"):  # the runs part where a prefix block was evicted in one and not the other
        assert abs(pairs[name].error) < 0.12
    assert result.prefix_hit_rate == pytest.approx(
        engine.scheduler.counters.cached_tokens / engine.scheduler.counters.queried_tokens, abs=0.1
    )


def test_arrivals_keep_lengths_and_what_was_shared(engine: Engine) -> None:
    requests = sorted(engine.telemetry.requests, key=lambda r: r.arrival_s)
    found = live_arrivals(requests, TINY.vocab_size)
    assert [a.prompt_tokens for a in found] == [r.prompt_tokens for r in requests]
    assert [a.max_tokens for a in found] == [r.output_tokens for r in requests]
    hit = [(a, r) for a, r in zip(found, requests, strict=True) if r.cached_tokens and r.tenant == "a"]
    assert len(hit) > 3
    shared = min(r.cached_tokens for _, r in hit)
    assert len({a.prompt_token_ids[:shared] for a, _ in hit}) == 1
    assert len({a.prompt_token_ids for a, _ in hit}) == len(hit)


def test_a_pair_without_a_side_has_no_error() -> None:
    assert Pair("x", "s", 1.1, 1.0).error == pytest.approx(0.1)
    assert Pair("x", "s", None, 1.0).error is None
    assert Pair("x", "s", 1.0, None).error is None
    assert Pair("x", "s", 1.0, 0.0).error is None
