"""Sixteen requests on the real model, in process: the shortest proof that everything below the pages works.

    python -m benchmarks smoke [--model smollm2] [--requests 16] [--dtype bfloat16] [--seed 0]

`mean_batch` is the mean number of rows a step; `full_batch_share` the share of the steps with a queue in which
the batch was at its memory-determined maximum, null when no request ever waited.
"""

from __future__ import annotations

import argparse
import json
import random
import time

from core.config import EngineConfig
from core.factory import create_engine
from core.request import SamplingParams


def main(argv: list[str]) -> int:
    """Run the load and print one line a metric, then the JSON line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks smoke", description=__doc__)
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--dtype", default="bfloat16", choices=("bfloat16", "float32"))
    parser.add_argument("--requests", type=int, default=16)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args(argv)

    engine = create_engine(EngineConfig(model=args.model, dtype=args.dtype, seed=args.seed))
    info = engine.snapshot().info
    if info is None:
        raise SystemExit("the engine has no executor; see the message above")
    rng = random.Random(args.seed)
    for _ in range(args.requests):
        length = rng.randint(16, 96)
        prompt = [rng.randrange(3, info.spec.vocab_size) for _ in range(length)]
        engine.add_request(prompt, SamplingParams(max_tokens=rng.randint(16, 48), ignore_eos=True))
    started = time.perf_counter()
    steps = rows = tokens = waiting_steps = full_steps = 0
    while engine.has_work():
        engine.step()
        record = engine.latest_record
        if record is None:
            continue
        steps += 1
        rows += record.num_running
        tokens += record.output_tokens
        waiting_steps += record.num_waiting > 0
        full_steps += record.num_waiting > 0 and record.full_batch
    elapsed_s = time.perf_counter() - started
    engine.check_invariants()
    result = {
        "output_tokens_per_s": round(tokens / elapsed_s, 2),
        "mean_batch": round(rows / max(steps, 1), 2),
        "full_batch_share": round(full_steps / waiting_steps, 3) if waiting_steps else None,
        "steps": steps,
        "device": info.device,
        "dtype": info.dtype,
        "model": info.model_label,
        "requests": args.requests,
        "seed": args.seed,
    }
    for name, value in result.items():
        print(f"{name:>20}  {value}")
    print(json.dumps(result))
    engine.close()
    return 0
