"""The same load, model and engine under request-level and under iteration-level batching.

    python -m benchmarks fixed-vs-continuous [--workload PATH] [--batch 16] [--repeats 3] [--dtype bfloat16]

Rounds alternate, so that whatever else the machine does hits both alike. tokens_equal is the share of requests whose
greedy ids agree; in float32 it must be 1, in bfloat16 near ties may part.
"""

from __future__ import annotations

import argparse

from benchmarks.load import Run, add_arguments, blocks_for, engine_for, identity, median_and_spread, read_load, run_load, warm_up
from benchmarks.report import print_json_line, print_table


def main(argv: list[str]) -> int:
    """Run both policies in turn; print a line a run, then the JSON line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks fixed-vs-continuous", description=__doc__)
    add_arguments(parser)
    parser.add_argument("--batch", type=int, default=16, help="rows of a fixed batch")
    args = parser.parse_args(argv)
    probe = engine_for(args, 64)
    info = probe.snapshot().info
    probe.close()
    if info is None:
        raise SystemExit("the engine has no executor; nothing to measure")
    load, name = read_load(args.workload, info.spec.vocab_size, args.seed)
    longest = max(len(p) for p, _ in load) + max(out for _, out in load)
    reserved = args.batch * (-(-longest // 16) + 1)
    engines = {
        "fixed": engine_for(args, max(reserved, 64), fixed=True, seats=args.batch),
        "continuous": engine_for(args, blocks_for(load)),
    }
    for engine in engines.values():
        warm_up(engine)
    runs: dict[str, list[Run]] = {policy: [] for policy in engines}
    for _ in range(args.repeats):
        for policy, engine in engines.items():
            runs[policy].append(run_load(engine, load))
    rates = {policy: [run.output_tokens_per_s for run in each] for policy, each in runs.items()}
    print_table(
        ["batching", "run", "steps", "seconds", "output tokens/s"],
        [[p, i + 1, len(r.records), r.elapsed_s, r.output_tokens_per_s] for p, each in runs.items() for i, r in enumerate(each)],
    )
    ratio, spread = median_and_spread([c / f for c, f in zip(rates["continuous"], rates["fixed"], strict=True)])
    pairs = list(zip(runs["fixed"][0].outputs, runs["continuous"][0].outputs, strict=True))
    equal = sum(a == b for a, b in pairs) / len(pairs)
    line = {
        "benchmark": "fixed-vs-continuous", "throughput_ratio": ratio, "spread": spread, "tokens_equal": equal,
        "fixed_tokens_per_s": median_and_spread(rates["fixed"])[0], "fixed_batch": args.batch,
        "output_tokens_per_s": median_and_spread(rates["continuous"])[0],
    }  # fmt: skip
    print_json_line({**line, **identity(engines["continuous"], args, name)})
    for engine in engines.values():
        engine.close()
    return 0
