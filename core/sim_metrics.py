"""What a simulated run adds up to, in memory that does not grow with its steps.

    step    -> sums, time by what bound the batch, a series of at most 1,024 points
    request -> TTFT, TPOT, E2E, queue time (8 bytes each), gaps into a histogram of 1 % wide bins

The definitions of the latencies are those of `core.latency`.
"""

from __future__ import annotations

import math
from array import array
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from core.cost_model import CostModel, StepSums, experts_touched
from core.devices import DeviceSpec
from core.latency import gaps_s, percentiles, slo_met, tpot_s
from core.request import Request
from core.sim_series import GapHistogram
from core.snapshot import Percentiles
from core.utilisation import least_memory_s

FINISHED = frozenset(("stop", "length", "capacity"))


class _Column:
    """Step sums added up."""

    __slots__ = (
        "attended",
        "coded_sampling",
        "coded_steps",
        "context",
        "experts",
        "queries",
        "sampled",
        "sampling_steps",
        "steps",
    )

    def __init__(self) -> None:
        self.steps = self.queries = self.sampled = self.sampling_steps = self.context = self.attended = 0
        self.coded_steps = self.coded_sampling = 0
        self.experts = 0.0

    def add(self, sums: StepSums, cost: CostModel) -> None:
        spec = cost.spec
        self.steps += 1
        self.queries += sums.query_tokens
        self.context += sums.context_tokens
        self.attended += sums.attended_tokens
        if sums.sampled:
            self.sampled += sums.sampled
            self.sampling_steps += 1
        if sums.query_tokens <= cost.coded_tokens:
            self.coded_steps += 1
            self.coded_sampling += sums.sampled > 0
        if spec.num_experts:
            self.experts += experts_touched(spec.num_experts, spec.num_experts_per_tok, sums.query_tokens)

    def flops(self, cost: CostModel) -> float:
        """All operations."""
        return (
            cost.layer_flops_per_token * self.queries
            + cost.attention_flops_per_pair * self.attended
            + cost.head_flops * self.sampled
        )

    def weight_bytes(self, cost: CostModel) -> float:
        """Weights read; steps of few tokens read a coded copy where there is one, which no mixture of experts has."""
        saved = 1.0 - cost.coded_share
        weights = cost.dense_bytes * (self.steps - saved * self.coded_steps) + cost.embedding_row_bytes * self.queries
        return weights + cost.head_bytes * (self.sampling_steps - saved * self.coded_sampling) + cost.expert_bytes * self.experts

    def bytes(self, cost: CostModel) -> float:
        """Weights, KV read, KV written."""
        return self.weight_bytes(cost) + cost.kv_read_per_token * (self.context + self.queries)


def _least_memory_s(device: DeviceSpec, moved_bytes: float) -> float:
    return least_memory_s(moved_bytes, device.memory_bandwidth, device.cache_bandwidth, device.cache_bytes)


class WorkSums:
    """Sums over the steps of a run.

    FLOPs and bytes are linear in a step's sums (the experts that a mixture touches are not, and are added step by
    step), so the totals are priced once, at the end.

    Attributes:
        compute_excess, memory_excess: how many times the device's ceiling the fastest step was, at least 1. A fitted law
            may price a step below what the ceilings of the device allow; they are too low then, not the step too good.
    """

    def __init__(self, cost: CostModel, device: DeviceSpec | None = None) -> None:
        self._cost = cost
        self._device = device
        self.compute_excess = self.memory_excess = 1.0
        self._run, self._padded_run, self._padded_useful = _Column(), _Column(), _Column()
        self._moved_bytes = 0.0
        self.rows = self.prefill_tokens = self.waited_steps = self.full_steps = self.preemptions = 0
        self.busy_s = self.peak_kv_usage = 0.0

    def add_step(self, duration_s: float, run: StepSums, useful: StepSums, swap_bytes: float, copy_bytes: float) -> None:
        """Take one step in; `useful` is `run` itself if nothing is padded."""
        self.busy_s += duration_s
        self.rows += useful.rows
        if useful is run:
            self._run.add(run, self._cost)
        else:
            self._padded_run.add(run, self._cost)
            self._padded_useful.add(useful, self._cost)
        if self._device is not None and duration_s > 0:
            self._judge(self._device, duration_s, useful)
        self._moved_bytes += swap_bytes + 2 * copy_bytes

    def _judge(self, device: DeviceSpec, duration_s: float, useful: StepSums) -> None:
        cost = self._cost
        flops = (
            cost.layer_flops_per_token * useful.query_tokens
            + cost.attention_flops_per_pair * useful.attended_tokens
            + cost.head_flops * useful.sampled
        )
        ratio = flops / (duration_s * device.peak_flops)
        if ratio > self.compute_excess:
            self.compute_excess = ratio
        moved = cost.weight_bytes(useful) + cost.kv_read_per_token * (useful.context_tokens + useful.query_tokens)
        ratio = _least_memory_s(device, moved) / duration_s
        if ratio > self.memory_excess:
            self.memory_excess = ratio

    def mfu(self) -> float | None:
        """Useful FLOPs over busy time and peak; the fastest step sets the peak if it was above it. None without a device."""
        if self._device is None:
            return None
        return self.useful_flops / (self.busy_s * self._device.peak_flops * self.compute_excess) if self.busy_s > 0 else 0.0

    def mbu(self) -> float | None:
        """Least time for the bytes of a mean step over its time; see `mfu`."""
        if self._device is None:
            return None
        if not self.steps or self.busy_s <= 0:
            return 0.0
        least_s = _least_memory_s(self._device, self.useful_bytes / self.steps)
        return least_s * self.steps / (self.busy_s * self.memory_excess)

    @property
    def steps(self) -> int:
        return self._run.steps + self._padded_run.steps

    @property
    def flops(self) -> float:
        return self._run.flops(self._cost) + self._padded_run.flops(self._cost)

    @property
    def useful_flops(self) -> float:
        return self._run.flops(self._cost) + self._padded_useful.flops(self._cost)

    @property
    def moved_bytes(self) -> float:
        return self._run.bytes(self._cost) + self._padded_run.bytes(self._cost) + self._moved_bytes

    @property
    def weight_bytes(self) -> float:
        """Bytes of weights among the moved ones."""
        return self._run.weight_bytes(self._cost) + self._padded_run.weight_bytes(self._cost)

    @property
    def useful_bytes(self) -> float:
        return self._run.bytes(self._cost) + self._padded_useful.bytes(self._cost)


@dataclass(slots=True)
class TenantSums:
    """Counts of one tenant's requests."""

    submitted: int = 0
    finished: int = 0
    output_tokens: int = 0
    ttft_s: array[float] = field(default_factory=lambda: array("d"))


class RequestSums:
    """Latencies and counts of ended requests."""

    def __init__(self) -> None:
        self.ttft_s: array[float] = array("d")
        self.tpot_s: array[float] = array("d")
        self.e2e_s: array[float] = array("d")
        self.queue_s: array[float] = array("d")
        self.gaps = GapHistogram()
        self.finished = self.cancelled = self.with_slo = self.met_slo = 0
        self.output_tokens = self.prompt_tokens = 0
        self.last_end_s = -math.inf
        self.tenants: dict[str, TenantSums] = {}

    def tenant(self, name: str) -> TenantSums:
        """Sums of one tenant."""
        found = self.tenants.get(name)
        if found is None:
            found = self.tenants[name] = TenantSums()
        return found

    def end(self, request: Request) -> None:
        """Take an ended request (not a refused one).

        Raises:
            ValueError: if it has not ended.
        """
        ended_s, arrival_s = request.finished_time_s, request.arrival_time_s
        if ended_s is None:
            raise ValueError(f"request {request.request_id} is {request.status}; only an ended one can be counted")
        self.last_end_s = max(self.last_end_s, ended_s)
        first_s, tokens = request.first_token_time_s, len(request.output_token_ids)
        ttft_s = None if first_s is None else first_s - arrival_s
        gaps = gaps_s(request.token_times_s)
        self.gaps.extend(gaps)
        slo = request.slo
        if slo.ttft_s is not None or slo.itl_s is not None:
            met = slo_met(request, ttft_s, max(gaps, default=None))
            if met is not None:
                self.with_slo += 1
                self.met_slo += met
        self.output_tokens += tokens
        tenant = self.tenant(request.tenant)
        tenant.output_tokens += tokens
        if ttft_s is not None:
            self.ttft_s.append(ttft_s)
            tenant.ttft_s.append(ttft_s)
        if request.admitted_time_s is not None:
            self.queue_s.append(request.admitted_time_s - arrival_s)
        if request.finish_reason not in FINISHED:
            self.cancelled += 1
            return
        self.finished += 1
        self.prompt_tokens += request.num_prompt_tokens
        tenant.finished += 1
        self.e2e_s.append(ended_s - arrival_s)
        each_s = tpot_s(ended_s - arrival_s, ttft_s, tokens)
        if each_s is not None:
            self.tpot_s.append(each_s)


def percentiles_of(values: array[float]) -> Percentiles:
    """p50, p95, p99 of a column."""
    return percentiles(as_array(values))


def as_array(values: array[float]) -> npt.NDArray[np.float64]:
    """A copy as a numpy column (a view would lock the array's size)."""
    return np.array(values, dtype=np.float64)
