"""Speed on a GPU: decode tokens/s, MFU and MBU at several batch sizes, and what launching costs beside the device's work.

    python -m benchmarks gpu [--batches 1,8,32] [--tokens 64] [--dtype bfloat16] [--model smollm2]

launch_overhead is the share of a step's forward pass in which the device had nothing to do. Decode steps captured as
CUDA graphs are reported from what the runner says of each step (StepRecord.graph: hits and misses); a runner that
captures none shows counts of 0 and with_graphs null. Without a CUDA device the benchmark says so and ends.
"""

from __future__ import annotations

import argparse
from collections import Counter

import torch

from benchmarks.load import Run, add_arguments, blocks_for, ceilings_of, engine_for, identity, run_load, utilisation, warm_up
from benchmarks.report import print_json_line, print_table
from core.engine import Engine

PROMPT_TOKENS = 64


def _device_busy_s(engine: Engine, rows: int, steps: int) -> tuple[float, Run]:
    """Seconds of device work in a short run, from the profiler's kernel times, and the run."""
    load = [([(r * 17 + i) % 500 + 1 for i in range(PROMPT_TOKENS)], steps) for r in range(rows)]
    activities = [torch.profiler.ProfilerActivity.CUDA]
    with torch.profiler.profile(activities=activities) as profile:
        run = run_load(engine, load)
    return sum(event.self_device_time_total for event in profile.key_averages()) / 1e6, run


def main(argv: list[str]) -> int:
    """Measure each batch size; print a line each, then the JSON line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks gpu", description=__doc__)
    add_arguments(parser)
    parser.add_argument("--batches", default="1,8,32")
    parser.add_argument("--tokens", type=int, default=64)
    args = parser.parse_args(argv)
    if not torch.cuda.is_available():
        print("no CUDA device: nothing was measured")
        print_json_line({"benchmark": "gpu", "skipped": "PyTorch sees no CUDA device", "device": "cpu"})
        return 0
    args.device = "cuda"
    sizes = [int(size) for size in args.batches.split(",")]
    args.seats = max(sizes)
    blocks = blocks_for([([0] * PROMPT_TOKENS, args.tokens)] * max(sizes))
    engine = engine_for(args, blocks)
    warm_up(engine)
    ceilings = ceilings_of(engine)
    rows, graphs = [], Counter[str]()
    overheads: dict[str, float] = {}
    rates: dict[str, float] = {}
    for size in sizes:
        load = [([(r * 13 + i) % 500 + 1 for i in range(PROMPT_TOKENS)], args.tokens) for r in range(size)]
        run = run_load(engine, load)
        busy_s, profiled = _device_busy_s(engine, size, 16)
        forward_s = sum(record.forward_s for record in profiled.records)
        overheads[str(size)] = max(0.0, 1.0 - busy_s / forward_s) if forward_s else 0.0
        rates[str(size)] = run.output_tokens_per_s
        graphs.update(record.graph.split()[1] if record.graph.startswith("graph") else "eager" for record in run.records)
        share_flops, share_bytes = utilisation([run], ceilings)
        rows.append([size, run.output_tokens_per_s, share_flops, share_bytes, overheads[str(size)]])
    print_table(["batch", "output tokens/s", "MFU", "MBU", "launch overhead"], rows)
    last_flops, last_bytes = rows[-1][2], rows[-1][3]
    line = {
        "benchmark": "gpu", "output_tokens_per_s": rates, "mfu": last_flops, "mbu": last_bytes, "launch_overhead": overheads,
        "graph_hits": graphs["hit"], "graph_misses": graphs["miss"], "with_graphs": graphs["hit"] > 0 or None,
    }  # fmt: skip
    print_json_line({**line, **identity(engine, args, f"{PROMPT_TOKENS} + {args.tokens} tokens")})
    engine.close()
    return 0
