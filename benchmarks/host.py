"""Host cost of a step at 64 running requests: everything that is not the forward pass, in microseconds.

    python -m benchmarks host [--repeats 3] [--rows 64] [--dtype bfloat16]

Scheduling, input preparation, sampling, detokenising, events and the snapshot; steady decode steps only, a snapshot
after each as the dashboard takes one.
"""

from __future__ import annotations

import argparse
import statistics
import time

from benchmarks.load import add_arguments, engine_for, identity, median_and_spread, warm_up
from benchmarks.report import print_json_line, print_table
from core.engine import Engine
from core.records import StepRecord
from core.request import SamplingParams

STEPS = 40
PROMPT_TOKENS = 16


def _steady_steps(engine: Engine, rows: int, vocab: int) -> list[tuple[StepRecord, float]]:
    """Decode steps with all rows running: (record, seconds of the snapshot)."""
    ids = []
    for row in range(rows):
        prompt = [(row * 31 + i * 7) % (vocab - 1) + 1 for i in range(PROMPT_TOKENS)]
        ids.append(engine.add_request(prompt, SamplingParams(max_tokens=4 * STEPS, ignore_eos=True)))
    found: list[tuple[StepRecord, float]] = []
    while engine.has_work() and len(found) < STEPS:
        engine.step()
        start = time.perf_counter()
        engine.snapshot()
        snapshot_s = time.perf_counter() - start
        record = engine.latest_record
        if record is not None and record.decode_requests == rows and record.prefill_tokens == 0:
            found.append((record, snapshot_s))
    for request_id in ids:
        engine.cancel(request_id)
    engine.run_until_idle()
    return found


def main(argv: list[str]) -> int:
    """Measure steady decode steps; print the parts, then the JSON line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks host", description=__doc__)
    add_arguments(parser)
    parser.add_argument("--rows", type=int, default=64)
    args = parser.parse_args(argv)
    blocks = args.rows * (-(-(PROMPT_TOKENS + 4 * STEPS) // 16) + 1)
    engine = engine_for(args, blocks, seats=args.rows)
    info = engine.snapshot().info
    if info is None:
        raise SystemExit("the engine has no executor; nothing to measure")
    warm_up(engine)
    rounds = [_steady_steps(engine, args.rows, info.spec.vocab_size) for _ in range(args.repeats)]
    steps = [step for each in rounds for step in each]
    if not steps:
        raise SystemExit(f"no step had all {args.rows} requests running; raise --seats or lower --rows")
    parts = {
        "schedule": [r.schedule_s for r, _ in steps],
        "prepare": [r.prepare_s for r, _ in steps],
        "sample": [r.sample_s for r, _ in steps],
        "update, detokenise": [r.update_s for r, _ in steps],
        "snapshot": [s for _, s in steps],
        "all but the forward pass": [r.host_s + s for r, s in steps],
        "forward pass": [r.forward_s for r, _ in steps],
    }
    print_table(["part", "median us"], [[name, statistics.median(v) * 1e6] for name, v in parts.items()])
    host_us, spread = median_and_spread([statistics.median([r.host_s + s for r, s in each]) * 1e6 for each in rounds])
    share = host_us / (host_us + statistics.median(parts["forward pass"]) * 1e6)
    line = {"benchmark": "host", f"host_us_{args.rows}": host_us, "spread": spread, "host_share": share, "steps": len(steps)}
    print_json_line({**line, **identity(engine, args, f"{args.rows} decoding requests")})
    engine.close()
    return 0
