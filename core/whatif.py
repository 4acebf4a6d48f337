"""A what-if as one object: model, hardware, knobs and load in, a predicted run out; and what each knob is worth.

    WhatIf --with_knob(name, value)--> WhatIf --run()--> SimulationResult
    sensitivity: each knob a notch down and a notch up, the goal's figure beside the base run's

It holds plain values only, so it can be sent to another process or another machine.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

from core.config import CacheConfig, EvictionPolicy, SchedulerConfig, check_pair
from core.cost_model import CostModel
from core.devices import DeviceSpec
from core.errors import BatchscopeError, ConfigError
from core.load_spec import LoadSpec
from core.model_spec import ModelSpec
from core.prompts import StandInPrompts
from core.request import SLO
from core.roofline import ATTAINABLE, Efficiency
from core.sim_result import SimulationResult
from core.sim_setup import SimulationSetup, setup_on_device
from core.simulator import ArrivalList, Load, Simulation
from core.step_timer import CalibratedTimer, StepCoefficients
from core.traces.replay_prompts import trace_arrivals
from core.traces.trace import Trace
from core.workload import Arrival, LoadGenerator

_SCHEDULER = {f.name for f in dataclasses.fields(SchedulerConfig)}
_OWN = (
    "tensor_parallel",
    "weight_dtype",
    "kv_dtype",
    "block_size",
    "num_blocks",
    "enable_prefix_caching",
    "eviction_policy",
    "num_swap_blocks",
    "max_model_len",
    "gpu_memory_utilization",
)
_LOAD = ("rate_per_s", "users", "rate")
_CEILINGS = ("peak_flops", "memory_bandwidth", "memory_bytes")


@dataclass(frozen=True, slots=True, eq=False)
class WhatIf:
    """What would happen.

    Attributes:
        coefficients: a law fitted on this machine; None prices by the device's roofline at `efficiency`.
        num_blocks: size of the pool; None fills the device's memory.
        load: a synthetic load, or `trace` a recorded one, or `arrivals` the very requests of a live run.
        rate: factor on the arrivals of any of them (2 is twice as dense); a closed loop has no rate.
    """

    model: ModelSpec
    device: DeviceSpec
    scheduler: SchedulerConfig = field(default_factory=SchedulerConfig)
    coefficients: StepCoefficients | None = None
    efficiency: Efficiency = ATTAINABLE
    block_size: int = 16
    num_blocks: int | None = None
    num_swap_blocks: int = 0
    enable_prefix_caching: bool = True
    eviction_policy: EvictionPolicy = EvictionPolicy.LRU
    gpu_memory_utilization: float = 0.92
    weight_dtype: str = "bfloat16"
    kv_dtype: str = "bfloat16"
    head_dtype: str | None = None
    tensor_parallel: int = 1
    max_model_len: int | None = None
    load: LoadSpec | None = None
    trace: Trace | None = None
    arrivals: tuple[Arrival, ...] = ()
    rate: float = 1.0
    slo: SLO = field(default_factory=SLO)
    label: str = ""

    def with_knob(self, name: str, value: Any) -> WhatIf:
        """The same what-if with one thing changed: a scheduler knob, a number format, memory, load or a ceiling.

        Raises:
            ConfigError: for an unknown name or a value out of range.
        """
        if name == "device":
            if value.name == self.device.name:
                return self
            return replace(self, device=value, num_blocks=None, coefficients=None, efficiency=ATTAINABLE)
        if name == "model":  # a fitted law goes with this machine, whose pool stays as large as it is
            return replace(self, model=value, num_blocks=self.num_blocks if self.coefficients is not None else None)
        if name in _SCHEDULER:
            return replace(self, scheduler=replace(self.scheduler, **{name: value}))
        if name in _CEILINGS:
            return replace(self, device=replace(self.device, **{name: value}))
        if name in ("rate_per_s", "users"):
            if self.load is None:
                raise ConfigError(f"{name} belongs to a synthetic load; scale a trace by `rate`")
            return replace(self, load=replace(self.load, **{name: value}))
        if name == "rate" or name in _OWN:
            return replace(self, **{name: value})
        raise ConfigError(
            f"unknown knob {name!r}; known: {', '.join(sorted({*_SCHEDULER, *_OWN, *_LOAD, *_CEILINGS, 'device', 'model'}))}"
        )

    def knob(self, name: str) -> Any:
        """The present value of a knob."""
        if name in _SCHEDULER:
            return getattr(self.scheduler, name)
        if name in _CEILINGS:
            return getattr(self.device, name)
        if name in ("rate_per_s", "users"):
            return getattr(self.load, name) if self.load is not None else None
        if name == "num_blocks":
            return self.setup().cache.num_blocks
        return getattr(self, name)

    def setup(self) -> SimulationSetup:
        """Model, timer, knobs and pool.

        Raises:
            ConfigError: for what does not fit together or into the device's memory.
        """
        if self.coefficients is None:
            made = setup_on_device(
                self.model,
                self.device,
                self.scheduler,
                block_size=self.block_size,
                weight_dtype=self.weight_dtype,
                kv_dtype=self.kv_dtype,
                head_dtype=self.head_dtype,
                tensor_parallel=self.tensor_parallel,
                gpu_memory_utilization=self.gpu_memory_utilization,
                enable_prefix_caching=self.enable_prefix_caching,
                max_model_len=self.max_model_len,
                num_blocks=self.num_blocks,
                efficiency=self.efficiency,
                slo=self.slo,
            )
        else:
            made = self._fitted_setup(self.coefficients)
        cache = replace(made.cache, num_swap_blocks=self.num_swap_blocks, eviction_policy=self.eviction_policy)
        made = replace(made, cache=cache, label=self.label or made.label)
        check_pair(made.scheduler, made.cache)
        return made

    def _fitted_setup(self, coefficients: StepCoefficients) -> SimulationSetup:
        if self.num_blocks is None:
            raise ConfigError("num_blocks is not set; on this machine the pool has the size that the engine gives it")
        if self.tensor_parallel != 1:
            raise ConfigError(f"tensor_parallel is {self.tensor_parallel}; this machine is one device")
        cost = CostModel.of(self.model, weight_dtype=self.weight_dtype, kv_dtype=self.kv_dtype, head_dtype=self.head_dtype)
        return SimulationSetup(
            cost=cost,
            timer=CalibratedTimer(cost, coefficients, f"law fitted on {self.device.name}"),
            scheduler=self.scheduler,
            cache=CacheConfig(self.block_size, self.num_blocks, self.enable_prefix_caching),
            device=self.device,
            max_model_len=self.max_model_len,
            slo=self.slo,
            label=f"{self.model.name} on {self.device.name}",
        )

    def feed(self) -> Load:
        """The load, fresh from its beginning.

        Raises:
            ConfigError: if there is none, or it never ends.
        """
        if not self.rate > 0:
            raise ConfigError(f"the rate factor is {self.rate!r}; give a number above 0")
        if self.arrivals:
            return ArrivalList(_denser(iter(self.arrivals), self.arrivals[0].time_s, self.rate))
        if self.trace is not None:
            return ArrivalList(trace_arrivals(self.trace.scaled(rate=self.rate), vocab_size=self.model.vocab_size))
        if self.load is None:
            raise ConfigError("this what-if has no load; give a synthetic load, a trace or arrivals")
        if self.load.total_requests is None:
            raise ConfigError("the load never ends; give it a number of requests")
        spec = self.load if self.rate == 1.0 else replace(self.load, rate_per_s=self.load.rate_per_s * self.rate)
        return LoadGenerator(spec, StandInPrompts())

    def run(
        self,
        *,
        max_time_s: float | None = None,
        warm_up_s: float = 0.0,
        should_stop: Callable[[], bool] | None = None,
        on_progress: Callable[[int, float], None] | None = None,
    ) -> SimulationResult:
        """Predict; see `Simulation.run` for limits and errors."""
        return Simulation(self.setup(), self.feed()).run(
            max_time_s=max_time_s, warm_up_s=warm_up_s, should_stop=should_stop, on_progress=on_progress
        )


def first_part(what: WhatIf, requests: int) -> WhatIf | None:
    """The same what-if with only the first `requests` of its load, for a quick answer; None if it has hardly more."""
    if what.arrivals:
        return replace(what, arrivals=what.arrivals[:requests]) if len(what.arrivals) >= 2 * requests else None
    if what.trace is not None:
        return replace(what, trace=what.trace.head(requests)) if len(what.trace) >= 2 * requests else None
    if what.load is None or (what.load.total_requests or 0) < 2 * requests:
        return None
    return replace(what, load=replace(what.load, num_requests=requests))


def _denser(arrivals: Iterator[Arrival], origin_s: float, rate: float) -> Iterator[Arrival]:
    for arrival in arrivals:
        yield arrival if rate == 1.0 else replace(arrival, time_s=origin_s + (arrival.time_s - origin_s) / rate)


# -- sensitivity -------------------------------------------------------------------------------------------

NOTCHES: dict[str, float] = {
    "max_num_seqs": 2.0,
    "max_num_batched_tokens": 2.0,
    "block_size": 2.0,
    "num_blocks": 1.5,
    "rate": 1.25,
    "memory_bandwidth": 1.25,
    "peak_flops": 1.25,
}
"""Factor of one notch of each knob; a switch has one notch, its other position."""
SWITCHES = ("enable_prefix_caching", "enable_chunked_prefill")


@dataclass(frozen=True, slots=True)
class Notch:
    """One knob moved one notch: its new value, the goal's figure there, or why there is none."""

    knob: str
    value: Any
    figure: float | None
    problem: str = ""


@dataclass(frozen=True, slots=True)
class Sensitivity:
    """A knob's present value with the notches below and above it (a switch has `up` only)."""

    knob: str
    value: Any
    down: Notch | None
    up: Notch | None


def moved(whatif: WhatIf, knob: str, direction: int) -> Any:
    """The value one notch down (-1) or up (+1); None if there is no such notch."""
    value = whatif.knob(knob)
    if knob in SWITCHES:
        return (not value) if direction > 0 else None
    factor = NOTCHES[knob]
    new = value * factor if direction > 0 else value / factor
    if not isinstance(value, int):
        return new
    whole = max(round(new), 1)
    return whole if whole != value else None


def sensitivity(
    whatif: WhatIf, goal: str, *, knobs: tuple[str, ...] = (*NOTCHES, *SWITCHES), should_stop: Callable[[], bool] | None = None
) -> Iterator[Sensitivity]:
    """Run each knob's notches; `goal` is a figure's name (see `SimulationResult.figure`).

    Yields each knob as it is done, so that a page can show it and stop in between.
    """
    for knob in knobs:
        if should_stop is not None and should_stop():
            return
        notches = [_notch(whatif, knob, direction, goal) for direction in (-1, 1)]
        yield Sensitivity(knob, whatif.knob(knob), *notches)


def _notch(whatif: WhatIf, knob: str, direction: int, goal: str) -> Notch | None:
    value = moved(whatif, knob, direction)
    if value is None:
        return None
    try:
        return Notch(knob, value, whatif.with_knob(knob, value).run().figure(goal))
    except BatchscopeError as error:
        return Notch(knob, value, None, str(error))
