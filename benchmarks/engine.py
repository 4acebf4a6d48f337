"""Throughput of a full batch: all requests of the load submitted at once, greedy, end tokens ignored.

    python -m benchmarks engine [--workload PATH] [--repeats 3] [--seats 64] [--dtype bfloat16] [--weight-dtype same]

output_tokens_per_s counts the tokens that requests asked for, prompt work included in the time. mfu and mbu are of
the forward passes against ceilings measured in the same process.
"""

from __future__ import annotations

import argparse

from benchmarks.load import (
    add_arguments,
    blocks_for,
    ceilings_of,
    engine_for,
    identity,
    median_and_spread,
    read_load,
    run_load,
    utilisation,
    warm_up,
)
from benchmarks.report import print_json_line, print_table


def main(argv: list[str]) -> int:
    """Run the load several times; print a line a run, then the JSON line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks engine", description=__doc__)
    add_arguments(parser)
    args = parser.parse_args(argv)
    probe = engine_for(args, 64)
    info = probe.snapshot().info
    probe.close()
    if info is None:
        raise SystemExit("the engine has no executor; nothing to measure")
    load, name = read_load(args.workload, info.spec.vocab_size, args.seed)
    engine = engine_for(args, blocks_for(load))
    warm_up(engine)
    runs = [run_load(engine, load) for _ in range(args.repeats)]
    share_flops, share_bytes = utilisation(runs, ceilings_of(engine))
    rate, spread = median_and_spread([run.output_tokens_per_s for run in runs])
    print_table(
        ["run", "output tokens", "steps", "seconds", "output tokens/s"],
        [[i + 1, r.output_tokens, len(r.records), r.elapsed_s, r.output_tokens_per_s] for i, r in enumerate(runs)],
    )
    line = {"benchmark": "engine", "output_tokens_per_s": rate, "spread": spread, "mfu": share_flops, "mbu": share_bytes}
    print_json_line({**line, **identity(engine, args, name)})
    engine.close()
    return 0
