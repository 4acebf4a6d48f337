"""Seconds of a step from its composition: the published roofline of a device, or a law fitted to measured steps.

    fitted:  t = fixed + row * rows
               + law(T) * layer parameters + law(S) * head parameters        T query tokens, S sampled rows
               + a * KV bytes read + b * attention FLOPs + swap * swapped bytes

`law(n)` is the time a matrix parameter takes for n rows, s: level while memory sets the pace, then rising with the
arithmetic; piecewise linear, never falling, over KNOTS, which are close where the steps of a light load lie, and next to
each other where steps of few tokens read a coded copy of the weights and larger ones do not. Because every term is a time
for a byte, a FLOP or a parameter, a law fitted on one model prices another model on the same machine. A step with more
work never costs less.
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass, replace
from typing import Protocol

from core.cost_model import CostModel, StepComposition, StepSums, experts_touched
from core.devices import DeviceSpec
from core.errors import ConfigError
from core.outputs import StepTiming
from core.roofline import ATTAINABLE, Efficiency, bandwidth_for, model_time

KNOTS = (1, 2, 3, 4, 6, 8, 9, 12, 16, 24, 32, 48, 64, 96, 128, 256, 512, 1024, 2048)


class StepTimer(Protocol):
    """Predicts the seconds of a step."""

    @property
    def label(self) -> str:
        """What the prediction rests on, for pages."""
        ...

    def predict(self, run: StepSums, swap_bytes: float = 0.0, copy_bytes: float = 0.0) -> StepTiming:
        """Seconds of a step, padding included in `run`; `prepare_s` holds the cost outside the forward pass."""
        ...

    def seconds(self, run: StepSums, swap_bytes: float = 0.0, copy_bytes: float = 0.0) -> float:
        """All seconds of `predict` as one number, without building its parts: what a long simulation asks for."""
        ...


def predict_composition(timer: StepTimer, composition: StepComposition, window: int | None = None) -> StepTiming:
    """Seconds of one step from its columns; `window` is the model's sliding window."""
    return timer.predict(composition.padded_sums(window), composition.swap_bytes, composition.copy_bytes)


class RooflineTimer:
    """max(FLOPs / peak, bytes / bandwidth) + communication + swap + overhead, at attainable shares of the ceilings."""

    def __init__(self, model: CostModel, device: DeviceSpec, efficiency: Efficiency = ATTAINABLE) -> None:
        self.model = model
        self.device = device
        self.efficiency = efficiency

    @property
    def label(self) -> str:
        return f"roofline of {self.device.name}, {self.efficiency.source}"

    def predict(self, run: StepSums, swap_bytes: float = 0.0, copy_bytes: float = 0.0) -> StepTiming:
        """Price one step."""
        cost = self.model.cost_of_sums(run, None, swap_bytes, copy_bytes)
        time = model_time(self.model, self.device, cost, self.efficiency)
        return StepTiming(prepare_s=time.overhead_s, forward_s=time.total_s - time.overhead_s)

    def seconds(self, run: StepSums, swap_bytes: float = 0.0, copy_bytes: float = 0.0) -> float:
        """`predict` as one number."""
        model, device, tokens = self.model, self.device, run.query_tokens
        if model.comm_bytes_per_token:
            return step_seconds(self.predict(run, swap_bytes, copy_bytes))
        if not tokens and not swap_bytes and not copy_bytes:
            return 0.0
        flops = (
            model.layer_flops_per_token * tokens
            + model.attention_flops_per_pair * run.attended_tokens
            + model.head_flops * run.sampled
        )
        moved = model.weight_bytes(run) + model.kv_read_per_token * (run.context_tokens + tokens) + 2 * copy_bytes
        compute_s = flops / (device.peak_flops * self.efficiency.compute)
        memory_s = moved / (bandwidth_for(device, moved) * self.efficiency.memory)
        swap_s = swap_bytes / (device.host_bandwidth or device.memory_bandwidth) if swap_bytes else 0.0
        return (compute_s if compute_s > memory_s else memory_s) + swap_s + device.step_overhead_s


@dataclass(frozen=True, slots=True)
class StepCoefficients:
    """A fitted law; all figures are at least 0.

    Attributes:
        fixed_s, row_s: time of a step and of a row that does not depend on the model.
        law_s: seconds a matrix parameter at each of KNOTS rows, never falling; beyond the last the last slope goes on.
        kv_byte_s, attention_flop_s, swap_byte_s: seconds a byte, a FLOP, a byte.
        host_fixed_s, host_row_s, host_token_s: the part of a step outside the forward pass (beside the above).
        between_s: mean time from the end of a step to the start of the next one while requests run (commands, arrivals,
            pictures): no part of a step's own time, but of a run's.
        run_factor: seconds of all measured steps / seconds predicted for them: a robust fit predicts the typical step, a
            run also has the slow ones.
        pace: how slow the machine was lately, by the latest steps; 1 is as slow as in the steps that the law was fitted to.
    """

    fixed_s: float
    row_s: float
    law_s: tuple[float, ...]
    kv_byte_s: float
    attention_flop_s: float
    swap_byte_s: float
    host_fixed_s: float = 0.0
    host_row_s: float = 0.0
    host_token_s: float = 0.0
    between_s: float = 0.0
    run_factor: float = 1.0
    pace: float = 1.0

    def __post_init__(self) -> None:
        if len(self.law_s) != len(KNOTS):
            raise ConfigError(f"a law has {len(KNOTS)} values, one for each of {KNOTS}; found {len(self.law_s)}")
        values = (*self.law_s, self.fixed_s, self.row_s, self.kv_byte_s, self.attention_flop_s, self.swap_byte_s)
        if not all(v >= 0.0 for v in (*values, self.host_fixed_s, self.host_row_s, self.host_token_s, self.between_s)):
            raise ConfigError("a coefficient is below 0 or not a number; a step with more work must not cost less")
        for name in ("run_factor", "pace"):
            if not 0.0 < getattr(self, name) < 1e3:
                raise ConfigError(f"{name} is {getattr(self, name)!r}; give a number above 0, near 1")
        if any(b < a for a, b in zip(self.law_s, self.law_s[1:], strict=False)):
            raise ConfigError("the law falls with more rows; a step with more work must not cost less")

    @property
    def factor(self) -> float:
        """What the time of a step in a run is multiplied by."""
        return self.run_factor * self.pace

    def of_one_step(self) -> StepCoefficients:
        """The law of a typical step, without what only a run shows."""
        return replace(self, between_s=0.0, run_factor=1.0)

    def law(self, rows: int) -> float:
        """Seconds a matrix parameter takes for `rows` rows."""
        if rows <= 0:
            return 0.0
        at = min(bisect_right(KNOTS, rows), len(KNOTS) - 1)
        low, high = KNOTS[at - 1], KNOTS[at]
        base = self.law_s[at - 1]
        return base + (self.law_s[at] - base) * (rows - low) / (high - low)

    def effective_bandwidth(self, rows: int, parameter_bytes: float) -> float:
        """Bytes/s at which `rows` rows read the weights."""
        return parameter_bytes / self.law(rows)

    def effective_flops(self, rows: int) -> float:
        """FLOP/s of the matrix products for `rows` rows."""
        return 2.0 * rows / self.law(rows)


def roofline_coefficients(device: DeviceSpec, parameter_bytes: float, working_set_bytes: float) -> StepCoefficients:
    """The law that the two ceilings give: max(bytes / bandwidth, 2 * rows / peak) a parameter; what a fit starts from."""
    bandwidth = bandwidth_for(device, working_set_bytes)
    return StepCoefficients(
        fixed_s=0.0,
        row_s=0.0,
        law_s=tuple(max(parameter_bytes / bandwidth, 2.0 * n / device.peak_flops) for n in KNOTS),
        kv_byte_s=1.0 / device.memory_bandwidth,
        attention_flop_s=1.0 / device.peak_flops,
        swap_byte_s=1.0 / (device.host_bandwidth or device.memory_bandwidth),
        host_fixed_s=device.step_overhead_s,
    )


class CalibratedTimer:
    """A fitted law on one model.

    For a mixture of experts the weights of all touched experts are read, but a token meets only its own.
    """

    def __init__(self, model: CostModel, coefficients: StepCoefficients, source: str = "fitted to measured steps") -> None:
        self.model = model
        self.coefficients = coefficients
        self.source = source
        self._factor = coefficients.factor
        spec = model.spec
        self._head = spec.head_parameters / model.tensor_parallel
        self._met = model.layer_flops_per_token / 2.0
        self._expert = spec.num_layers * spec.mlp_parameters_per_expert / model.tensor_parallel if spec.num_experts else 0.0
        self._dense = self._met - self._expert * spec.num_experts_per_tok
        self._layers_s: dict[int, float] = {}  # by query tokens
        self._head_s: dict[int, float] = {}  # by sampled rows

    @property
    def label(self) -> str:
        return self.source

    def for_model(self, model: CostModel) -> CalibratedTimer:
        """The same machine running another model."""
        return CalibratedTimer(model, self.coefficients, self.source)

    def predict(self, run: StepSums, swap_bytes: float = 0.0, copy_bytes: float = 0.0) -> StepTiming:
        """Price one step."""
        c, model = self.coefficients, self.model
        if not run.rows:
            return StepTiming(prepare_s=c.factor * c.host_fixed_s + c.between_s + c.swap_byte_s * swap_bytes)
        forward = c.fixed_s + c.row_s * run.rows + self._linear_s(run.query_tokens) + self._head * c.law(run.sampled)
        forward += c.kv_byte_s * (model.kv_read_per_token * run.context_tokens + copy_bytes)
        forward += c.attention_flop_s * model.attention_flops_per_pair * run.attended_tokens
        host = c.factor * (c.host_fixed_s + c.host_row_s * run.rows + c.host_token_s * run.query_tokens)
        return StepTiming(prepare_s=host + c.between_s + c.swap_byte_s * swap_bytes, forward_s=c.factor * forward)

    def seconds(self, run: StepSums, swap_bytes: float = 0.0, copy_bytes: float = 0.0) -> float:
        """`predict` as one number; the law is looked up once for each count of tokens and of rows."""
        c, model, rows, tokens, sampled = self.coefficients, self.model, run.rows, run.query_tokens, run.sampled
        if not rows:
            return self._factor * c.host_fixed_s + c.between_s + c.swap_byte_s * swap_bytes
        layers = self._layers_s.get(tokens)
        if layers is None:
            layers = self._layers_s[tokens] = self._linear_s(tokens)
        head = self._head_s.get(sampled)
        if head is None:
            head = self._head_s[sampled] = self._head * c.law(sampled)
        own_s = (
            c.fixed_s + c.host_fixed_s + (c.row_s + c.host_row_s) * rows + c.host_token_s * tokens + layers + head
            + c.kv_byte_s * (model.kv_read_per_token * run.context_tokens + copy_bytes)
            + c.attention_flop_s * model.attention_flops_per_pair * run.attended_tokens
        )  # fmt: skip
        return self._factor * own_s + c.between_s + c.swap_byte_s * swap_bytes

    def _linear_s(self, tokens: int) -> float:
        c = self.coefficients
        if not self._expert:
            return self._met * c.law(tokens)
        spec = self.model.spec
        read = self._dense + self._expert * experts_touched(spec.num_experts, spec.num_experts_per_tok, tokens)
        return read * c.law(1) + self._met * (c.law(tokens) - c.law(1))


class SlowedTimer:
    """Another timer's prediction times a factor; for sensitivity ("what if each step took 10 % longer")."""

    def __init__(self, timer: StepTimer, factor: float) -> None:
        if not factor > 0:
            raise ConfigError(f"a step cannot take {factor} times as long; give a number above 0")
        self._timer, self._factor = timer, factor

    @property
    def label(self) -> str:
        return f"{self._timer.label}, times {self._factor:g}"

    def predict(self, run: StepSums, swap_bytes: float = 0.0, copy_bytes: float = 0.0) -> StepTiming:
        """Price one step."""
        t = self._timer.predict(run, swap_bytes, copy_bytes)
        return replace(t, prepare_s=t.prepare_s * self._factor, forward_s=t.forward_s * self._factor)

    def seconds(self, run: StepSums, swap_bytes: float = 0.0, copy_bytes: float = 0.0) -> float:
        """`predict` as one number."""
        return self._timer.seconds(run, swap_bytes, copy_bytes) * self._factor


def step_seconds(timing: StepTiming) -> float:
    """All seconds of a predicted step."""
    return timing.prepare_s + timing.forward_s + timing.sample_s + timing.transfer_s
