"""The dashboard under a steady load, with two more threads in its process; served by `python -m benchmarks observer`.

    busy     computes while the file named in BATCHSCOPE_BUSY_FILE exists
    scribe   writes every finished step to BATCHSCOPE_STEPS_FILE, twice a second

The load is a closed loop of BATCHSCOPE_USERS users with short prompts and long answers of different lengths: nearly all
steps are decode steps of a full batch, so that one window of a few seconds is like the next.
"""

from __future__ import annotations

import os
import threading
import time
from pathlib import Path

from app import app
from benchmarks.observed_app_loop import StepLine, busy_loop
from core.errors import BatchscopeError
from core.lengths import LengthSpec
from core.live import LiveEngine, get_live
from core.load_spec import ArrivalProcess, LoadSpec, PromptKind

__all__ = ["app"]

WRITE_EVERY_S = 0.5


def _load() -> LoadSpec:
    return LoadSpec(
        process=ArrivalProcess.CLOSED_LOOP,
        users=int(os.environ["BATCHSCOPE_USERS"]),
        prompt_tokens=LengthSpec.fixed(24),
        output_tokens=LengthSpec.uniform(150, 450),
        prompt_kind=PromptKind.RANDOM,
        ignore_eos=True,
        seed=int(os.environ.get("BATCHSCOPE_SEED") or 0),
    )


def _write_steps(live: LiveEngine, path: Path) -> None:
    latest = -1
    while True:
        time.sleep(WRITE_EVERY_S)
        try:
            ahead_s = time.monotonic() - live.now()
        except BatchscopeError:
            continue  # it is still starting
        records = live.history(latest)
        if records:
            latest = records[-1].step
            lines = [StepLine(r.start_s + r.duration_s + ahead_s, r.output_tokens, r.duration_s, r.forward_s) for r in records]
            with path.open("a", encoding="utf-8") as file:
                file.writelines(line.text() for line in lines)


if os.environ.get("BATCHSCOPE_BUSY_FILE"):
    threading.Thread(target=busy_loop, args=(Path(os.environ["BATCHSCOPE_BUSY_FILE"]),), name="busy", daemon=True).start()
    threading.Thread(
        target=_write_steps, args=(get_live(load=_load()), Path(os.environ["BATCHSCOPE_STEPS_FILE"])), name="scribe", daemon=True
    ).start()
