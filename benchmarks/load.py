"""What the speed benchmarks share: the load, one timed run, medians and spread.

The load is a list of (prompt token ids, output tokens). `--workload PATH` reads the JSON form
[{"prompt": [ids], "out": n}, ...]; without it a seeded one of the same statistics is drawn: 64 requests, prompt and
output lengths log-normal with the means and spreads of that file.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from core.ceilings import raised_by_steps
from core.config import BatchPolicy, CacheConfig, EngineConfig, SchedulerConfig
from core.engine import Engine
from core.factory import create_engine
from core.live_defaults import measure_ceilings
from core.records import StepRecord
from core.request import SamplingParams
from core.snapshot import RooflineCeilings
from core.utilisation import mbu, mfu

Load = list[tuple[list[int], int]]

REQUESTS = 64
PROMPT_MEAN, PROMPT_SPREAD, PROMPT_RANGE = 81.4, 63.3, (8, 400)
OUTPUT_MEAN, OUTPUT_SPREAD, OUTPUT_RANGE = 108.3, 85.0, (8, 500)
FIRST_PLAIN_TOKEN = 100
BLOCK_SIZE = 16
COMPILE_LIMIT_S = 180.0
KERNELS_PENDING = "being compiled"


def _log_normal(rng: random.Random, mean: float, spread: float, limits: tuple[int, int]) -> int:
    variance = math.log(1 + (spread / mean) ** 2)
    value = rng.lognormvariate(math.log(mean) - variance / 2, math.sqrt(variance))
    return min(max(round(value), limits[0]), limits[1])


def generated_load(vocab_size: int, seed: int, requests: int = REQUESTS) -> Load:
    """A seeded load of the statistics above; the same seed gives the same load."""
    rng = random.Random(seed)
    first = min(FIRST_PLAIN_TOKEN, vocab_size // 2)
    load = []
    for _ in range(requests):
        length = _log_normal(rng, PROMPT_MEAN, PROMPT_SPREAD, PROMPT_RANGE)
        prompt = [rng.randrange(first, vocab_size) for _ in range(length)]
        load.append((prompt, _log_normal(rng, OUTPUT_MEAN, OUTPUT_SPREAD, OUTPUT_RANGE)))
    return load


def read_load(path: str | None, vocab_size: int, seed: int) -> tuple[Load, str]:
    """The load and its name for the JSON line."""
    if path is None:
        return generated_load(vocab_size, seed), f"generated, {REQUESTS} requests"
    rows = json.loads(Path(path).read_text(encoding="utf-8"))
    return [(list(row["prompt"]), int(row["out"])) for row in rows], Path(path).name


@dataclass(frozen=True, slots=True)
class Run:
    """One load run to its end.

    Attributes:
        elapsed_s: from the first step to the last, wall time.
        outputs: token ids of each request, in the order of the load.
        records: one record a step.
    """

    elapsed_s: float
    outputs: tuple[tuple[int, ...], ...]
    records: tuple[StepRecord, ...]

    @property
    def output_tokens(self) -> int:
        return sum(len(tokens) for tokens in self.outputs)

    @property
    def output_tokens_per_s(self) -> float:
        return self.output_tokens / self.elapsed_s


def run_load(engine: Engine, load: Load) -> Run:
    """Submit the whole load at once and step until it has ended; greedy, end tokens ignored."""
    ids = [engine.add_request(prompt, SamplingParams(max_tokens=out, ignore_eos=True)) for prompt, out in load]
    tokens: dict[str, list[int]] = {request_id: [] for request_id in ids}
    records = []
    start = time.perf_counter()
    while engine.has_work():
        for event in engine.step():
            if event.token_id is not None:
                tokens[event.request_id].append(event.token_id)
        record = engine.latest_record
        if record is not None and (not records or record.step != records[-1].step):
            records.append(record)
    elapsed_s = time.perf_counter() - start
    return Run(elapsed_s, tuple(tuple(tokens[i]) for i in ids), tuple(records))


def blocks_for(load: Load) -> int:
    """Blocks that hold every request of the load at its full length, so that the cache is no limit."""
    return sum(-(-(len(prompt) + out) // BLOCK_SIZE) for prompt, out in load)


def engine_for(args: argparse.Namespace, num_blocks: int, *, fixed: bool = False, seats: int | None = None) -> Engine:
    """An in-process engine with room for `num_blocks`, without prefix reuse (runs must repeat the same work)."""
    policy = BatchPolicy.FIXED if fixed else BatchPolicy.CHUNKED
    return create_engine(
        EngineConfig(
            model=args.model, dtype=args.dtype, device=args.device, seed=args.seed, num_threads=args.threads,
            weight_dtype=args.weight_dtype,
            scheduler=SchedulerConfig(
                max_num_seqs=seats or args.seats, max_num_batched_tokens=args.budget, batch_policy=policy
            ),
            cache=CacheConfig(block_size=BLOCK_SIZE, num_blocks=num_blocks, enable_prefix_caching=False),
        )
    )  # fmt: skip


def warm_up(engine: Engine) -> None:
    """Wait for the compiled kernels, then run a few short requests: compilation and first touches are not timed."""
    deadline_s = time.perf_counter() + COMPILE_LIMIT_S
    while KERNELS_PENDING in engine.executor.info.kernels and time.perf_counter() < deadline_s:
        time.sleep(0.2)
    run_load(engine, [(list(range(1, 9)), 4)] * 4)


def utilisation(runs: Sequence[Run], ceilings: RooflineCeilings | None) -> tuple[float | None, float | None]:
    """(MFU, MBU) of all runs together against measured ceilings, over the time of the forward passes.

    Steps that agree on a higher ceiling than the probe's raise it, as in the dashboard.
    """
    if ceilings is None:
        return None, None
    ceilings, records = raised_by_steps(ceilings, (record for run in runs for record in run.records))
    busy_s = sum(record.forward_s for record in records)
    flops = sum(record.useful_flops for record in records)
    moved = sum(record.useful_bytes for record in records)
    return mfu(flops, busy_s, ceilings), mbu(moved, busy_s, len(records), ceilings)[0]


def ceilings_of(engine: Engine) -> RooflineCeilings | None:
    """The machine's ceilings, measured where the model runs."""
    return measure_ceilings(engine)


def median_and_spread(values: Sequence[float]) -> tuple[float, float]:
    """Median, and (largest - smallest) / median."""
    middle = statistics.median(values)
    return middle, (max(values) - min(values)) / middle if middle else 0.0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options that every speed benchmark has."""
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--dtype", default="bfloat16", choices=("bfloat16", "float32"))
    parser.add_argument("--weight-dtype", default="same", choices=("same", "int8"))
    parser.add_argument("--device", default="auto")
    parser.add_argument("--threads", type=int, default=0, help="0: all cores")
    parser.add_argument("--seats", type=int, default=64, help="max_num_seqs")
    parser.add_argument("--budget", type=int, default=512, help="max_num_batched_tokens")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--workload", help='JSON file: [{"prompt": [token ids], "out": tokens}, ...]')


def identity(engine: Engine, args: argparse.Namespace, load_name: str) -> dict[str, object]:
    """What the figures belong to: the part of the JSON line that all benchmarks share."""
    info = engine.executor.info  # as it is now: the kernels may have taken over since the engine read it
    return {
        "device": info.device, "threads": info.num_threads, "dtype": info.dtype, "weight_dtype": args.weight_dtype,
        "model": info.model_label, "kernels": info.kernels, "load": load_name, "seed": args.seed, "repeats": args.repeats,
    }  # fmt: skip
