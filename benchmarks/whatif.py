"""How far off the predictions are, on this machine: step times, runs at half to nearly full capacity, saturation.

    python -m benchmarks whatif [--quick] [--phase all|steps|runs|speed] [--law FILE]

1. steps   calibration loads run on the real engine and the law is fitted to them; then held-out loads, whose steps the fit
           has not seen                                                       -> step_time_median_error
2. runs    a burst that fills every seat, measured and simulated              -> saturation_error
           Poisson loads at 50, 70 and 90 % of the measured capacity, the same arrivals measured and simulated
                                                -> throughput_error, ttft_p50_error, tpot_p50_error (the worst of three)
           each runs three times in turns and medians are compared; what the engine does not repeat itself, a prediction
           cannot know -> repeat_*, a run against the others
3. speed   a long simulated run                                               -> simulated_requests_per_s

About 7 minutes; --quick takes 2 and says little. A phase alone takes at most 5; `runs` reads the law that `steps` wrote.
"""

from __future__ import annotations

import argparse
import json
import platform
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import median

import numpy as np

from benchmarks import whatif_loads as loads
from benchmarks.report import print_json_line, print_table
from core.calibration import Calibration, at_pace, calibrate
from core.clock import WallClock
from core.config import CacheConfig, EngineConfig, SchedulerConfig
from core.devices import DEVICES, DeviceSpec
from core.engine import Engine
from core.factory import create_engine
from core.load_spec import LoadSpec
from core.models_catalog import model_named
from core.prediction import COMPARED, Pair, pair_run, this_machine
from core.prompts import StandInPrompts
from core.sim_setup import setup_on_device
from core.simulator import simulate
from core.step_residuals import ErrorSummary, Residual, observe, residuals, summarise_errors
from core.step_timer import CalibratedTimer, StepCoefficients
from core.whatif import WhatIf
from core.whatif_base import live_cost
from core.workload import LoadGenerator

SCHEDULER = SchedulerConfig(max_num_seqs=32, max_num_batched_tokens=128)
CACHE = CacheConfig(block_size=16, num_blocks=2048)
START = DeviceSpec("this machine", 100e9, 15e9, 8e9, source="start of the fit; the measured steps decide")
CAPACITY_SHARES = (0.5, 0.7, 0.9)
REPEATS = 3
PACE_LOAD_S = 3.0
TOLD = {"output_tokens_per_s": "throughput", "ttft_p50": "ttft_p50", "tpot_p50": "tpot_p50"}
ROWS, CONTEXTS = (1, 2, 4, 8, 16, 32), (64, 128, 256, 512, 1024)


# -- the time of a step ------------------------------------------------------------------------------------------


def step_phase(engine: Engine, fit_s: float, judge_s: float, seed: int) -> tuple[Calibration, dict[str, object]]:
    """Fit the law to the calibration loads, judge it by held-out ones."""
    model = live_cost(engine.info)
    seen = [r for spec in loads.loads_for_fit(seed) for r in loads.run_live(engine, spec, fit_s).records]
    calibration = calibrate(seen, model, START, held_out_every=0)
    print_law(calibration)
    rows: list[Residual] = []
    for i, spec in enumerate(loads.loads_held_out(seed)):
        latest = loads.run_live(engine, loads.load_for_pace(seed + i), PACE_LOAD_S).records
        timer = CalibratedTimer(model, at_pace(calibration.coefficients, latest, model).of_one_step())
        fresh = loads.run_live(engine, spec, judge_s).records
        rows += residuals([o for r in fresh if (o := observe(r, model))], timer)
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


# -- whole runs --------------------------------------------------------------------------------------------------


def run_phase(engine: Engine, machine: WhatIf, seconds: float, seed: int) -> dict[str, object]:
    """Saturation, then three loads below it, each several times in turns: predicted against measured, and measured again."""
    found: dict[str, object] = {}
    capacity, found["saturation_error"], found["repeat_saturation"] = saturation(engine, machine, seconds, seed)
    specs = {}
    for share in CAPACITY_SHARES:
        rate = share * capacity
        specs[share] = loads.poisson_load(seed + round(100 * share), rate, max(round(rate * seconds), 12))
    runs: dict[float, list[Judged]] = {share: [] for share in specs}
    for again in range(REPEATS):
        for share, spec in specs.items():
            runs[share].append(judged(engine, machine, spec, seed, again))
    lines: list[Sequence[object]] = []
    worst, repeat = dict.fromkeys(TOLD, 0.0), dict.fromkeys(TOLD, 0.0)
    for share, rows in runs.items():
        for name, _, unit in COMPARED:
            pair, spread = over_repeats(name, unit, rows)
            lines.append((f"{share:.0%} {name}", unit, pair.measured, pair.predicted, _percent(pair), 100 * spread))
            if name in TOLD:
                worst[name] = max(worst[name], abs(pair.error or 0.0))
                repeat[name] = max(repeat[name], spread)
    paces = [row.pace for rows in runs.values() for row in rows]
    print(f"held-out loads, medians of {REPEATS} runs; pace of the machine before them {min(paces):.3g} to {max(paces):.3g}")
    print_table(("load and figure", "unit", "measured", "predicted", "error %", "a run against the others %"), lines)
    print()
    found |= {f"{TOLD[name]}_error": value for name, value in worst.items()}
    return found | {"repeats": REPEATS} | {f"repeat_{TOLD[name]}": value for name, value in repeat.items()}


def at_this_pace(engine: Engine, machine: WhatIf, seed: int) -> WhatIf:
    """The law at the pace of the machine now, by a few seconds of a calibration load."""
    assert machine.coefficients is not None
    latest = loads.run_live(engine, loads.load_for_pace(seed), PACE_LOAD_S).records
    return replace(machine, coefficients=at_pace(machine.coefficients, latest, live_cost(engine.info)))


def saturation(engine: Engine, machine: WhatIf, seconds: float, seed: int) -> tuple[float, float, float]:
    """(measured requests/s, relative error of the predicted ones, difference of a second measurement)."""
    spec = loads.burst_load(seed, max(round(seconds * 3), 48))
    rates: list[tuple[float, float]] = []
    for again in range(2):
        now = at_this_pace(engine, machine, seed + again)
        run = loads.run_live(engine, spec, again=again)
        rates.append((run.requests_per_s, replace(now, arrivals=tuple(run.arrivals)).run().requests_per_s))
    measured, predicted = (float(np.mean(column)) for column in zip(*rates, strict=True))
    error, again_error = predicted / measured - 1.0, rates[1][0] / rates[0][0] - 1.0
    print(
        f"saturation: measured {rates[0][0]:.3g} requests/s, again {rates[1][0]:.3g} ({again_error:+.1%}),"
        f" predicted {predicted:.3g} ({error:+.1%} of their mean)\n"
    )
    return measured, abs(error), abs(again_error)


@dataclass(frozen=True, slots=True)
class Judged:
    """One run of a held-out load: figures measured and predicted by name, and the pace found before it."""

    pairs: dict[str, Pair]
    pace: float


def judged(engine: Engine, machine: WhatIf, spec: LoadSpec, seed: int, again: int) -> Judged:
    """Measure the pace, predict nothing yet, run the load, then simulate the same arrivals."""
    now = at_this_pace(engine, machine, seed + again)
    run = loads.run_live(engine, spec, again=again)
    result = replace(now, arrivals=tuple(run.arrivals)).run()
    assert now.coefficients is not None
    return Judged({p.name: p for p in pair_run(result, run.records, run.requests)}, now.coefficients.pace)


def over_repeats(name: str, unit: str, rows: Sequence[Judged]) -> tuple[Pair, float]:
    """Medians over the runs of a load, and how far one run is from the median of the others, at worst."""
    pairs = [row.pairs[name] for row in rows]
    measured = [p.measured for p in pairs if p.measured is not None]
    predicted = [p.predicted for p in pairs if p.predicted is not None]
    if not measured or not predicted:
        return Pair(name, unit, None, None), 0.0
    others = [(m, median([*measured[:i], *measured[i + 1 :]] or [m])) for i, m in enumerate(measured)]
    spread = max(abs(m / other - 1.0) if other else 0.0 for m, other in others)
    return Pair(name, unit, median(predicted), median(measured)), spread


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
    parser.add_argument("--seconds", type=float, help="length of each load (default 3.5 to fit, 6 to judge, 18 for runs)")
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
            calibration, errors = step_phase(
                engine, args.seconds or (1.0 if args.quick else 3.5), args.seconds or (2.0 if args.quick else 6.0), args.seed
            )
            law, found = calibration.coefficients, found | errors
            if args.law is not None:
                args.law.write_text(json.dumps(asdict(law)))
        if args.phase != "steps":
            machine = this_machine(engine.config, info, START, law)
            found |= run_phase(engine, machine, args.seconds or (5.0 if args.quick else 18.0), args.seed)
        return found
    finally:
        engine.close()
