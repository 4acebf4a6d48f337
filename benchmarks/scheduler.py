"""How long the scheduler takes to decide one step: 256 running requests, 1,000 to 10,000 waiting, memory short.

    python -m benchmarks scheduler [--steps 1500] [--running 256] [--waiting 1000,2000,5000,10000] [--seed 0]

First come first served, chunked prefill, on-demand blocks, prefix caching on, a pool below demand, so that rows cross
block boundaries, end, are preempted and resume in the steps that are timed. Only `schedule` is in `decide_us`;
`update_from_output` is shown beside it. Each request that ends is replaced, so the queue keeps its length.
"""

from __future__ import annotations

import argparse
import platform
import random
import statistics
import time

from benchmarks.report import print_json_line, print_table
from core.config import CacheConfig, SchedulerConfig
from core.outputs import ModelRunnerOutput
from core.request import Request, SamplingParams
from core.scheduler import Scheduler

BLOCK_SIZE = 16
PROMPT_TOKENS = (64, 512)
OUTPUT_TOKENS = (64, 256)
POOL_SHARE = 0.97
"""Pool size as a share of what `running` requests of mean length hold, so that some must give way."""
WARM_UP_STEPS = 400
VOCAB = 50_000


def make_request(rng: random.Random, number: int, now: float) -> Request:
    """A request of random length with a prompt of its own."""
    prompt = tuple(rng.choices(range(VOCAB), k=rng.randint(*PROMPT_TOKENS)))
    params = SamplingParams(max_tokens=rng.randint(*OUTPUT_TOKENS), ignore_eos=True)
    return Request(f"request-{number}", prompt, params, now)


def measure(running: int, waiting: int, steps: int, seed: int) -> dict[str, float]:
    """Time `steps` decisions in the steady state; microseconds, counts and means."""
    rng = random.Random(seed)
    mean_tokens = sum(PROMPT_TOKENS) / 2 + sum(OUTPUT_TOKENS) / 4
    pool = round(POOL_SHARE * running * (mean_tokens / BLOCK_SIZE + 0.5))
    config = SchedulerConfig(max_num_seqs=running, max_num_batched_tokens=2048, max_waiting=2 * waiting + running)
    cache = CacheConfig(block_size=BLOCK_SIZE, num_blocks=pool)
    scheduler = Scheduler(config, cache, max_model_len=4096, vocab_size=VOCAB, seed=seed)
    number = 0
    decide_us: list[float] = []
    update_us: list[float] = []
    rows: list[int] = []
    preempted_steps = preempted_before = 0
    for step in range(WARM_UP_STEPS + steps):
        while scheduler.num_waiting + scheduler.num_running + len(scheduler.preempted) < running + waiting:
            scheduler.add_request(make_request(rng, number, float(step)))
            number += 1
        if step == WARM_UP_STEPS:
            preempted_before = scheduler.counters.preemptions
        start = time.perf_counter()
        out = scheduler.schedule(float(step))
        decided = time.perf_counter()
        sampled = tuple([(rid, step % VOCAB) for rid, samples in zip(out.request_ids, out.samples, strict=True) if samples])
        result = ModelRunnerOutput(step=out.step, sampled=sampled)
        ready = time.perf_counter()
        scheduler.update_from_output(out, result, float(step) + 1.0)
        booked = time.perf_counter()
        scheduler.pop_ended()
        if step >= WARM_UP_STEPS:
            decide_us.append((decided - start) * 1e6)
            update_us.append((booked - ready) * 1e6)
            rows.append(len(out.request_ids))
            preempted_steps += bool(out.preemptions)
        del out, result, sampled  # freeing the previous step is no part of the next decision
    quantiles = statistics.quantiles(decide_us, n=100)
    return {
        "waiting": waiting,
        "decide_us": statistics.median(decide_us),
        "p90_us": quantiles[89],
        "p99_us": quantiles[98],
        "update_us": statistics.median(update_us),
        "rows": statistics.fmean(rows),
        "preemptions": scheduler.counters.preemptions - preempted_before,
        "steps_with_preemption": preempted_steps / steps,
    }


def main(argv: list[str]) -> int:
    """Print the curve over the length of the queue, then the JSON line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks scheduler", description=__doc__)
    parser.add_argument("--steps", type=int, default=1500)
    parser.add_argument("--running", type=int, default=256)
    parser.add_argument("--waiting", default="1000,2000,5000,10000")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args(argv)
    results = [measure(args.running, int(w), args.steps, args.seed) for w in args.waiting.split(",")]
    headers = ["waiting", "decide us", "p90 us", "p99 us", "update us", "mean rows", "preemptions", "steps with one"]
    print_table(headers, [list(r.values()) for r in results])
    line: dict[str, object] = {f"decide_us_{args.running}_{int(r['waiting'])}": round(r["decide_us"], 1) for r in results}
    line |= {
        "preemptions": int(sum(r["preemptions"] for r in results)),
        "mean_rows": round(statistics.fmean(r["rows"] for r in results), 1),
        "steps": args.steps,
        "python": platform.python_version(),
    }
    print_json_line(line)
    return 0
