"""The same requests on the same machine, decided otherwise: a fixed batch beside continuous batching, both predicted.

measured run    -> law fitted to its own steps    ->  same arrivals, simulated with BatchPolicy.FIXED and as it was
predicted run   -> roofline of its device         ->  the same
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from core.bundle import RunBundle
from core.calibration import Calibration, calibrate, measured_device
from core.charts.roofline import model_of
from core.clock import VirtualClock
from core.config import BatchPolicy, EngineConfig, SchedulerConfig
from core.cost_model import CostModel
from core.devices import DeviceSpec, device_named
from core.engine import Engine
from core.engine_run import EngineRun
from core.errors import BatchscopeError, ConfigError
from core.prediction import Pair, live_arrivals, pair_run, this_machine
from core.records import RequestRecord, StepRecord
from core.request import SamplingParams
from core.roofline import ATTAINABLE
from core.run_summary import RunSummary, summarise
from core.scheduler import Scheduler
from core.sim_executor import SimExecutor
from core.simulator import ArrivalList
from core.step_timer import RooflineTimer, StepTimer
from core.workload import Arrival


@dataclass(frozen=True, slots=True)
class Alternative:
    """One simulated run: steps, ended requests, summary."""

    steps: tuple[StepRecord, ...]
    requests: tuple[RequestRecord, ...]
    summary: RunSummary


@dataclass(frozen=True, slots=True)
class Comparison:
    """Fixed and continuous under the same law; `law` says where step times come from."""

    fixed: Alternative
    continuous: Alternative
    law: str


@dataclass(frozen=True, slots=True)
class Prediction:
    """What the law predicted for the run's own requests, figure by figure, and how well it fits single steps."""

    pairs: tuple[Pair, ...]
    calibration: Calibration


def device_of(bundle: RunBundle) -> DeviceSpec:
    """The device of a run: measured ceilings, or the published preset that a simulated run names.

    Raises:
        ConfigError: if neither is known.
    """
    if bundle.ceilings is not None:
        return measured_device(bundle.ceilings, float(bundle.environment.get("memory_bytes", 16e9)))
    if bundle.manifest.kind == "predicted":
        return device_named(bundle.record.header.info.device)
    raise ConfigError("the ceilings of the machine were not measured in this run; run it with the probe")


def calibration_of(bundle: RunBundle) -> Calibration:
    """The law fitted to the steps of a measured run (ConfigError if there are too few, or no ceilings)."""
    return calibrate(bundle.steps, model_of(bundle.record.header.info), device_of(bundle))


def law_of(bundle: RunBundle) -> tuple[CostModel, StepTimer]:
    """What prices a step of this run.

    Raises:
        ConfigError: if there is neither a measured machine with enough steps nor a published device.
    """
    if bundle.manifest.kind == "measured":
        fitted = calibration_of(bundle)
        return fitted.model, fitted.timer()
    model = model_of(bundle.record.header.info)
    return model, RooflineTimer(model, device_of(bundle), ATTAINABLE)


def simulated(config: EngineConfig, model: CostModel, timer: StepTimer, arrivals: tuple[Arrival, ...]) -> Alternative:
    """Run arrivals on the live engine's own classes with a virtual clock; outputs have the lengths that the arrivals say."""
    clock = VirtualClock(arrivals[0].time_s)
    config = replace(config, executor="simulated", clock="virtual", check_invariants=False)
    executor = SimExecutor(model, timer, clock, config.cache, dtype=config.dtype, seed=config.seed)
    limit = min(config.max_model_len or model.spec.max_model_len, model.spec.max_model_len)
    scheduler = Scheduler(
        config.scheduler,
        config.cache,
        max_model_len=limit,
        vocab_size=model.spec.vocab_size,
        eos_token_ids=model.spec.eos_token_ids,
        seed=config.seed,
        kv_bytes_per_token=executor.info.kv_bytes_per_token,
    )
    engine = Engine(scheduler, executor, clock, config=config)
    run = EngineRun(engine, ArrivalList(arrivals), SamplingParams(ignore_eos=True))
    run.run()
    if not run.requests:
        raise ConfigError("no request of the run ended in the simulation")
    steps, requests = tuple(run.steps), tuple(run.requests)
    return Alternative(steps, requests, summarise(steps, requests))


def fixed_against_continuous(bundle: RunBundle) -> Comparison:
    """The run's requests under a fixed batch and under continuous batching.

    A run that was itself made with a fixed batch is compared with decode-first chunked batching.

    Raises:
        BatchscopeError: if nothing can price its steps, or no request ended.
    """
    config, info = bundle.record.header.config, bundle.record.header.info
    arrivals = live_arrivals(bundle.requests, info.spec.vocab_size)
    if not arrivals:
        raise ConfigError("no request of this run ended, so there is nothing to run again")
    model, timer = law_of(bundle)
    own = config.scheduler
    continuous = replace(own, batch_policy=BatchPolicy.CHUNKED) if own.batch_policy.value == "fixed" else own
    fixed = SchedulerConfig(
        max_num_seqs=own.max_num_seqs, max_num_batched_tokens=own.max_num_batched_tokens, batch_policy=BatchPolicy.FIXED
    )
    runs = [
        simulated(replace(config, scheduler=scheduler, cache=replace(config.cache)), model, timer, arrivals)
        for scheduler in (fixed, continuous)
    ]
    return Comparison(runs[0], runs[1], timer.label)


def prediction_of(bundle: RunBundle) -> Prediction:
    """The run's own requests predicted with the law fitted to its own steps, beside what was measured.

    Raises:
        BatchscopeError: for a run that was not measured, or has too few steps or no ceilings.
    """
    if bundle.manifest.kind != "measured":
        raise ConfigError("this run is itself a prediction; nothing of it was measured")
    header = bundle.record.header
    calibration = calibration_of(bundle)
    arrivals = live_arrivals(bundle.requests, header.info.spec.vocab_size)
    if not arrivals:
        raise ConfigError("no request of this run ended, so there is nothing to predict")
    what_if = this_machine(header.config, header.info, device_of(bundle), calibration.coefficients, arrivals)
    return Prediction(pair_run(what_if.run(), bundle.steps, bundle.requests), calibration)


__all__ = [
    "Alternative",
    "BatchscopeError",
    "Comparison",
    "Prediction",
    "device_of",
    "fixed_against_continuous",
    "law_of",
    "prediction_of",
    "simulated",
]
