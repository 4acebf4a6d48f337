"""How far off the predictions are, on this machine: step times, runs at half to nearly full capacity, saturation.

    python -m benchmarks whatif [--quick] [--phase all|steps|runs|speed] [--law FILE]

1. steps   mixed loads run on the real engine and the law is fitted to them; then other loads, whose steps the fit has not
           seen                                                               -> step_time_median_error
2. runs    a burst that fills every seat, measured and simulated              -> saturation_error
           Poisson loads at 50, 70 and 90 % of the measured capacity, the same arrivals measured and simulated
                                                -> throughput_error, ttft_p50_error, tpot_p50_error (the worst of three)
           each is measured twice: what the engine does not repeat itself, a prediction cannot know -> repeat_*
3. speed   a long simulated run                                               -> simulated_requests_per_s

About 7 minutes; --quick takes 2 and says little. A phase alone takes at most 4; `runs` reads the law that `steps` wrote.
"""

from __future__ import annotations

import argparse
import json
import platform
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np

from benchmarks import whatif_loads as loads
from benchmarks.report import print_json_line, print_table
from core.calibration import Calibration, ErrorSummary, Residual, calibrate, observe, residuals, summarise_errors
from core.clock import WallClock
from core.config import CacheConfig, EngineConfig, SchedulerConfig
from core.devices import DEVICES, DeviceSpec
from core.engine import Engine
from core.factory import create_engine
from core.models_catalog import model_named
from core.prediction import COMPARED, Pair, pair_run, this_machine
from core.prompts import StandInPrompts
from core.run_summary import summarise
from core.sim_setup import setup_on_device
from core.simulator import simulate
from core.step_timer import CalibratedTimer, StepCoefficients
from core.whatif import WhatIf
from core.whatif_base import live_cost
from core.workload import LoadGenerator

SCHEDULER = SchedulerConfig(max_num_seqs=32, max_num_batched_tokens=128)
CACHE = CacheConfig(block_size=16, num_blocks=2048)
START = DeviceSpec("this machine", 100e9, 15e9, 8e9, source="start of the fit; the measured steps decide")
CAPACITY_SHARES = (0.5, 0.7, 0.9)
TOLD = {"output_tokens_per_s": "throughput", "ttft_p50": "ttft_p50", "tpot_p50": "tpot_p50"}
ROWS, CONTEXTS = (1, 2, 4, 8, 16, 32), (64, 128, 256, 512, 1024)


# -- the time of a step ------------------------------------------------------------------------------------------


def step_phase(engine: Engine, seconds: float, seed: int) -> tuple[Calibration, dict[str, object]]:
    """Fit the law to some loads, judge it by others."""
    model = live_cost(engine.info)
    seen = [r for spec in loads.loads_for_fit(seed) for r in loads.run_live(engine, spec, seconds).records]
    calibration = calibrate(seen, model, START, held_out_every=0)
    print_law(calibration)
    fresh = [r for spec in loads.loads_held_out(seed) for r in loads.run_live(engine, spec, seconds).records]
    timer = CalibratedTimer(model, calibration.coefficients.of_one_step())
    rows = residuals([o for r in fresh if (o := observe(r, model))], timer)
    print_residuals(rows)
    errors = summarise_errors(rows)
    return calibration, {"step_time_median_error": errors.median, "step_time_p90_error": errors.p90}


def print_law(calibration: Calibration) -> None:
    """The fitted law in the units of a data sheet."""
    law, fitted = calibration.coefficients, calibration.fitted
    print(f"{calibration.source}; on those: {fitted.median:.1%} median, {fitted.p90:.1%} p90")
    print_table(
        ("rows", "law, ps a parameter", "weights, GB/s", "products, GFLOP/s"),
        [
            (n, law.law(n) * 1e12, law.effective_bandwidth(n, 2.0) / 1e9, law.effective_flops(n) / 1e9)
            for n in (1, 4, 16, 64, 256)
        ],
    )
    print(
        f"fixed cost of a step {calibration.fixed_s * 1e3:.3g} ms, of a row {(law.row_s + law.host_row_s) * 1e6:.3g} us;"
        f" KV {1e-9 / max(law.kv_byte_s, 1e-15):.3g} GB/s; {law.between_s * 1e3:.3g} ms between steps;"
        f" a run takes {law.run_factor:.3g} times its typical steps\n"
    )


def print_residuals(rows: Sequence[Residual]) -> None:
    """Errors by kind of step, and of decode steps by rows and by context."""
    lines: list[Sequence[object]] = []

    def line(words: str, chosen: list[Residual]) -> None:
        if chosen:
            e: ErrorSummary = summarise_errors(chosen)
            measured = float(np.median([r.measured_s for r in chosen]))
            lines.append((words, e.steps, measured * 1e3, e.median * 100, e.p90 * 100, e.bias * 100))

    line("all", list(rows))
    for kind in sorted({r.kind for r in rows}):
        line(kind, [r for r in rows if r.kind == kind])
    decodes = [r for r in rows if r.kind == "decode"]
    for low, high in zip(ROWS, (*ROWS[1:], 10**9), strict=True):
        line(
            f"  decode, {low}-{high - 1} rows" if high < 10**9 else f"  decode, {low}+ rows", _within(decodes, "rows", low, high)
        )
    for low, high in zip((0, *CONTEXTS), (*CONTEXTS, 10**9), strict=True):
        mean = [r for r in decodes if low <= r.context_tokens / r.rows < high]
        line(f"  decode, {low}+ tokens a row", mean)
    others = [r for r in rows if r.kind != "decode"]
    for low, high in zip((1, *CONTEXTS), (*CONTEXTS, 10**9), strict=True):
        line(f"  others, {low}+ query tokens", _within(others, "query_tokens", low, high))
    print_table(("steps of other loads", "steps", "median ms", "median error %", "p90 %", "bias %"), lines)
    print()


def _within(rows: Sequence[Residual], name: str, low: int, high: int) -> list[Residual]:
    return [r for r in rows if low <= getattr(r, name) < high]


# -- whole runs --------------------------------------------------------------------------------------------------


def run_phase(engine: Engine, machine: WhatIf, seconds: float, seed: int) -> dict[str, object]:
    """Saturation, then three loads below it: predicted against measured, and measured again against measured."""
    found: dict[str, object] = {}
    capacity, found["saturation_error"], found["repeat_saturation"] = saturation(engine, machine, seconds, seed)
    worst = dict.fromkeys(TOLD, 0.0)
    repeat = dict.fromkeys(TOLD, 0.0)
    lines: list[Sequence[object]] = []
    for share in CAPACITY_SHARES:
        rate = share * capacity
        spec = loads.poisson_load(seed + round(100 * share), rate, max(round(rate * seconds), 12))
        first, second = (loads.run_live(engine, spec, again=i) for i in (0, 1))
        for pair, again in zip(predict(machine, first), measured_again(first, second), strict=True):
            lines.append((f"{share:.0%} {pair.name}", pair.unit, pair.measured, pair.predicted, _percent(pair), _percent(again)))
            if pair.name in TOLD:
                worst[pair.name] = max(worst[pair.name], abs(pair.error or 0.0))
                repeat[pair.name] = max(repeat[pair.name], abs(again.error or 0.0))
    print_table(("load and figure", "unit", "measured", "predicted", "error %", "measured again %"), lines)
    print()
    found |= {f"{TOLD[name]}_error": value for name, value in worst.items()}
    return found | {f"repeat_{TOLD[name]}": value for name, value in repeat.items()}


def saturation(engine: Engine, machine: WhatIf, seconds: float, seed: int) -> tuple[float, float, float]:
    """(measured requests/s, relative error of the predicted ones, difference of a second measurement)."""
    spec = loads.burst_load(seed, max(round(seconds * 3), 48))
    first, second = (loads.run_live(engine, spec, again=i) for i in (0, 1))
    predicted = replace(machine, arrivals=tuple(first.arrivals)).run().requests_per_s
    error = predicted / first.requests_per_s - 1.0
    again = second.requests_per_s / first.requests_per_s - 1.0
    print(
        f"saturation: measured {first.requests_per_s:.3g} requests/s, again {second.requests_per_s:.3g} ({again:+.1%}),"
        f" predicted {predicted:.3g} ({error:+.1%})\n"
    )
    return first.requests_per_s, abs(error), abs(again)


def predict(machine: WhatIf, run: loads.Run) -> tuple[Pair, ...]:
    """The same arrivals simulated, beside what was measured."""
    result = replace(machine, arrivals=tuple(run.arrivals)).run()
    return pair_run(result, run.records, run.requests)


def measured_again(first: loads.Run, second: loads.Run) -> Iterator[Pair]:
    """The second measurement of a load as if it were the prediction of the first."""
    one, two = (summarise(run.records, run.requests) for run in (first, second))
    for name, field, unit in COMPARED:
        yield Pair(name, unit, two.value(field), one.value(field))


def _percent(pair: Pair) -> float | None:
    return None if pair.error is None else pair.error * 100


# -- speed -------------------------------------------------------------------------------------------------------


def simulation_speed(requests: int, seed: int) -> float:
    """Requests a wall second of a long run: Llama 3.1 8B on an H100, lengths as in the loads above."""
    spec = model_named("Llama 3.1 8B")
    knobs = SchedulerConfig(max_num_seqs=256, max_num_batched_tokens=2048, max_waiting=1_000_000)
    setup = setup_on_device(spec, DEVICES["H100 SXM"], knobs, max_model_len=4096)
    feed = LoadGenerator(loads.poisson_load(seed, 120.0, requests), StandInPrompts())
    began, cpu_began = time.perf_counter(), time.process_time()
    result = simulate(setup, feed)
    elapsed, cpu = time.perf_counter() - began, time.process_time() - cpu_began
    print(
        f"{result.finished} requests, {result.output_tokens} tokens, {result.steps} steps ({result.mean_batch:.0f} rows each)"
        f" simulated in {elapsed:.1f} s, {cpu:.1f} s of them on a processor\n"
    )
    return result.finished / elapsed


def main(argv: Sequence[str] = ()) -> int:
    """Run the phases; the last line is the JSON object."""
    parser = argparse.ArgumentParser(prog="benchmarks whatif", description=__doc__.splitlines()[0])
    parser.add_argument("--phase", default="all", choices=("all", "steps", "runs", "speed"))
    parser.add_argument("--law", type=Path, help="file for the fitted law: `steps` writes it, `runs` alone reads it")
    parser.add_argument("--quick", action="store_true", help="short loads")
    parser.add_argument("--seconds", type=float, help="length of each load (default 9 for steps, 25 for runs)")
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--executor", default="inprocess", choices=("inprocess", "worker"))
    parser.add_argument("--requests", type=int, help="length of the simulated run (default 100000)")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args(argv)
    if args.phase == "runs" and args.law is None:
        parser.error("--phase runs needs --law FILE, the law that --phase steps wrote")
    found: dict[str, object] = {"benchmark": "whatif", "phase": args.phase, "quick": args.quick, "seed": args.seed}
    found |= {"machine": platform.processor() or platform.machine()}
    if args.phase != "speed":
        found |= on_the_engine(args)
    if args.phase in ("all", "speed"):
        found["simulated_requests_per_s"] = simulation_speed(args.requests or (5_000 if args.quick else 100_000), args.seed)
    print_json_line(found)
    return 0


def read_law(path: Path) -> StepCoefficients:
    """The law as `steps` wrote it."""
    fields = json.loads(path.read_text(encoding="utf-8"))
    return StepCoefficients(**(fields | {"law_s": tuple(fields["law_s"])}))


def on_the_engine(args: argparse.Namespace) -> dict[str, object]:
    """The phases that run the model."""
    config = EngineConfig(model=args.model, dtype=args.dtype, executor=args.executor, scheduler=SCHEDULER, cache=CACHE)
    engine = create_engine(config, time_source=WallClock())
    try:
        loads.warm_up(engine)
        info = engine.info
        print(f"{info.model_label}, {info.dtype}, {info.kernels}, {info.num_threads} threads\n")
        found: dict[str, object] = {"model": info.model_label, "dtype": info.dtype, "kernels": info.kernels}
        found["threads"] = info.num_threads
        if args.phase == "runs":
            law = StepCoefficients(
                **{k: tuple(v) if isinstance(v, list) else v for k, v in json.loads(args.law.read_text()).items()}
            )
        else:
            calibration, errors = step_phase(engine, args.seconds or (3.0 if args.quick else 9.0), args.seed)
            law, found = calibration.coefficients, found | errors
            if args.law is not None:
                args.law.write_text(json.dumps(asdict(law)))
        if args.phase != "steps":
            machine = this_machine(engine.config, info, START, law)
            found |= run_phase(engine, machine, args.seconds or (6.0 if args.quick else 25.0), args.seed)
        return found
    finally:
        engine.close()
