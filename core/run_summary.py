"""A run in a dozen numbers: what one compares when a knob has changed.

Throughput is useful output over the time from the first step's start to the last step's end, idle gaps included.
Latencies are those of ended requests, by the definitions of `core.latency`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields

import numpy as np

from core.latency import percentiles
from core.records import RequestRecord, StepRecord


@dataclass(frozen=True, slots=True)
class RunSummary:
    """Figures of one run; None where there is nothing to measure.

    Attributes:
        kind: "measured", "predicted" or "replayed", as its steps say.
        mean_batch: rows a step.
        useful_share: useful FLOPs / all FLOPs (1 without padding and held rows).
        full_batch_share: of the steps in which requests waited.
        host_share: time outside the forward pass / time of the steps.
    """

    kind: str
    steps: int
    duration_s: float
    requests: int
    output_tokens: int
    output_tokens_per_s: float | None
    mean_batch: float | None
    useful_share: float | None
    full_batch_share: float | None
    host_share: float | None
    preemptions: int
    prefix_hit_share: float | None
    mean_step_s: float | None
    ttft_p50_s: float | None
    ttft_p99_s: float | None
    itl_p50_s: float | None
    itl_p99_s: float | None
    tpot_p50_s: float | None
    e2e_p50_s: float | None
    e2e_p99_s: float | None

    def value(self, name: str) -> float | None:
        """A figure by its name.

        Raises:
            KeyError: for an unknown name.
        """
        if name not in {f.name for f in fields(self)}:
            raise KeyError(f"no figure {name!r} in a run summary")
        value = getattr(self, name)
        return None if value is None else float(value)


LOWER_IS_BETTER = frozenset(
    (
        "steps",
        "duration_s",
        "host_share",
        "preemptions",
        "mean_step_s",
        "ttft_p50_s",
        "ttft_p99_s",
        "itl_p50_s",
        "itl_p99_s",
        "tpot_p50_s",
        "e2e_p50_s",
        "e2e_p99_s",
    )
)


def _share(part: float, whole: float) -> float | None:
    return part / whole if whole > 0 else None


def summarise(records: Sequence[StepRecord], requests: Sequence[RequestRecord]) -> RunSummary:
    """Sum up one run.

    Args:
        records: its steps, oldest first.
        requests: its ended requests, any order.
    """
    duration_s = records[-1].start_s + records[-1].duration_s - records[0].start_s if records else 0.0
    busy_s = sum(r.duration_s for r in records)
    output = sum(r.output_tokens for r in records)
    waited = [r for r in records if r.num_waiting + r.num_preempted > 0]
    rows = sum(r.prefill_requests + r.decode_requests for r in records)
    cached = sum(r.cached_tokens for r in records)

    def of(values: list[float]) -> tuple[float | None, float | None]:
        found = percentiles(np.asarray(values, dtype=np.float64))
        return found.p50, found.p99

    ttft = of([r.ttft_s for r in requests if r.ttft_s is not None])
    itl = of([gap for r in requests for gap in r.itl_s])
    tpot = of([r.tpot_s for r in requests if r.tpot_s is not None])
    e2e = of([r.e2e_s for r in requests if r.finish_reason in ("stop", "length", "capacity")])
    return RunSummary(
        kind=records[-1].kind if records else "measured",
        steps=len(records),
        duration_s=duration_s,
        requests=len(requests),
        output_tokens=output,
        output_tokens_per_s=_share(output, duration_s),
        mean_batch=_share(rows, len(records)),
        useful_share=_share(sum(r.useful_flops for r in records), sum(r.flops for r in records)),
        full_batch_share=_share(sum(r.full_batch for r in waited), len(waited)),
        host_share=_share(sum(r.host_s for r in records), busy_s),
        preemptions=sum(r.preempted for r in records),
        prefix_hit_share=_share(cached, cached + sum(r.prefill_tokens for r in records)),
        mean_step_s=_share(busy_s, len(records)),
        ttft_p50_s=ttft[0],
        ttft_p99_s=ttft[1],
        itl_p50_s=itl[0],
        itl_p99_s=itl[1],
        tpot_p50_s=tpot[0],
        e2e_p50_s=e2e[0],
        e2e_p99_s=e2e[1],
    )


def improvement(before: RunSummary, after: RunSummary, name: str) -> float | None:
    """How many times better `after` is in one figure (above 1 is better); None where it cannot be said."""
    a, b = before.value(name), after.value(name)
    if a is None or b is None or a <= 0 or b <= 0:
        return None
    return a / b if name in LOWER_IS_BETTER else b / a
