"""How far off the predictions are, on this machine: step times, runs at half to nearly full capacity, saturation.

    python -m benchmarks whatif [--seconds 40] [--model smollm2] [--executor inprocess] [--requests 100000] [--seed 0]

1. mixed loads run on the real engine; the law is fitted to two thirds of their steps
2. steps of other loads that the fit has not seen           -> step_time_median_error
3. a burst that fills every seat, measured and simulated    -> saturation_error
4. Poisson loads at 50, 70 and 90 % of the measured capacity, the same arrivals measured and simulated
                                                            -> throughput_error, ttft_p50_error, tpot_p50_error (worst)
5. a long simulated run                                     -> simulated_requests_per_s
"""

from __future__ import annotations

import argparse
import platform
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace

from benchmarks.report import print_json_line, print_table
from core.calibration import Calibration, calibrate, observe, residuals, summarise_errors
from core.clock import WallClock
from core.config import CacheConfig, EngineConfig, SchedulerConfig
from core.cost_model import CostModel
from core.devices import DEVICES, DeviceSpec
from core.engine import Engine
from core.factory import create_engine
from core.lengths import LengthSpec
from core.load_spec import ArrivalProcess, LoadSpec, PromptKind
from core.models_catalog import model_named
from core.prediction import Pair, pair_run, this_machine
from core.prompts import RandomPrompts
from core.records import RequestRecord, StepRecord
from core.request import SamplingParams
from core.simulator import setup_on_device, simulate
from core.whatif import WhatIf
from core.workload import Arrival, LoadGenerator

SCHEDULER = SchedulerConfig(max_num_seqs=32, max_num_batched_tokens=512)
CACHE = CacheConfig(block_size=16, num_blocks=2048)
PROMPTS, OUTPUTS = LengthSpec.lognormal(96, 0.7, 8, 512), LengthSpec.lognormal(48, 0.6, 4, 160)
START = DeviceSpec("this machine", 100e9, 15e9, 8e9, source="start of the fit; the measured steps decide")
CAPACITY_SHARES = (0.5, 0.7, 0.9)


@dataclass
class Run:
    """One load on the real engine: its steps, its ended requests and the arrivals as they were sent."""

    records: list[StepRecord]
    requests: list[RequestRecord]
    arrivals: list[Arrival]

    @property
    def span_s(self) -> float:
        """From the first arrival to the last end."""
        return max(r.finished_s for r in self.requests) - self.arrivals[0].time_s


def fitting(spec: LoadSpec, engine: Engine) -> LoadSpec:
    """The load with prompts and outputs that the model's length has room for."""
    room = engine.scheduler.max_model_len // 2

    def cut(lengths: LengthSpec) -> LengthSpec:
        high = min(lengths.high, room)
        return replace(lengths, low=min(lengths.low, high), high=high)

    return replace(spec, prompt_tokens=cut(spec.prompt_tokens), output_tokens=cut(spec.output_tokens))


def run_live(engine: Engine, spec: LoadSpec, seconds: float | None = None) -> Run:
    """Feed a load and step until it is done (or `seconds` have passed and what is in flight has ended)."""
    clock, spec = engine.clock, fitting(spec, engine)
    load = LoadGenerator(spec, RandomPrompts(engine.info.spec.vocab_size), start_s=clock.now())
    step_before = engine.latest_record.step if engine.latest_record else 0
    ids: set[str] = set()
    run = Run([], [], [])
    users: dict[str, int] = {}
    end_s = clock.now() + seconds if seconds is not None else float("inf")
    while True:
        now = clock.now()
        for arrival in load.due(now) if now < end_s else []:
            run.arrivals.append(arrival)
            params = SamplingParams(max_tokens=arrival.max_tokens, ignore_eos=True)
            request_id = engine.add_request(arrival.prompt_token_ids, params, arrival_time_s=arrival.time_s)
            users[request_id] = arrival.user
            ids.add(request_id)
        if engine.has_work():
            for event in engine.step():
                if event.kind == "finished":
                    load.on_end(users.pop(event.request_id), clock.now())
        elif load.next_time_s is None or clock.now() >= end_s:
            break
        else:
            time.sleep(min(max(load.next_time_s - clock.now(), 0.0), 0.001))
    run.records = [r for r in engine.records if r.step > step_before]
    run.requests = [r for r in engine.telemetry.requests if r.request_id in ids]
    return run


def loads_for_fit(seed: int) -> list[LoadSpec]:
    """Closed loops of few and many users with short and long prompts: all kinds of steps."""
    base = LoadSpec(
        process=ArrivalProcess.CLOSED_LOOP, prompt_kind=PromptKind.RANDOM, prompt_tokens=PROMPTS, output_tokens=OUTPUTS
    )
    return [
        replace(base, users=1, seed=seed + 1),
        replace(base, users=3, seed=seed + 2),
        replace(base, users=8, seed=seed + 3, prompt_tokens=LengthSpec.uniform(8, 900)),
        replace(base, users=16, seed=seed + 4),
        replace(base, users=32, seed=seed + 5),
        replace(
            base, users=24, seed=seed + 6, prompt_tokens=LengthSpec.uniform(300, 1500), output_tokens=LengthSpec.uniform(2, 40)
        ),
    ]


def loads_held_out(seed: int) -> list[LoadSpec]:
    """Other mixes: none of their steps is in the fit."""
    base = LoadSpec(
        process=ArrivalProcess.CLOSED_LOOP, prompt_kind=PromptKind.RANDOM, prompt_tokens=PROMPTS, output_tokens=OUTPUTS
    )
    return [
        replace(base, users=2, seed=seed + 21, prompt_tokens=LengthSpec.uniform(30, 700)),
        replace(base, users=12, seed=seed + 22),
        replace(base, users=28, seed=seed + 23, output_tokens=LengthSpec.uniform(10, 120)),
    ]


def print_fit(calibration: Calibration) -> None:
    """Errors by kind of step, and the law."""
    rows: list[Sequence[object]] = [(kind, e.steps, e.median * 100, e.p90 * 100, e.bias * 100) for kind, e in calibration.by_kind]
    print_table(("held-out steps of the fit", "steps", "median error %", "p90 %", "bias %"), rows)
    law = calibration.coefficients
    print_table(
        ("rows", "law, ps a parameter", "weights, GB/s", "products, GFLOP/s"),
        [
            (n, law.law(n) * 1e12, law.effective_bandwidth(n, 2.0) / 1e9, law.effective_flops(n) / 1e9)
            for n in (1, 4, 16, 64, 256)
        ],
    )
    print(f"fixed cost of a step {calibration.fixed_s * 1e3:.3g} ms; KV {1e-9 / law.kv_byte_s:.3g} GB/s\n")


def predict(machine: WhatIf, run: Run) -> tuple[Pair, ...]:
    """The same arrivals simulated, beside what was measured."""
    result = replace(machine, arrivals=tuple(run.arrivals)).run()
    return pair_run(result, run.records, run.requests)


def simulation_speed(requests: int, seed: int) -> float:
    """Requests a wall second of a long run: Llama 3.1 8B on an H100, prompts and outputs as above."""
    spec = model_named("Llama 3.1 8B")
    knobs = SchedulerConfig(max_num_seqs=256, max_num_batched_tokens=2048, max_waiting=1_000_000)
    setup = setup_on_device(spec, DEVICES["H100 SXM"], knobs, max_model_len=4096)
    load = LoadSpec(
        rate_per_s=120.0,
        num_requests=requests,
        prompt_kind=PromptKind.RANDOM,
        prompt_tokens=PROMPTS,
        output_tokens=OUTPUTS,
        seed=seed,
    )
    began = time.perf_counter()
    result = simulate(setup, LoadGenerator(load, RandomPrompts(spec.vocab_size)))
    elapsed = time.perf_counter() - began
    print(
        f"{result.finished} requests, {result.output_tokens} tokens, {result.steps} steps ({result.mean_batch:.0f} rows each)"
        f" simulated in {elapsed:.1f} s\n"
    )
    return result.finished / elapsed


def main(argv: Sequence[str] = ()) -> int:
    """Run everything; the last line is the JSON object."""
    parser = argparse.ArgumentParser(prog="benchmarks whatif", description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=40.0, help="length of each load")
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--executor", default="inprocess", choices=("inprocess", "worker"))
    parser.add_argument("--requests", type=int, default=100_000, help="length of the simulated run")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args(argv)

    config = EngineConfig(model=args.model, dtype=args.dtype, executor=args.executor, scheduler=SCHEDULER, cache=CACHE)
    engine = create_engine(config, time_source=WallClock())
    warm_up(engine)
    print(f"{engine.info.model_label}, {engine.info.dtype}, {engine.info.kernels}, {engine.info.num_threads} threads\n")
    model = CostModel.of(
        engine.info.spec, weight_dtype=engine.info.dtype, kv_dtype=engine.info.dtype, head_dtype=engine.info.dtype,
        weight_bytes_read=engine.info.weight_bytes_read, kv_bytes_per_token=engine.info.kv_bytes_per_token,
    )  # fmt: skip
    seen = [r for spec in loads_for_fit(args.seed) for r in run_live(engine, spec, args.seconds).records]
    calibration = calibrate(seen, model, START)
    print_fit(calibration)

    fresh = [
        o for spec in loads_held_out(args.seed) for r in run_live(engine, spec, args.seconds).records if (o := observe(r, model))
    ]
    step_errors = summarise_errors(residuals(fresh, calibration.timer()))
    print(f"other loads: {step_errors.steps} steps, median error {step_errors.median:.1%}, p90 {step_errors.p90:.1%}\n")

    machine = this_machine(engine.config, engine.info, START, calibration)
    worst, saturation = judge_runs(engine, machine, args.seconds, args.seed)
    engine.close()
    print_json_line(
        {
            "benchmark": "whatif",
            "model": engine.info.model_label,
            "dtype": engine.info.dtype,
            "kernels": engine.info.kernels,
            "threads": engine.info.num_threads,
            "machine": platform.processor() or platform.machine(),
            "seed": args.seed,
            "step_time_median_error": step_errors.median,
            "step_time_p90_error": step_errors.p90,
            "throughput_error": worst["output_tokens_per_s"],
            "ttft_p50_error": worst["ttft_p50"],
            "tpot_p50_error": worst["tpot_p50"],
            "saturation_error": saturation,
            "simulated_requests_per_s": simulation_speed(args.requests, args.seed),
        }
    )
    return 0


def warm_up(engine: Engine, limit_s: float = 300.0) -> None:
    """Run small loads until compiled kernels have taken over."""
    began = time.perf_counter()
    while True:
        burst = LoadSpec(
            process=ArrivalProcess.BURST, burst_size=4, prompt_kind=PromptKind.RANDOM, output_tokens=LengthSpec.fixed(8)
        )
        run_live(engine, burst)
        if "being compiled" not in engine.executor.info.kernels or time.perf_counter() - began > limit_s:
            break
    engine.info = engine.executor.info


def judge_runs(engine: Engine, machine: WhatIf, seconds: float, seed: int) -> tuple[dict[str, float], float]:
    """Saturation, then three loads below it; worst absolute errors by figure, and the saturation's error."""
    base = LoadSpec(prompt_kind=PromptKind.RANDOM, prompt_tokens=PROMPTS, output_tokens=OUTPUTS, seed=seed + 31)
    burst = run_live(engine, replace(base, process=ArrivalProcess.BURST, burst_size=max(round(seconds * 6), 96)))
    simulated = replace(machine, arrivals=tuple(burst.arrivals)).run()
    capacity = len(burst.requests) / burst.span_s
    saturation = abs(simulated.requests_per_s / capacity - 1.0)
    print(f"saturation: measured {capacity:.3g} requests/s, predicted {simulated.requests_per_s:.3g} ({saturation:.1%} off)\n")
    worst = {"output_tokens_per_s": 0.0, "ttft_p50": 0.0, "tpot_p50": 0.0}
    rows: list[Sequence[object]] = []
    for share in CAPACITY_SHARES:
        rate = share * capacity
        spec = replace(base, rate_per_s=rate, num_requests=max(round(rate * seconds), 40), seed=seed + round(100 * share))
        for pair in predict(machine, run_live(engine, spec)):
            error = pair.error
            rows.append(
                (f"{share:.0%} {pair.name}", pair.unit, pair.measured, pair.predicted, None if error is None else error * 100)
            )
            if pair.name in worst and error is not None:
                worst[pair.name] = max(worst[pair.name], abs(error))
    print_table(("load and figure", "unit", "measured", "predicted", "error %"), rows)
    print()
    return worst, saturation
