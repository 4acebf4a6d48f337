"""A scenario without a browser: on the real engine, or on the simulator if it names a device; a bundle comes out.

    scenario -> engine + load -> `core.engine_run` -> bundle

The engine, its load and its recorder are those of the dashboard. A run that is stopped gives a bundle of what was run.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path

from core.bundle import RunBundle, make_bundle
from core.clock import VirtualClock, WallClock, let_pass
from core.config import CacheConfig
from core.engine import Engine
from core.engine_run import POLL_S, EngineRun
from core.errors import ConfigError
from core.factory import create_engine
from core.live_board import Board
from core.live_defaults import measure_ceilings
from core.load_spec import LoadSpec
from core.request import SamplingParams
from core.run_record import RunRecorder
from core.scenario import Scenario
from core.scenario_text import scenario_toml
from core.scheduler import Scheduler
from core.sim_executor import SimExecutor, simulated_spec
from core.sim_setup import setup_on_device
from core.simulator import ArrivalList, Load
from core.snapshot import RooflineCeilings
from core.traces.reader import read_trace
from core.traces.replay_prompts import trace_arrivals
from core.workload import LoadGenerator

MAX_STEPS = 200_000
COMPILE_LIMIT_S = 180.0
_PENDING = "being compiled"


def _say_nothing(_text: str) -> None:
    return None


def build_engine(scenario: Scenario, recorder: RunRecorder, on_progress: Callable[[str], None] = _say_nothing) -> Engine:
    """The engine of a scenario: simulated on the scenario's device if it names one, else what its model table says.

    Raises:
        ConfigError, CheckpointError, ExecutorError: as `core.factory.create_engine`.
    """
    config = scenario.engine
    if scenario.device is None:
        return create_engine(config, recorder=recorder, on_progress=on_progress)
    stated = config.cache.num_blocks if config.cache.num_blocks != CacheConfig().num_blocks else None
    setup = setup_on_device(
        simulated_spec(config),
        scenario.device,
        config.scheduler,
        block_size=config.cache.block_size,
        weight_dtype=config.dtype if config.weight_dtype == "same" else config.weight_dtype,
        kv_dtype=config.dtype,
        tensor_parallel=scenario.tensor_parallel,
        gpu_memory_utilization=scenario.gpu_memory_utilization,
        enable_prefix_caching=config.cache.enable_prefix_caching,
        max_model_len=config.max_model_len,
        num_blocks=stated,
    )
    cache = dataclasses.replace(config.cache, num_blocks=setup.cache.num_blocks)
    config = dataclasses.replace(config, executor="simulated", clock="virtual", cache=cache)
    clock = VirtualClock()
    group = f" x {scenario.tensor_parallel}" if scenario.tensor_parallel > 1 else ""
    executor = SimExecutor(
        setup.cost, setup.timer, clock, cache, dtype=config.dtype, seed=config.seed, device=f"{scenario.device.name}{group}"
    )
    spec = setup.cost.spec
    scheduler = Scheduler(
        config.scheduler,
        cache,
        max_model_len=setup.model_len,
        vocab_size=spec.vocab_size,
        eos_token_ids=spec.eos_token_ids,
        seed=config.seed,
        kv_bytes_per_token=executor.info.kv_bytes_per_token,
    )
    return Engine(scheduler, executor, clock, config=config, recorder=recorder)


def build_load(scenario: Scenario, engine: Engine, folder: Path) -> tuple[Load, int | None, str]:
    """(load, number of its requests or None, one line about it).

    Args:
        folder: what the path of a trace is relative to.

    Raises:
        ConfigError: if the scenario has neither a load nor a trace.
        TraceError: if the trace cannot be read or has no arrival times.
    """
    now_s = engine.clock.now()
    if scenario.load is not None:
        board = Board(engine.config, 1)
        board.attach(engine)
        generator = LoadGenerator(scenario.load, board.prompt_source(scenario.load), now_s)
        return generator, scenario.load.total_requests, scenario.load.label
    source = scenario.trace
    if source is None:
        raise ConfigError("the scenario has neither a [load] nor a [trace]; add one, e.g. [load] with num_requests = 50")
    trace = read_trace(folder / source.path, fmt=source.format or None, time_unit=source.time_unit or None)
    trace = trace.head(source.max_requests or len(trace)).scaled(source.rate, source.prompt, source.output)
    arrivals = trace_arrivals(trace, vocab_size=engine.info.spec.vocab_size, seed=engine.config.seed, start_s=now_s)
    return ArrivalList(arrivals), len(trace), f"{len(trace)} requests of {trace.report.name}"


def await_kernels(engine: Engine, should_stop: Callable[[], bool], on_progress: Callable[[str], None]) -> None:
    """Wait while kernels are being compiled, so that a run is not half one thing and half the other."""
    wall = WallClock()
    end_s = wall.now() + COMPILE_LIMIT_S
    while _PENDING in engine.executor.info.kernels and wall.now() < end_s and not should_stop():
        on_progress("the kernels are being compiled, once for this machine")
        let_pass(wall, POLL_S)


class HeadlessRun:
    """One run of a scenario; `run` it, then take its `bundle`.

    Args:
        folder: what the path of a trace is relative to.
        probe: measure the ceilings of the machine first (no effect on the simulator).
        max_steps, max_time_s, should_stop: as `core.engine_run.EngineRun`.
    """

    def __init__(
        self,
        scenario: Scenario,
        folder: Path,
        *,
        probe: bool = True,
        max_steps: int | None = None,
        max_time_s: float | None = None,
        should_stop: Callable[[], bool] = lambda: False,
        on_progress: Callable[[str], None] = _say_nothing,
    ) -> None:
        self._scenario = scenario
        self._recorder = RunRecorder(MAX_STEPS)
        engine = build_engine(scenario, self._recorder, on_progress)
        try:
            await_kernels(engine, should_stop, on_progress)
            on_progress("measuring what this machine can do" if probe else "")
            engine.telemetry.ceilings = measure_ceilings(engine) if probe and not should_stop() else None
            load, total, self.label = build_load(scenario, engine, folder)
            if total is None and max_steps is None and max_time_s is None:
                raise ConfigError(f"the load ({self.label}) never ends; give it num_requests, or a limit of steps or seconds")
        except BaseException:
            engine.close()
            raise
        spec = scenario.load or LoadSpec()
        sampling = SamplingParams(temperature=spec.temperature, top_p=spec.top_p, top_k=spec.top_k, ignore_eos=spec.ignore_eos)
        self._run = EngineRun(
            engine, load, sampling, total=total, max_steps=max_steps, max_time_s=max_time_s, should_stop=should_stop
        )
        self.run = self._run.run

    @property
    def ceilings(self) -> RooflineCeilings | None:
        """The probe's ceilings, raised where steps were above them; None without a probe."""
        return self._run.engine.telemetry.ceilings

    @property
    def refused(self) -> dict[str, int]:
        """Refused requests by reason."""
        return self._run.refused

    def bundle(self, name: str, created: str | None = None) -> RunBundle:
        """What has been run as a bundle."""
        run = self._run
        return make_bundle(
            self._recorder.record(),
            tuple(run.steps),
            tuple(run.requests),
            name=name,
            load=self.label,
            seed=run.engine.config.seed,
            ceilings=self.ceilings,
            scenario=scenario_toml(self._scenario),
            complete=run.complete,
            note=run.note,
            created=created,
        )
