"""A lone request: output tokens/s of one decode at a time, where the weights' memory traffic is the limit.

python -m benchmarks alone [--tokens 128] [--prompt-tokens 48] [--repeats 3] [--dtype bfloat16] [--weight-dtype same]
"""

from __future__ import annotations

import argparse
import random

from benchmarks.load import (
    FIRST_PLAIN_TOKEN,
    Load,
    add_arguments,
    blocks_for,
    ceilings_of,
    engine_for,
    identity,
    median_and_spread,
    run_load,
    utilisation,
    warm_up,
)
from benchmarks.report import print_json_line, print_table


def main(argv: list[str]) -> int:
    """Run one request several times; print a line a run, then the JSON line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks alone", description=__doc__)
    add_arguments(parser)
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument("--prompt-tokens", type=int, default=48)
    args = parser.parse_args(argv)
    rng = random.Random(args.seed)
    engine = engine_for(args, 64 + blocks_for([([0] * args.prompt_tokens, args.tokens)]))
    info = engine.snapshot().info
    if info is None:
        raise SystemExit("the engine has no executor; nothing to measure")
    vocab = info.spec.vocab_size
    first = min(FIRST_PLAIN_TOKEN, vocab // 2)
    load: Load = [([rng.randrange(first, vocab) for _ in range(args.prompt_tokens)], args.tokens)]
    warm_up(engine)
    runs = [run_load(engine, load) for _ in range(args.repeats)]
    share_flops, share_bytes = utilisation(runs, ceilings_of(engine))
    rate, spread = median_and_spread([run.output_tokens_per_s for run in runs])
    print_table(
        ["run", "output tokens", "seconds", "output tokens/s"],
        [[i + 1, run.output_tokens, run.elapsed_s, run.output_tokens_per_s] for i, run in enumerate(runs)],
    )
    line = {"benchmark": "alone", "output_tokens_per_s": rate, "spread": spread, "mfu": share_flops, "mbu": share_bytes}
    print_json_line({**line, **identity(engine, args, f"1 request, {args.prompt_tokens} + {args.tokens} tokens")})
    engine.close()
    return 0
