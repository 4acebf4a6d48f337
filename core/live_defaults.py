"""What the dashboard starts with when nobody says otherwise, and the environment variables that say otherwise.

BATCHSCOPE_MODEL          smollm2, tiny, synthetic, a folder, a *.gguf file or a hub id
BATCHSCOPE_DTYPE          bfloat16 or float32
BATCHSCOPE_EXECUTOR       worker (default), inprocess or simulated
BATCHSCOPE_CLOCK          wall (default) or step (time counted in steps: repeatable pictures)
BATCHSCOPE_SEED           seed of weights, sampling and load
BATCHSCOPE_RATE           requests a second of the first load; 0 starts idle
BATCHSCOPE_USERS          users of a closed loop as the first load, where no rate is given; five for four seats by default
BATCHSCOPE_THINK_S        seconds that each of them waits between an answer and its next request
BATCHSCOPE_RAMP_S         seconds in which they join one after another (20; 0: all at once)
BATCHSCOPE_HISTORY_STEPS  steps kept for pages, bundles and replays (20,000); more take more memory
BATCHSCOPE_PAUSED         1 starts paused
BATCHSCOPE_CONTROL_TOKEN  taking control needs it
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from core.config import CacheConfig, EngineConfig, SchedulerConfig
from core.control import Lease
from core.engine import Engine
from core.errors import ConfigError
from core.factory import create_engine
from core.lengths import LengthSpec
from core.live import LiveEngine
from core.load_spec import ArrivalProcess, LoadSpec, TenantShare
from core.run_record import RunRecorder
from core.snapshot import RooflineCeilings

FIRST_USERS_PER_SEAT = 1.25
FIRST_THINK_S = 0.0
"""More users than seats, who ask again at once: the batch is full and some wait, however slow or fast the machine is."""

FIRST_RAMP_S = 20.0
"""They join one by one: steps of all batch sizes are seen, and what a further sequence adds is measured from the start."""

FIRST_BLOCKS_PER_SEAT = 18
FIRST_PROMPTS = LengthSpec.lognormal(144, 0.6, 16, 768)
FIRST_OUTPUTS = LengthSpec.lognormal(96, 0.6, 8, 384)
"""Full seats then hold three to four quarters of the blocks, so that memory binds now and then and a preemption is seen."""

FIRST_TENANTS = (TenantShare("chat", 3.0), TenantShare("code", 2.0), TenantShare("batch", 1.0))
"""Three tenants from the start, so that shares, fairness and latencies by tenant have something to show."""

_KEEP_STEPS = 20_000
"""Steps whose records are kept, and steps recorded for bundles and replays; a bundle of a longer run has its beginning."""


def build_engine(config: EngineConfig, progress: Callable[[str], None]) -> Engine:
    """The engine factory of the dashboard."""
    return create_engine(config, on_progress=progress, recorder=RunRecorder(config.history_steps))


def measure_ceilings(engine: Engine, quick: bool = False) -> RooflineCeilings | None:
    """Ceilings of the machine, measured where the model runs; None for an executor that runs none.

    Args:
        quick: a fifth of a second instead of about two.
    """
    executor: Any = engine.executor
    if hasattr(executor, "call"):
        found = executor.call("measure_ceilings", quick)
    else:
        found = executor.measure_ceilings(quick) if hasattr(executor, "measure_ceilings") else None
    return found if isinstance(found, RooflineCeilings) else None


def measure_again(engine: Engine) -> RooflineCeilings | None:
    """The quick probe, for later."""
    return measure_ceilings(engine, quick=True)


def config_from_environment(environment: Mapping[str, str]) -> EngineConfig:
    """The first configuration (ConfigError for a value that makes no sense)."""
    scheduler = SchedulerConfig()
    return EngineConfig(
        model=environment.get("BATCHSCOPE_MODEL") or "smollm2",
        dtype=environment.get("BATCHSCOPE_DTYPE") or "bfloat16",
        executor=environment.get("BATCHSCOPE_EXECUTOR") or "worker",
        clock=environment.get("BATCHSCOPE_CLOCK") or "wall",
        seed=int(_number(environment, "BATCHSCOPE_SEED", 0)),
        history_steps=int(_number(environment, "BATCHSCOPE_HISTORY_STEPS", _KEEP_STEPS)),
        scheduler=scheduler,
        cache=CacheConfig(num_blocks=FIRST_BLOCKS_PER_SEAT * scheduler.max_num_seqs),
    )


def load_from_environment(environment: Mapping[str, str], seats: int) -> LoadSpec | None:
    """The first load, None if the rate is 0 (ConfigError for a value that makes no sense).

    Args:
        seats: of the batch that the load is for.
    """
    seed = int(_number(environment, "BATCHSCOPE_SEED", 0))
    first = LoadSpec(prompt_tokens=FIRST_PROMPTS, output_tokens=FIRST_OUTPUTS, tenants=FIRST_TENANTS, seed=seed)
    if not environment.get("BATCHSCOPE_RATE"):
        users = int(_number(environment, "BATCHSCOPE_USERS", math.ceil(FIRST_USERS_PER_SEAT * seats)))
        think_s = _number(environment, "BATCHSCOPE_THINK_S", FIRST_THINK_S)
        ramp_s = _number(environment, "BATCHSCOPE_RAMP_S", FIRST_RAMP_S)
        return replace(first, process=ArrivalProcess.CLOSED_LOOP, users=users, think_time_s=think_s, ramp_s=ramp_s)
    rate = _number(environment, "BATCHSCOPE_RATE", 0)
    return replace(first, rate_per_s=rate) if rate else None


def live_from_environment(config: EngineConfig | None, options: Mapping[str, Any]) -> LiveEngine:
    """A live engine that is not launched yet; what is given goes before the environment."""
    environment = os.environ
    config = config or config_from_environment(environment)
    settings: dict[str, Any] = {
        "engine_factory": build_engine,
        "probe": measure_ceilings,
        "probe_again": None if "probe" in options else measure_again,
        "lease": Lease(token=environment.get("BATCHSCOPE_CONTROL_TOKEN") or None),
        "paused": environment.get("BATCHSCOPE_PAUSED") == "1",
        **options,
    }
    if "load" not in settings:
        settings["load"] = load_from_environment(environment, config.scheduler.max_num_seqs)
    return LiveEngine(config, **settings)


def _number(environment: Mapping[str, str], name: str, default: float) -> float:
    text = environment.get(name)
    if not text:
        return default
    try:
        return float(text)
    except ValueError:
        raise ConfigError(f"{name} is {text!r}; give a number") from None
