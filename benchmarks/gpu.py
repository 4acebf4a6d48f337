"""Speed on a GPU: decode tokens/s, MFU and MBU at several batch sizes, launch overhead with and without graphs, and equality.

    python -m benchmarks gpu [--batches 1,8,32,64] [--tokens 64] [--dtype bfloat16] [--model smollm2]

For each batch size the same load runs with decode steps as CUDA graphs, then operation by operation:

    launch overhead   1 - (the device's busy time in a decode step) / (the host's time from its inputs to its tokens);
                      busy from the profiler, as the difference of a long and a short run, host time from runs without it
    graph = eager     share of the requests whose greedy tokens agree; a batch that fills its bucket runs the very same kernels
    Triton vs plain   largest difference of a layer's logits as a share of the largest, by dtype

The whole load then runs once more on plain PyTorch. Figures of decode steps come from steps without prompt tokens.
Without a CUDA device the benchmark says so and ends.
"""

from __future__ import annotations

import argparse
import dataclasses
from collections import Counter
from collections.abc import Sequence
from statistics import median
from typing import Any

import torch

from benchmarks.load import Load, Run, add_arguments, blocks_for, ceilings_of, engine_for, identity, run_load, utilisation
from benchmarks.report import print_json_line, print_table
from core.engine import Engine
from core.records import StepRecord
from core.runtime.gpu.triton_check import TOLERANCE, largest_difference, triton_problem

PROMPT_TOKENS = 64
SHORT_TOKENS, LONG_TOKENS = 8, 40
DTYPES = {"bfloat16": torch.bfloat16, "float32": torch.float32}


def decode_records(run: Run) -> list[StepRecord]:
    """Steps of a run in which every row only decoded."""
    return [record for record in run.records if not record.prefill_requests and record.decode_requests]


def step_s(records: Sequence[StepRecord]) -> float:
    """Median time from a step's inputs to its tokens, s."""
    return median(record.forward_s + record.sample_s for record in records)


def overhead(busy_s: float, host_s: float) -> float:
    """Share of the host's time in which the device had nothing to do."""
    return max(0.0, 1.0 - busy_s / host_s) if host_s else 0.0


def equal_share(first: Run, second: Run) -> float:
    """Share of the requests with the same tokens in both runs."""
    pairs = list(zip(first.outputs, second.outputs, strict=True))
    return sum(a == b for a, b in pairs) / len(pairs)


def load_of(rows: int, tokens: int) -> Load:
    """`rows` different prompts of the same length."""
    return [([(r * 13 + i) % 500 + 1 for i in range(PROMPT_TOKENS)], tokens) for r in range(rows)]


def device_busy_s(engine: Engine, rows: int) -> float:
    """Seconds of device work in one decode step: what a long run needs more than a short one, by the profiler's kernel times."""
    totals = []
    for tokens in (SHORT_TOKENS, LONG_TOKENS):
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
            run_load(engine, load_of(rows, tokens))
        totals.append(sum(event.self_device_time_total for event in profile.key_averages()) / 1e6)
    return (totals[1] - totals[0]) / (LONG_TOKENS - SHORT_TOKENS)


def warm_up(engine: Engine, sizes: Sequence[int]) -> None:
    """Compile and capture what the measured runs need."""
    for size in sizes:
        run_load(engine, load_of(size, 4))


def measure_batch(engine: Engine, rows: int, tokens: int) -> tuple[dict[str, Any], Run]:
    """One batch size with and without graphs."""
    backend: Any = engine.executor.backend  # type: ignore[attr-defined]
    result: dict[str, Any] = {}
    runs = {}
    for mode, graphs in (("graphs", True), ("eager", False)):
        backend.uses_graphs = graphs
        runs[mode] = run_load(engine, load_of(rows, tokens))
        host_s = step_s(decode_records(runs[mode]))
        busy_s = device_busy_s(engine, rows)
        result[mode] = {
            "output_tokens_per_s": runs[mode].output_tokens_per_s, "step_us": host_s * 1e6, "device_us": busy_s * 1e6,
            "launch_overhead": overhead(busy_s, host_s),
        }  # fmt: skip
    backend.uses_graphs = True
    result["equal_share"] = equal_share(runs["graphs"], runs["eager"])
    result["launches"] = Counter(" ".join(record.graph.split()[:2]) for record in runs["graphs"].records)
    return result, runs["graphs"]


def kernel_differences(engine: Engine) -> dict[str, float | str]:
    """Triton against plain by dtype, on the model's own geometry; the reason where there are no Triton kernels."""
    spec, device = engine.executor.info.spec, torch.device("cuda")
    found: dict[str, float | str] = {}
    for name, dtype in DTYPES.items():
        problem = triton_problem(spec, dtype, device)
        found[name] = problem or largest_difference(spec, dtype, device)
    return found


def plain_run(args: argparse.Namespace, load: Load) -> Run:
    """The load on plain PyTorch operations, which is the reference of every kernel."""
    from core.clock import WallClock
    from core.runtime.loader import create_runner

    engine = engine_for(args, blocks_for(load))
    runner = engine.executor
    engine.executor = create_runner(  # type: ignore[misc]
        dataclasses.replace(engine.snapshot().config), WallClock(), backend="plain"
    )
    runner.close()
    run = run_load(engine, load)
    engine.close()
    return run


def main(argv: list[str]) -> int:
    """Measure each batch size; print a table, then the JSON line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks gpu", description=__doc__)
    add_arguments(parser)
    parser.add_argument("--batches", default="1,8,32,64")
    parser.add_argument("--tokens", type=int, default=64)
    args = parser.parse_args(argv)
    if not torch.cuda.is_available():
        print("no CUDA device: nothing was measured")
        print_json_line({"benchmark": "gpu", "skipped": "PyTorch sees no CUDA device", "device": "cpu"})
        return 0
    args.device = "cuda"
    sizes = [int(size) for size in args.batches.split(",")]
    args.seats = max(sizes)
    engine = engine_for(args, blocks_for(load_of(max(sizes), max(args.tokens, LONG_TOKENS))))
    warm_up(engine, sizes)
    ceilings = ceilings_of(engine)
    rows, batches = [], {}
    run: Run | None = None
    for size in sizes:
        result, run = measure_batch(engine, size, args.tokens)
        decoding = dataclasses.replace(run, records=tuple(decode_records(run)))
        result["mfu"], result["mbu"] = utilisation([decoding], ceilings)
        batches[str(size)] = result
        g, e = result["graphs"], result["eager"]
        rows.append([size, g["output_tokens_per_s"], e["output_tokens_per_s"], result["mfu"], result["mbu"], g["step_us"],
                     e["step_us"], g["launch_overhead"], e["launch_overhead"], result["equal_share"]])  # fmt: skip
    print_table(
        ["batch", "tokens/s", "eager", "MFU", "MBU", "step us", "eager", "launch overhead", "eager", "graph = eager"], rows
    )
    assert run is not None
    plain = plain_run(args, load_of(sizes[-1], args.tokens))
    totals = engine.snapshot().totals
    line = {
        "benchmark": "gpu", "batches": batches, "mfu": rows[-1][3], "mbu": rows[-1][4],
        "graph_captures": totals.graph_captures, "graph_replays": totals.graph_replays, "graph_misses": totals.graph_misses,
        "graphs": engine.executor.info.graphs, "triton_difference": kernel_differences(engine),
        "tolerance": {name: TOLERANCE[dtype] for name, dtype in DTYPES.items()},
        "plain_equal_share": equal_share(run, plain), "plain_output_tokens_per_s": plain.output_tokens_per_s,
    }  # fmt: skip
    print(f"plain PyTorch, batch {sizes[-1]}: {plain.output_tokens_per_s:,.0f} tokens/s")
    print(f"Triton against plain, largest difference of a layer's logits: {line['triton_difference']}")
    print_json_line({**line, **identity(engine, args, f"{PROMPT_TOKENS} + {args.tokens} tokens")})
    engine.close()
    return 0
