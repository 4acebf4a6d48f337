"""Whole runs of `benchmarks whatif`: saturation, Poisson loads below it, predicted and measured; and how fast a run is simulated.

Each run is told as it ends. `Allowance` keeps the whole command within its time: on a slow machine the loads get shorter
(never their number or their repetitions), and the long simulated run is stopped and its rate taken from what it has done.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from statistics import median

import numpy as np

from benchmarks import whatif_loads as loads
from benchmarks.report import print_table
from benchmarks.whatif_pace import PACE_LOAD_S, PaceWatch
from core.config import SchedulerConfig
from core.devices import DEVICES
from core.engine import Engine
from core.load_spec import LoadSpec
from core.models_catalog import model_named
from core.prediction import COMPARED, Pair, pair_run
from core.prompts import StandInPrompts
from core.sim_setup import setup_on_device
from core.simulator import simulate
from core.whatif import WhatIf
from core.workload import LoadGenerator

CAPACITY_SHARES = (0.5, 0.7, 0.9)
REPEATS = 3
BURSTS = 2
LEAST_RUN_S = 6.0
SPEED_LIMIT_S = 60.0
DRAIN_S = 6.0
"""What a Poisson load takes after its last arrival, on a machine of which nothing is known yet."""
TOLD = {"output_tokens_per_s": "throughput", "ttft_p50": "ttft_p50", "tpot_p50": "tpot_p50"}


class Allowance:
    """What is left of a command's time.

    Args:
        limit_s: of the whole command, from the making of this object.
    """

    def __init__(self, limit_s: float, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        self._end_s = now() + limit_s

    @property
    def left_s(self) -> float:
        return max(self._end_s - self._now(), 0.0)

    def run_seconds(self, wanted_s: float, runs: int, around_s: float) -> float:
        """Seconds of arrivals of each of `runs` runs, of which each takes `around_s` beside them."""
        return min(wanted_s, max(self.left_s / max(runs, 1) - around_s, LEAST_RUN_S))


def run_phase(engine: Engine, machine: WhatIf, seconds: float, seed: int, allowance: Allowance) -> dict[str, object]:
    """Saturation, then three loads below it, each several times in turns: predicted against measured, and measured again."""
    found: dict[str, object] = {}
    runs_left = BURSTS + REPEATS * len(CAPACITY_SHARES)
    assert machine.coefficients is not None
    watch = PaceWatch(engine, machine.coefficients, seed)
    capacity, found["saturation_error"], found["repeat_saturation"] = saturation(
        engine, machine, watch, allowance.run_seconds(seconds, runs_left, PACE_LOAD_S), seed
    )
    specs: dict[float, LoadSpec] = {}
    runs: dict[float, list[Judged]] = {share: [] for share in CAPACITY_SHARES}
    runs_left, around_s = runs_left - BURSTS, PACE_LOAD_S + DRAIN_S
    asked_s = allowance.run_seconds(seconds, runs_left, around_s)
    if asked_s < seconds:
        print(f"loads of {asked_s:.1f} s instead of {seconds:g} s: {allowance.left_s:.0f} s are left for {runs_left} runs")
    for share in CAPACITY_SHARES:
        rate = share * capacity
        specs[share] = loads.poisson_load(seed + round(100 * share), rate, max(round(rate * asked_s), 12))
    for again in range(REPEATS):
        for share, spec in specs.items():
            if again and not allowance.left_s:
                print(f"the time is up: no run {again + 1} at {share:.0%} (--limit gives more)")
                continue
            row = judged(engine, machine, watch, spec, again)
            runs[share].append(row)
            told = ", ".join(f"{label} {_told(row.pairs[name])}" for name, label in TOLD.items())
            print(f"{share:.0%} of capacity, run {again + 1} of {REPEATS}, {spec.num_requests} requests: {told}", flush=True)
    return found | _of_runs(runs) | {"run_seconds": asked_s}


def _told(pair: Pair) -> str:
    if pair.measured is None or pair.predicted is None or pair.error is None:
        return "unknown"
    return f"{pair.measured:.3g} measured, {pair.predicted:.3g} predicted ({pair.error:+.1%})"


def _of_runs(runs: dict[float, list[Judged]]) -> dict[str, object]:
    """Medians over the repetitions, printed; the worst error of each figure."""
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
    repeats = min(len(rows) for rows in runs.values())
    print(f"\nheld-out loads, medians of {repeats} runs; pace of the machine around them {min(paces):.3g} to {max(paces):.3g}")
    print_table(("load and figure", "unit", "measured", "predicted", "error %", "a run against the others %"), lines)
    print()
    found: dict[str, object] = {f"{TOLD[name]}_error": value for name, value in worst.items()}
    return found | {"repeats": repeats} | {f"repeat_{TOLD[name]}": value for name, value in repeat.items()}


def saturation(engine: Engine, machine: WhatIf, watch: PaceWatch, seconds: float, seed: int) -> tuple[float, float, float]:
    """(measured requests/s, relative error of the predicted ones, difference of a second measurement)."""
    spec = loads.burst_load(seed, max(round(seconds * 3), 48))
    rates: list[tuple[float, float]] = []
    for again in range(BURSTS):
        run, law = watch.around(partial(loads.run_live, engine, spec, again=again))
        predicted = replace(machine, coefficients=law, arrivals=tuple(run.arrivals)).run()
        rates.append((run.requests_per_s, predicted.requests_per_s))
    measured, predicted = (float(np.mean(column)) for column in zip(*rates, strict=True))
    error, again_error = predicted / measured - 1.0, rates[1][0] / rates[0][0] - 1.0
    print(
        f"saturation: measured {rates[0][0]:.3g} requests/s, again {rates[1][0]:.3g} ({again_error:+.1%}),"
        f" predicted {predicted:.3g} ({error:+.1%} of their mean)\n"
    )
    return measured, abs(error), abs(again_error)


@dataclass(frozen=True, slots=True)
class Judged:
    """One run of a held-out load: figures measured and predicted by name, and the pace found around it."""

    pairs: dict[str, Pair]
    pace: float


def judged(engine: Engine, machine: WhatIf, watch: PaceWatch, spec: LoadSpec, again: int) -> Judged:
    """Run the load between two measurements of the pace, then simulate the same arrivals."""
    run, law = watch.around(partial(loads.run_live, engine, spec, again=again))
    result = replace(machine, coefficients=law, arrivals=tuple(run.arrivals)).run()
    return Judged({p.name: p for p in pair_run(result, run.records, run.requests)}, law.pace)


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


def simulation_speed(requests: int, seed: int, limit_s: float = SPEED_LIMIT_S) -> float:
    """Requests a wall second of a long run: Llama 3.1 8B on an H100, lengths as in the loads above.

    Args:
        limit_s: the run is stopped after so long; the rate is then that of the requests that ended by then.
    """
    spec = model_named("Llama 3.1 8B")
    knobs = SchedulerConfig(max_num_seqs=256, max_num_batched_tokens=2048, max_waiting=1_000_000)
    setup = setup_on_device(spec, DEVICES["H100 SXM"], knobs, max_model_len=4096)
    feed = LoadGenerator(loads.poisson_load(seed, 120.0, requests), StandInPrompts())
    began, cpu_began = time.perf_counter(), time.process_time()
    told = began

    def progress(ended: int, virtual_s: float) -> None:
        nonlocal told
        now = time.perf_counter()
        if now - told > 5.0:
            told = now
            print(f"{ended} of {requests} requests simulated, {ended / (now - began):.0f}/s", flush=True)

    result = simulate(setup, feed, should_stop=lambda: time.perf_counter() - began > limit_s, on_progress=progress)
    elapsed, cpu = time.perf_counter() - began, time.process_time() - cpu_began
    stopped = f", stopped after {limit_s:g} s" if result.finished < requests else ""
    print(
        f"{result.finished} of {requests} requests, {result.output_tokens} tokens, {result.steps} steps"
        f" ({result.mean_batch:.0f} rows each) simulated in {elapsed:.1f} s, {cpu:.1f} s of them on a processor{stopped}\n"
    )
    return result.finished / elapsed
