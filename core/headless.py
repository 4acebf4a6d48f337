"""A scenario without a browser: on the real engine, or on the simulator if it names a device; a bundle comes out.

    arrivals due -> add_request -> step -> note record, ended requests -> tell the load        until all has ended,
    nothing to run: wait (wall clock) or jump (virtual clock) to the next arrival               a limit, or a stop

The engine, its load and its recorder are those of the dashboard. A run that is stopped gives a bundle of what was run.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from core.bundle import RunBundle, make_bundle
from core.clock import StepClock, VirtualClock, WallClock, let_pass
from core.config import CacheConfig
from core.engine import Engine
from core.errors import ConfigError, RequestRefused
from core.factory import create_engine
from core.live_board import Board
from core.live_defaults import measure_ceilings
from core.load_driver import MAX_SUBMISSIONS_A_STEP, REFUSED_PAUSE_S
from core.load_spec import LoadSpec
from core.output_processor import ENDING_EVENTS
from core.records import RequestRecord, StepRecord
from core.request import SLO, SamplingParams
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
from core.workload import Arrival, LoadGenerator

MAX_STEPS = 200_000
COMPILE_LIMIT_S = 180.0
_POLL_S = 0.2
_PENDING = "being compiled"


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a run is; `total` is None for a load without end."""

    steps: int
    ended: int
    total: int | None
    output_tokens: int
    time_s: float


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
        let_pass(wall, _POLL_S)


class HeadlessRun:
    """One run of a scenario; `run` it, then take its `bundle`.

    Args:
        folder: what the path of a trace is relative to.
        probe: measure the ceilings of the machine first (no effect on the simulator).
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
        self._max_steps, self._max_time_s, self._should_stop = max_steps, max_time_s, should_stop
        self.engine = build_engine(scenario, self._recorder, on_progress)
        try:
            await_kernels(self.engine, should_stop, on_progress)
            on_progress("measuring what this machine can do" if probe else "")
            self.ceilings: RooflineCeilings | None = measure_ceilings(self.engine) if probe and not should_stop() else None
            self.engine.telemetry.ceilings = self.ceilings
            self._load, self.total, self.label = build_load(scenario, self.engine, folder)
            if self.total is None and max_steps is None and max_time_s is None:
                raise ConfigError(f"the load ({self.label}) never ends; give it num_requests, or a limit of steps or seconds")
        except BaseException:
            self.engine.close()
            raise
        self.steps: list[StepRecord] = []
        self.requests: list[RequestRecord] = []
        self.refused: dict[str, int] = {}
        self._users: dict[str, int] = {}
        self._tokens = 0
        self.note = ""
        self.complete = False

    def run(self, on_step: Callable[[Progress], None] | None = None) -> None:
        """Run to the end of the load, to a limit, or until `should_stop` says so; closes the engine."""
        start_s = self.engine.clock.now()
        try:
            while not self._is_over(start_s):
                if not self._advance():
                    self.complete = True
                    break
                if on_step is not None:
                    on_step(self.progress(start_s))
        except KeyboardInterrupt:
            self.note = f"stopped by the user after {len(self.steps)} steps"
        finally:
            self.engine.close()

    def progress(self, start_s: float) -> Progress:
        """How far the run is."""
        ended = len(self.requests) + sum(self.refused.values())
        return Progress(len(self.steps), ended, self.total, self._tokens, self.engine.clock.now() - start_s)

    def bundle(self, name: str, created: str | None = None) -> RunBundle:
        """What has been run as a bundle."""
        return make_bundle(
            self._recorder.record(),
            tuple(self.steps),
            tuple(self.requests),
            name=name,
            load=self.label,
            seed=self.engine.config.seed,
            ceilings=self.ceilings,
            scenario=scenario_toml(self._scenario),
            complete=self.complete,
            note=self.note,
            created=created,
        )

    def _is_over(self, start_s: float) -> bool:
        """True at a limit or on a stop; says which."""
        if self._should_stop():
            self.note = f"stopped by the user after {len(self.steps)} steps"
        elif self.engine.failed:
            self.note = self.engine.message
        elif self._max_steps is not None and len(self.steps) >= self._max_steps:
            self.complete, self.note = True, f"ended at the limit of {self._max_steps} steps that was asked for"
        elif self._max_time_s is not None and self.engine.clock.now() - start_s >= self._max_time_s:
            self.complete, self.note = True, f"ended at the limit of {self._max_time_s:g} s that was asked for"
        return bool(self.note)

    def _advance(self) -> bool:
        """Submit what is due and run a step, or let time pass; False at the end."""
        engine = self.engine
        for arrival in self._load.due(engine.clock.now(), MAX_SUBMISSIONS_A_STEP):
            self._submit(arrival)
        if not engine.has_work():
            due_s = self._load.next_time_s
            if due_s is None:
                return False
            self._wait_until(due_s)
            return True
        before = engine.latest_record
        events = engine.step()
        ends = [e for e in events if e.kind in ENDING_EVENTS and e.kind != "refused"]
        self._tokens += sum(e.kind == "token" for e in events)
        if ends:
            self.requests += reversed(engine.telemetry.requests[: len(ends)])
        for event in ends:
            self._load.on_end(self._users.pop(event.request_id, -1), event.time_s)
        if engine.latest_record is not before and engine.latest_record is not None:
            self.steps.append(engine.latest_record)
        elif engine.scheduler.has_work():
            self._wait_for_wakeup()
        return True

    def _wait_until(self, due_s: float) -> None:
        clock = self.engine.clock
        if isinstance(clock, VirtualClock):
            clock.advance_to(due_s)
        elif isinstance(clock, StepClock):
            clock.on_step_end()
        else:
            let_pass(clock, min(max(due_s - clock.now(), 0.0), _POLL_S))

    def _wait_for_wakeup(self) -> None:
        """Something waits and nothing could run: until a quota, a deadline or an arrival changes that."""
        now_s = self.engine.clock.now()
        times = [t for t in (self._load.next_time_s, self.engine.scheduler.next_wakeup(now_s)) if t is not None and t > now_s]
        self._wait_until(min(times, default=now_s + 1e-3))

    def _submit(self, arrival: Arrival) -> None:
        spec = self._scenario.load or LoadSpec()
        params = SamplingParams(
            max_tokens=arrival.max_tokens,
            temperature=spec.temperature,
            top_p=spec.top_p,
            top_k=spec.top_k,
            ignore_eos=spec.ignore_eos,
        )
        try:
            request_id = self.engine.add_request(
                arrival.prompt_token_ids,
                params,
                tenant=arrival.tenant,
                priority=arrival.priority,
                slo=SLO(arrival.slo_ttft_s, arrival.slo_itl_s),
                source="scenario",
                arrival_time_s=arrival.time_s,
            )
        except RequestRefused as refusal:
            self.refused[str(refusal.reason)] = self.refused.get(str(refusal.reason), 0) + 1
            self._load.on_end(arrival.user, self.engine.clock.now() + REFUSED_PAUSE_S)
            return
        if arrival.user >= 0:
            self._users[request_id] = arrival.user
