"""From FLOPs and bytes to seconds: the roofline, the curve over the batch, and what one more request costs.

    time = max(FLOPs / peak, bytes / bandwidth) + communication + swap + fixed cost of a step

Below the ridge point (peak / bandwidth) a step is bound by memory, so another sequence costs only its own KV;
beyond it each one costs its arithmetic. With KV traffic the intensity of decoding stops growing with the batch:
it tends to (FLOPs of one sequence) / (KV bytes of one sequence), a ceiling set by the context length.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from core.cost_model import CostModel, StepComposition, StepCost, StepSums
from core.devices import DeviceSpec
from core.errors import ConfigError


@dataclass(frozen=True, slots=True)
class Efficiency:
    """Share of each published ceiling that real kernels reach, above 0 and at most 1; `source` says where it is from."""

    compute: float = 1.0
    memory: float = 1.0
    source: str = "the published ceilings themselves"

    def __post_init__(self) -> None:
        for name in ("compute", "memory"):
            value = getattr(self, name)
            if not 0.0 < value <= 1.0:
                raise ConfigError(f"{name} efficiency is {value!r}; give a share above 0 and at most 1")


IDEAL = Efficiency()
ATTAINABLE = Efficiency(788 / 989, 4.3 / 4.8, "measured on an H200: 788 of 989 TFLOP/s, 4.3 of 4.8 TB/s")


@dataclass(frozen=True, slots=True)
class RooflineTime:
    """Predicted seconds of a step, by part. `compute_s` and `memory_s` overlap; the other parts do not."""

    compute_s: float
    memory_s: float
    comm_s: float
    swap_s: float
    overhead_s: float

    @property
    def total_s(self) -> float:
        """max(compute, memory) + communication + swap + overhead."""
        return max(self.compute_s, self.memory_s) + self.comm_s + self.swap_s + self.overhead_s

    @property
    def bound(self) -> str:
        """ "compute" or "memory": the larger of the two overlapping parts."""
        return "compute" if self.compute_s > self.memory_s else "memory"


def bandwidth_for(device: DeviceSpec, working_set_bytes: float) -> float:
    """Bytes/s at a working set: the cache's figure where it is known and the set fits, else main memory's."""
    if device.cache_bandwidth and working_set_bytes <= device.cache_bytes:
        return device.cache_bandwidth
    return device.memory_bandwidth


def roofline_time(
    cost: StepCost, device: DeviceSpec, *, efficiency: Efficiency = IDEAL, tensor_parallel: int = 1, num_layers: int = 0
) -> RooflineTime:
    """Predict a step on a device.

    Args:
        tensor_parallel, num_layers: add 2 all-reduces a layer, each with its fixed time and 2*(tp-1) hops.

    Raises:
        ConfigError: if the cost holds communication and the device states no link bandwidth.
    """
    if not cost.query_tokens and not cost.swap_bytes and not cost.device_bytes:
        return RooflineTime(0.0, 0.0, 0.0, 0.0, 0.0)
    comm = 0.0
    if cost.comm_bytes:
        if not device.link_bandwidth:
            raise ConfigError(
                f"device {device.name} states no link bandwidth, which tensor parallelism needs; give link_bandwidth"
            )
        each = device.collective_base_s + 2 * (tensor_parallel - 1) * device.link_latency_s
        comm = cost.comm_bytes / device.link_bandwidth + 2 * num_layers * each
    return RooflineTime(
        compute_s=cost.flops / (device.peak_flops * efficiency.compute),
        memory_s=cost.device_bytes / (bandwidth_for(device, cost.device_bytes) * efficiency.memory),
        comm_s=comm,
        swap_s=cost.swap_bytes / (device.host_bandwidth or device.memory_bandwidth),
        overhead_s=device.step_overhead_s,
    )


def model_time(model: CostModel, device: DeviceSpec, cost: StepCost, efficiency: Efficiency = IDEAL) -> RooflineTime:
    """`roofline_time` with the group and depth of `model`."""
    return roofline_time(
        cost, device, efficiency=efficiency, tensor_parallel=model.tensor_parallel, num_layers=model.spec.num_layers
    )


@dataclass(frozen=True, slots=True)
class CurvePoint:
    """One batch size of a decode curve.

    Attributes:
        marginal_s: step_time(batch) - step_time(batch - 1); for batch 1 the whole step.
        weights_intensity: FLOP/B if weights were the only traffic.
    """

    batch: int
    time_s: float
    compute_s: float
    memory_s: float
    marginal_s: float
    tokens_per_s: float
    flops: float
    moved_bytes: float
    intensity: float
    weights_intensity: float


def decode_sums(model: CostModel, batch: int, context: int) -> StepSums:
    """Sums of a decode step of `batch` rows with `context` tokens cached each."""
    window = model.spec.sliding_window
    seen = context + 1 if window is None else min(context + 1, window)
    return StepSums(batch, batch, batch, batch * seen, batch * seen)


def decode_curve(
    model: CostModel, device: DeviceSpec, context: int, batches: Sequence[int], efficiency: Efficiency = IDEAL
) -> tuple[CurvePoint, ...]:
    """Decode step time, marginal cost and intensity at each batch size, every row with `context` cached tokens."""

    def time_of(batch: int) -> tuple[StepCost, RooflineTime]:
        cost = model.cost_of_sums(decode_sums(model, batch, context))
        return cost, model_time(model, device, cost, efficiency)

    points = []
    for batch in batches:
        cost, time = time_of(batch)
        before = time_of(batch - 1)[1].total_s if batch > 1 else 0.0
        points.append(
            CurvePoint(
                batch=batch,
                time_s=time.total_s,
                compute_s=time.compute_s,
                memory_s=time.memory_s,
                marginal_s=time.total_s - before,
                tokens_per_s=batch / time.total_s,
                flops=cost.flops,
                moved_bytes=cost.moved_bytes,
                intensity=cost.intensity,
                weights_intensity=cost.flops / cost.weight_bytes,
            )
        )
    return tuple(points)


def marginal_cost_s(
    model: CostModel, device: DeviceSpec, contexts: tuple[int, ...], next_context: int, efficiency: Efficiency = IDEAL
) -> float:
    """Seconds that one more decoding sequence adds to a step whose rows have `contexts` cached tokens."""

    def total(columns: tuple[int, ...]) -> float:
        cost = model.cost(StepComposition.decode(columns))
        return model_time(model, device, cost, efficiency).total_s

    return total((*contexts, next_context)) - total(contexts)


def intensity_ceiling(model: CostModel, context: int) -> float:
    """FLOP/B that decoding at `context` tokens tends to as the batch grows: weights vanish, KV stays."""
    one = model.cost_of_sums(decode_sums(model, 1, context))
    return one.flops / (one.kv_read_bytes + one.kv_write_bytes + model.embedding_row_bytes)


def ridge_batch(model: CostModel, device: DeviceSpec, context: int, most: int = 65_536) -> int | None:
    """Smallest decode batch whose intensity reaches the device's ridge point; None if KV traffic keeps it below."""
    if intensity_ceiling(model, context) <= device.ridge_point:
        return None

    def reaches(batch: int) -> bool:
        return model.cost_of_sums(decode_sums(model, batch, context)).intensity >= device.ridge_point

    low, high = 0, 1
    while high <= most and not reaches(high):
        low, high = high, high * 2
    if high > most and not reaches(most):
        return None
    high = min(high, most)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if reaches(middle) else (middle, high)
    return high
