"""The dashboard on a heavy run for `python -m benchmarks tick`: 64 running, 200 waiting, 4,096 blocks, nearly all in use.

The scheduler, the pool and the pages are the real ones; the forward pass is the cost model's (no weights), held to a few
steps a second so that a tick is measured, not the engine. BATCHSCOPE_TICK_FILE gets a line a tick: page, wall s, CPU s.
"""

from __future__ import annotations

import functools
import os
import sys
import time
from pathlib import Path
from typing import Any

from app import app
from core.config import CacheConfig, EngineConfig, SchedulerConfig
from core.control import LOCAL
from core.lengths import LengthSpec
from core.live import get_live
from core.load_spec import ArrivalProcess, LoadSpec, PromptKind
from core.snapshot import RooflineCeilings
from pages.parts import ticker

__all__ = ["app"]

SEATS, QUEUED, BLOCKS, STEPS_PER_S = 64, 200, 4096, 12.0
_PROMPTS = LengthSpec.lognormal(720, 0.2, 400, 1000)
_OUTPUTS = LengthSpec.lognormal(240, 0.4, 60, 500)
_SUPPOSED = RooflineCeilings("cost model", 98e9, 17.5e9, 46e9, 269_000_000, "bfloat16", measured=False, cache_bytes=32 * 2**20)


def _start() -> None:
    config = EngineConfig(
        model="smollm2",
        executor="simulated",
        scheduler=SchedulerConfig(max_num_seqs=SEATS, max_num_batched_tokens=4096),
        cache=CacheConfig(num_blocks=BLOCKS),
    )
    load = LoadSpec(
        process=ArrivalProcess.CLOSED_LOOP, users=SEATS + QUEUED, prompt_tokens=_PROMPTS, output_tokens=_OUTPUTS,
        prompt_kind=PromptKind.RANDOM, ignore_eos=True,
    )  # fmt: skip
    live = get_live(config, load=load, probe=lambda _engine: _SUPPOSED)
    deadline_s = time.monotonic() + 60
    while live.latest().num_running < SEATS or len(live.requests()) < SEATS:
        if time.monotonic() > deadline_s:
            sys.exit(f"the heavy run did not fill its batch: {live.latest().message or live.latest().state}")
        time.sleep(0.05)
    live.set_speed(STEPS_PER_S, session_id=LOCAL)


def _timed(tick: Any, path: str) -> Any:
    @functools.wraps(tick)
    def run(question: str, *rest: Any) -> None:
        wall_s, cpu_s = time.perf_counter(), time.thread_time()
        tick(question, *rest)
        with Path(path).open("a", encoding="utf-8") as file:
            file.write(f"{time.perf_counter() - wall_s:.6f}\t{time.thread_time() - cpu_s:.6f}\t{question}\n")

    return run


_start()
if os.environ.get("BATCHSCOPE_TICK_FILE"):
    ticker._tick = _timed(ticker._tick, os.environ["BATCHSCOPE_TICK_FILE"])
