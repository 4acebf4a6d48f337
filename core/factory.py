"""The only place that puts an engine together: clock, executor, scheduler, tokenizer.

    executor "inprocess"   the model in this process              clock as asked
    executor "worker"      the model in a process of its own      clock as asked
    executor "simulated"   the cost model, no weights             always a virtual clock, which the executor moves

The runtime (and with it torch) is imported only for an executor that needs it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from core.clock import Clock, PausableClock, StepClock, VirtualClock
from core.config import CacheConfig, EngineConfig, SchedulerConfig, replace_knobs
from core.engine import Engine
from core.errors import ConfigError
from core.executor import Executor
from core.output_processor import TextCodec
from core.run_record import RunRecorder
from core.scheduler import Scheduler
from core.sim_executor import simulated_executor

if TYPE_CHECKING:
    from core.runtime.model_source import ModelSource

OnProgress = Callable[[str], None]


def with_overrides(config: EngineConfig, overrides: dict[str, Any]) -> EngineConfig:
    """Replace knobs by name, those of the scheduler and of the cache included: max_num_seqs=4, block_size=8, ...

    Raises:
        ConfigError: for an unknown knob or a value out of range.
    """
    parts: dict[str, dict[str, Any]] = {"engine": {}, "scheduler": {}, "cache": {}}
    kinds = {"engine": EngineConfig, "scheduler": SchedulerConfig, "cache": CacheConfig}
    names = {part: {f.name for f in dataclasses.fields(kind)} for part, kind in kinds.items()}
    for name, value in overrides.items():
        part = next((p for p in parts if name in names[p]), None)
        if part is None:
            known = ", ".join(sorted(set().union(*names.values())))
            raise ConfigError(f"unknown knob {name}; known: {known}")
        parts[part][name] = value
    scheduler = parts["engine"].pop("scheduler", config.scheduler)
    cache = parts["engine"].pop("cache", config.cache)
    changed: EngineConfig = replace_knobs(
        config,
        **parts["engine"],
        scheduler=replace_knobs(scheduler, **parts["scheduler"]),
        cache=replace_knobs(cache, **parts["cache"]),
    )
    return changed


def create_clock(name: str) -> Clock:
    """The clock of a name: "wall" (can be paused), "virtual" or "step"."""
    clocks: dict[str, Callable[[], Clock]] = {"wall": PausableClock, "virtual": VirtualClock, "step": StepClock}
    return clocks[name]()


def create_engine(
    config: EngineConfig | None = None,
    *,
    recorder: RunRecorder | None = None,
    on_progress: OnProgress | None = None,
    time_source: Clock | None = None,
    **overrides: Any,
) -> Engine:
    """Build an engine from a configuration, with knobs replaced by name.

    Args:
        recorder: keeps what a replay of the run needs.
        on_progress: called with a line of text while a model loads.
        time_source: a clock of the caller's own instead of the one that `clock` names.

    Raises:
        ConfigError: for settings that make no sense, alone or together.
        CheckpointError: if the model or its tokenizer cannot be read.
        ExecutorError: if a worker process cannot be started.
    """
    config = with_overrides(config or EngineConfig(), overrides)
    if config.executor == "simulated":
        config = dataclasses.replace(config, clock="virtual")
    clock = time_source or create_clock(config.clock)
    executor, tokenizer = _create_executor(config, clock, on_progress)
    info = executor.info
    limit = info.spec.max_model_len
    scheduler = Scheduler(
        config.scheduler,
        config.cache,
        max_model_len=min(config.max_model_len or limit, limit),
        vocab_size=info.spec.vocab_size,
        eos_token_ids=info.spec.eos_token_ids,
        seed=config.seed,
        kv_bytes_per_token=info.kv_bytes_per_token,
    )
    return Engine(scheduler, executor, clock, config=config, tokenizer=tokenizer, recorder=recorder)


def _create_executor(config: EngineConfig, clock: Clock, on_progress: OnProgress | None) -> tuple[Executor, TextCodec | None]:
    if config.executor == "simulated":
        return simulated_executor(config, clock), None
    if config.executor == "worker":
        return _create_worker(config, clock, on_progress)
    from core.runtime.loader import create_runner  # torch, only where a model runs
    from core.runtime.model_source import open_model

    def tell(text: str, share: float) -> None:
        if on_progress is not None:
            on_progress(f"{text}, {share:.0%}" if 0 < share < 1 else text)

    source: ModelSource = open_model(config.model, spec=config.spec, seed=config.seed, progress=tell)
    tokenizer = source.tokenizer()
    return create_runner(config, clock, source=source, progress=tell), tokenizer


def _create_worker(config: EngineConfig, clock: Clock, on_progress: OnProgress | None) -> tuple[Executor, TextCodec | None]:
    """The worker loads the weights while this process imports what it needs for the tokenizer."""
    from core.runtime.worker import WorkerExecutor

    executor = WorkerExecutor(config, clock=clock, on_progress=on_progress, wait=False)
    try:
        from core.runtime.model_source import open_model

        tokenizer = open_model(config.model, spec=config.spec, seed=config.seed).tokenizer()
        executor.wait_ready()
    except BaseException:
        executor.close()
        raise
    return executor, tokenizer
