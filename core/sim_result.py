"""The result of a simulated run as plain numbers: what a page pairs with the live engine's.

throughput = tokens / (last end - first arrival)      goodput = requests that met every target / the same time
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from core.sim_metrics import percentiles_of
from core.sim_series import SeriesPoint
from core.snapshot import Percentiles

if TYPE_CHECKING:
    from core.simulator import Simulation


@dataclass(frozen=True, slots=True)
class TenantResult:
    """One tenant's part of a run."""

    name: str
    submitted: int
    finished: int
    output_tokens: int
    ttft: Percentiles


@dataclass(frozen=True, slots=True)
class SimulationResult:
    """A predicted run; times in seconds, rates a second of virtual time.

    Attributes:
        duration_s: from the first arrival to the last end.
        busy_share: share of it in which a step ran.
        unfinished: requests still live when the run was stopped.
        refused: count by reason, with one message as an example.
        full_batch_share: of the steps in which requests waited, those at the memory-determined maximum; None without.
        mfu, mbu: useful FLOPs and bytes over busy time and the device's ceilings, or the fastest step where that was above
            them; None without a device.
        bound_shares: busy time by what kept the batch from being larger.
    """

    label: str
    timer: str
    duration_s: float
    busy_share: float
    steps: int
    submitted: int
    finished: int
    cancelled: int
    unfinished: int
    refused: tuple[tuple[str, int], ...]
    refusal_message: str
    requests_per_s: float
    output_tokens_per_s: float
    total_tokens_per_s: float
    goodput_per_s: float | None
    ttft: Percentiles
    itl: Percentiles
    tpot: Percentiles
    e2e: Percentiles
    queue: Percentiles
    mean_step_s: float
    mean_batch: float
    full_batch_share: float | None
    preemptions: int
    peak_kv_usage: float
    prefix_hit_rate: float | None
    flops: float
    moved_bytes: float
    weight_bytes: float
    useful_share: float
    mfu: float | None
    mbu: float | None
    bound_shares: tuple[tuple[str, float], ...]
    series: tuple[SeriesPoint, ...]
    tenants: tuple[TenantResult, ...]
    output_tokens: int
    kind: str = "predicted"

    @property
    def intensity(self) -> float:
        """Mean arithmetic intensity, FLOP/B."""
        return self.flops / self.moved_bytes if self.moved_bytes else 0.0

    def figure(self, name: str) -> float | None:
        """A number by name, for sweeps and tables: a field, or e.g. "ttft_p95" for a percentile.

        Raises:
            KeyError: for an unknown name.
        """
        kind, _, rank = name.rpartition("_")
        if rank in ("p50", "p95", "p99") and isinstance(getattr(self, kind, None), Percentiles):
            value = getattr(getattr(self, kind), rank)
            return None if value is None else float(value)
        value = getattr(self, name, KeyError)
        if value is None:
            return None
        if not isinstance(value, (int, float)):
            raise KeyError(f"a simulation has no figure {name!r}")
        return float(value)


def build_result(run: Simulation) -> SimulationResult:
    """Sums into rates and percentiles."""
    setup, s, r = run.setup, run.sums, run.requests
    counters = run.scheduler.counters
    end_s = max(r.last_end_s, run.clock.now() if run.scheduler.has_work() else -np.inf, run.start_s)
    duration = end_s - run.start_s
    over = duration if duration > 0 else 1.0
    busy = s.busy_s if s.busy_s > 0 else 1.0
    hits = counters.cached_tokens / counters.queried_tokens if counters.queried_tokens else None
    live = sum(request.num_output_tokens for request in run.scheduler.requests.values()) - run.tokens_before
    return SimulationResult(
        label=setup.label or setup.cost.spec.name,
        timer=setup.timer.label,
        duration_s=duration,
        busy_share=min(s.busy_s / over, 1.0),
        steps=s.steps,
        submitted=run.submitted,
        finished=r.finished,
        cancelled=r.cancelled,
        unfinished=len(run.scheduler.requests),
        refused=tuple(sorted(run.refused.items())),
        refusal_message=run.refusal_message,
        requests_per_s=r.finished / over,
        output_tokens_per_s=(r.output_tokens + live) / over,
        total_tokens_per_s=(r.output_tokens + live + s.prefill_tokens) / over,
        goodput_per_s=r.met_slo / over if r.with_slo else None,
        ttft=percentiles_of(r.ttft_s),
        itl=r.gaps.percentiles(),
        tpot=percentiles_of(r.tpot_s),
        e2e=percentiles_of(r.e2e_s),
        queue=percentiles_of(r.queue_s),
        mean_step_s=s.busy_s / s.steps if s.steps else 0.0,
        mean_batch=s.rows / s.steps if s.steps else 0.0,
        full_batch_share=s.full_steps / s.waited_steps if s.waited_steps else None,
        preemptions=s.preemptions,
        peak_kv_usage=s.peak_kv_usage,
        prefix_hit_rate=hits,
        flops=s.flops,
        moved_bytes=s.moved_bytes,
        weight_bytes=s.weight_bytes,
        useful_share=s.useful_flops / s.flops if s.flops else 1.0,
        mfu=s.mfu(),
        mbu=s.mbu(),
        bound_shares=tuple(sorted(((name, part / busy) for name, part in run.bound_s.items()), key=lambda p: -p[1])),
        series=run.series.points(),
        tenants=tuple(
            TenantResult(name, t.submitted, t.finished, t.output_tokens, percentiles_of(t.ttft_s))
            for name, t in sorted(r.tenants.items())
        ),
        output_tokens=r.output_tokens + live,
    )
