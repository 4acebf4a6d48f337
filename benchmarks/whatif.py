"""How far off the predictions are, on this machine: step times, runs at half to nearly full capacity, saturation.

    python -m benchmarks whatif [--quick] [--phase all|steps|runs|speed] [--law FILE]

The phases in the order in which they run; each result is printed as it is there.

1. steps   calibration loads run on the real engine and the law is fitted to them; then held-out loads, whose steps the fit
           has not seen                                                       -> step_time_median_error
2. speed   a long simulated run                                               -> simulated_requests_per_s
3. runs    a burst that fills every seat, measured and simulated              -> saturation_error
           Poisson loads at 50, 70 and 90 % of the measured capacity, the same arrivals measured and simulated
                                                -> throughput_error, ttft_p50_error, tpot_p50_error (the worst of three)
           each runs three times in turns and medians are compared; what the engine does not repeat itself, a prediction
           cannot know -> repeat_*, a run against the others

The pace of the machine is measured by a few seconds of a calibration load before and after each held-out run.

About 7 minutes, and no run is begun again after --limit seconds; on a slow one the loads of `runs` get shorter, which it
says. --quick takes 2 and says little. `runs` alone reads the law that `steps` wrote.
"""

from __future__ import annotations

import argparse
import json
import platform
import sys
from collections.abc import Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path

import numpy as np

from benchmarks import whatif_loads as loads
from benchmarks.report import print_json_line, print_table
from benchmarks.whatif_pace import PaceWatch
from benchmarks.whatif_runs import SPEED_LIMIT_S, Allowance, run_phase, simulation_speed
from core.calibration import Calibration, calibrate
from core.clock import WallClock
from core.config import CacheConfig, EngineConfig, SchedulerConfig
from core.devices import DeviceSpec
from core.engine import Engine
from core.factory import create_engine
from core.prediction import this_machine
from core.records import StepRecord
from core.step_residuals import ErrorSummary, Residual, observe, residuals, summarise_errors
from core.step_timer import CalibratedTimer, StepCoefficients
from core.whatif_base import live_cost

SCHEDULER = SchedulerConfig(max_num_seqs=32, max_num_batched_tokens=128)
CACHE = CacheConfig(block_size=16, num_blocks=2048)
START = DeviceSpec("this machine", 100e9, 15e9, 8e9, source="start of the fit; the measured steps decide")
LIMIT_S = 440.0
ROWS, CONTEXTS = (1, 2, 4, 8, 16, 32), (64, 128, 256, 512, 1024)


# -- the time of a step ------------------------------------------------------------------------------------------


def step_phase(engine: Engine, fit_s: float, judge_s: float, seed: int) -> tuple[Calibration, dict[str, object]]:
    """Fit the law to the calibration loads, judge it by held-out ones."""
    model = live_cost(engine.info)
    seen: list[StepRecord] = []
    fitting = loads.loads_for_fit(seed)
    for i, spec in enumerate(fitting):
        records = loads.run_live(engine, spec, fit_s).records
        seen += records
        print(f"calibration load {i + 1} of {len(fitting)}, {spec.users} users: {len(records)} steps", flush=True)
    calibration = calibrate(seen, model, START, held_out_every=0)
    print_law(calibration)
    rows: list[Residual] = []
    watch = PaceWatch(engine, calibration.coefficients, seed)
    for i, spec in enumerate(loads.loads_held_out(seed)):
        run, law = watch.around(partial(loads.run_live, engine, spec, judge_s))
        timer = CalibratedTimer(model, law.of_one_step())
        of_load = residuals([o for r in run.records if (o := observe(r, model))], timer)
        rows += of_load
        if of_load:
            e = summarise_errors(of_load)
            print(f"held-out load {i + 1}, {spec.users} users: {e.steps} steps, {e.median:.1%} median error, bias {e.bias:+.1%}")
    print_residuals(rows)
    errors = summarise_errors(rows)
    return calibration, {"step_time_median_error": errors.median, "step_time_p90_error": errors.p90}


def print_law(calibration: Calibration) -> None:
    """The fitted law in the units of a data sheet."""
    law, fitted = calibration.coefficients, calibration.fitted
    print(f"{calibration.source}, all of calibration loads; on those: {fitted.median:.1%} median, {fitted.p90:.1%} p90")
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
    print_table(("steps of held-out loads", "steps", "median ms", "median error %", "p90 %", "bias %"), lines)
    print()


def _within(rows: Sequence[Residual], name: str, low: int, high: int) -> list[Residual]:
    return [r for r in rows if low <= getattr(r, name) < high]


def main(argv: Sequence[str] = ()) -> int:
    """Run the phases; the last line is the JSON object."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks whatif", description=__doc__.splitlines()[0])
    parser.add_argument("--phase", default="all", choices=("all", "steps", "runs", "speed"))
    parser.add_argument("--law", type=Path, help="file for the fitted law: `steps` writes it, `runs` alone reads it")
    parser.add_argument("--quick", action="store_true", help="short loads")
    parser.add_argument("--seconds", type=float, help="length of each load (default 3 to fit, 6 to judge, 18 for runs)")
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--limit", type=float, default=LIMIT_S, help="seconds of the whole command (default %(default)g)")
    parser.add_argument("--executor", default="inprocess", choices=("inprocess", "worker"))
    parser.add_argument("--requests", type=int, help="length of the simulated run (default 100000)")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args(argv)
    if args.phase == "runs" and args.law is None:
        parser.error("--phase runs needs --law FILE, the law that --phase steps wrote")
    found: dict[str, object] = {"benchmark": "whatif", "phase": args.phase, "quick": args.quick, "seed": args.seed}
    found |= {"machine": platform.processor() or platform.machine()}
    allowance = Allowance(args.limit)
    sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]  # each result is there as it is found
    if args.phase == "speed":
        found |= speed(args, allowance)
    else:
        found |= on_the_engine(args, allowance)
    found["seconds"] = round(args.limit - allowance.left_s, 1)
    print_json_line(found)
    return 0


def read_law(path: Path) -> StepCoefficients:
    """The law as `steps` wrote it."""
    fields = json.loads(path.read_text(encoding="utf-8"))
    return StepCoefficients(**(fields | {"law_s": tuple(fields["law_s"])}))


def speed(args: argparse.Namespace, allowance: Allowance) -> dict[str, object]:
    """How many requests a second are simulated."""
    requests = args.requests or (5_000 if args.quick else 100_000)
    rate = simulation_speed(requests, args.seed, min(SPEED_LIMIT_S, allowance.left_s / 4))
    return {"simulated_requests_per_s": rate}


def on_the_engine(args: argparse.Namespace, allowance: Allowance) -> dict[str, object]:
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
            law = read_law(args.law)
        else:
            calibration, errors = step_phase(
                engine, args.seconds or (1.0 if args.quick else 3.0), args.seconds or (2.0 if args.quick else 6.0), args.seed
            )
            law, found = calibration.coefficients, found | errors
            if args.law is not None:
                args.law.write_text(json.dumps(asdict(law)))
        if args.phase == "all":
            found |= speed(args, allowance)
        if args.phase != "steps":
            machine = this_machine(engine.config, info, START, law)
            found |= run_phase(engine, machine, args.seconds or (5.0 if args.quick else 18.0), args.seed, allowance)
        return found
    finally:
        engine.close()
