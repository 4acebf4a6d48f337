"""Measured steps beside a prediction: what a step was, how far off its price is, and what only a whole run shows.

record -> Observation (sums, seconds)  --timer-->  Residual  -->  ErrorSummary | run_factor
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import median

import numpy as np

from core.cost_model import CostModel, StepSums
from core.records import StepRecord
from core.step_timer import StepTimer, step_seconds

LEAST_STEPS = 12
"""Fewer steps say nothing about a machine."""


@dataclass(frozen=True, slots=True)
class Observation:
    """One measured step: its sums, and the seconds in and outside the forward pass."""

    step: int
    run: StepSums
    swap_bytes: float
    forward_s: float
    host_s: float
    prefill_rows: int

    @property
    def total_s(self) -> float:
        return self.forward_s + self.host_s

    @property
    def kind(self) -> str:
        """ "decode", "prefill" or "mixed"."""
        if not self.prefill_rows:
            return "decode"
        return "prefill" if self.prefill_rows == self.run.rows else "mixed"


def observe(record: StepRecord, model: CostModel) -> Observation | None:
    """Read a record back into sums; None for steps that cannot be read (padded, or nothing ran).

    A record holds FLOPs and bytes; attended tokens and KV slots are those divided by the model's own figures.
    """
    tokens = record.prefill_tokens + record.decode_tokens
    rows = record.prefill_requests + record.decode_requests
    if not rows or record.padded_tokens or record.duration_s <= 0 or record.forward_s <= 0:
        return None
    sampled = min(record.output_tokens, rows)
    attention = record.flops - model.layer_flops_per_token * tokens - model.head_flops * sampled
    return Observation(
        step=record.step,
        run=StepSums(
            rows=rows,
            query_tokens=tokens,
            sampled=sampled,
            context_tokens=round(record.kv_read_bytes / model.kv_read_per_token),
            attended_tokens=max(round(attention / model.attention_flops_per_pair), 0),
        ),
        swap_bytes=record.swap_bytes,
        forward_s=record.forward_s,
        host_s=max(record.duration_s - record.forward_s, 0.0),
        prefill_rows=record.prefill_requests,
    )


@dataclass(frozen=True, slots=True)
class Residual:
    """One step, measured and predicted, s."""

    step: int
    kind: str
    rows: int
    query_tokens: int
    context_tokens: int
    measured_s: float
    predicted_s: float

    @property
    def error(self) -> float:
        """(predicted - measured) / measured."""
        return self.predicted_s / self.measured_s - 1.0


@dataclass(frozen=True, slots=True)
class ErrorSummary:
    """Absolute relative errors of a set of steps: median and 90th percentile, and the median signed error."""

    steps: int
    median: float
    p90: float
    bias: float


def between_steps_s(records: Sequence[StepRecord]) -> float:
    """Mean time between the end of a step and the start of the next while requests run, s; 0 if nothing shows it.

    The longest hundredth is left out: there the engine was held or the machine did something else.
    """
    pairs = pairwise(records)
    busy = [(a, b) for a, b in pairs if b.step == a.step + 1 and a.num_running > a.finished and a.kind == "measured"]
    gaps = np.sort(np.array([max(b.start_s - a.start_s - a.duration_s, 0.0) for a, b in busy]))
    kept = gaps[: max(len(gaps) - max(len(gaps) // 100, 1), 0)]
    return float(kept.mean()) if len(kept) else 0.0


def run_factor(rows: Sequence[Residual]) -> float:
    """Seconds of all steps / seconds predicted for them, the most surprising hundredth left out: a held engine, a hiccup."""
    ordered = sorted(rows, key=lambda r: r.measured_s / r.predicted_s)
    kept = ordered[: len(ordered) - max(len(ordered) // 100, 1)]
    predicted_s = sum(r.predicted_s for r in kept)
    return sum(r.measured_s for r in kept) / predicted_s if predicted_s > 0 else 1.0


def like_steps_differ(observations: Sequence[Observation]) -> float | None:
    """Median relative difference of neighbouring decode steps with as many rows; None where there are too few.

    The later step has one more cached token a row, which is nothing beside what the machine does differently: no prediction
    of a single step can be better than about this.
    """
    pairs = [
        (a.total_s, b.total_s)
        for a, b in pairwise(observations)
        if b.step == a.step + 1 and a.kind == b.kind == "decode" and a.run.rows == b.run.rows
    ]
    return median(abs(a - b) / min(a, b) for a, b in pairs) if len(pairs) >= LEAST_STEPS else None


def residuals(observations: Sequence[Observation], timer: StepTimer) -> list[Residual]:
    """Each step with its prediction by any timer."""
    return [
        Residual(
            o.step,
            o.kind,
            o.run.rows,
            o.run.query_tokens,
            o.run.context_tokens,
            o.total_s,
            step_seconds(timer.predict(o.run, o.swap_bytes)),
        )
        for o in observations
    ]


def summarise_errors(rows: Sequence[Residual]) -> ErrorSummary:
    """Median, 90th percentile and bias of relative errors."""
    errors = np.array([r.error for r in rows], dtype=np.float64)
    sizes = np.abs(errors)
    return ErrorSummary(len(rows), float(np.median(sizes)), float(np.percentile(sizes, 90)), float(np.median(errors)))
