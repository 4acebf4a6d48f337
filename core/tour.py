"""The guided tour: from one sequence to the batch at its ceiling, each stop a change of the live load.

    1 sequence -> 4 share the read -> 16 -> past the ridge -> a batch that is fixed -> decided at every step -> the ceiling

A stop names its load and knobs whole, so the order in which stops are visited does not matter; what was measured at
each is summed up from the records of the steps since it began.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean, median
from typing import Any

from core.config import BatchPolicy, CacheConfig, SchedulerConfig
from core.lengths import LengthSpec
from core.load_spec import ArrivalProcess, LoadSpec, PromptKind
from core.records import StepRecord

LEAST_STEPS = 12
_EVEN = LengthSpec.fixed(96)
_SHORT = LengthSpec.fixed(32)
_VARIED = LengthSpec.lognormal(48, 0.9, 8, 320)


def _users(users: int, prompt: LengthSpec = _SHORT, output: LengthSpec = _EVEN) -> LoadSpec:
    return LoadSpec(
        process=ArrivalProcess.CLOSED_LOOP, users=users, prompt_tokens=prompt, output_tokens=output,
        prompt_kind=PromptKind.TEXT, ignore_eos=True,
    )  # fmt: skip


@dataclass(frozen=True, slots=True)
class Stop:
    """One stop of the tour.

    Attributes:
        title: what it shows, in a line.
        happens: what the engine does now, and why.
        look_at: where to see it.
        scheduler, cache: knobs over the defaults of those classes.
    """

    title: str
    happens: str
    look_at: str
    load: LoadSpec
    scheduler: Mapping[str, Any] = field(default_factory=dict)
    cache: Mapping[str, Any] = field(default_factory=dict)

    def configs(self) -> tuple[SchedulerConfig, CacheConfig]:
        """The knobs of this stop."""
        return SchedulerConfig(**self.scheduler), CacheConfig(**self.cache)


STOPS: tuple[Stop, ...] = (
    Stop(
        "One sequence",
        "A decode step reads every weight once and makes one token. The arithmetic is over long before the read is.",
        "One bar in the picture; remember the time of a step.",
        _users(1),
    ),
    Stop(
        "Four share one read",
        "The same read of the weights now makes four tokens. Each more sequence adds only its own KV traffic and arithmetic.",
        "Tokens a second rise by far more than the time of a step.",
        _users(4),
    ),
    Stop(
        "Sixteen",
        "The batch nears the ridge point: where reading the weights and computing with them take the same time.",
        "The time of a step begins to grow; the gain of each sequence shrinks.",
        _users(16),
    ),
    Stop(
        "Past the ridge",
        "Arithmetic now sets the time: twice the batch is nearly twice the step. Throughput levels off and the gap between"
        " tokens grows.",
        "Compare tokens a second and the time of a step with the stop before; then open Roofline.",
        _users(64),
        {"max_num_seqs": 64},
    ),
    Stop(
        "A batch that is fixed at admission",
        "Answers differ in length. A fixed batch holds every seat until its longest member ends and computes on rows that are"
        " over; newcomers wait outside.",
        "Gaps between the bars: all seats come free together. Useful work falls below 100 %.",
        _users(24, output=_VARIED),
        {"max_num_seqs": 16, "batch_policy": BatchPolicy.FIXED},
    ),
    Stop(
        "A batch decided at every step",
        "The same load and seats. A finished request leaves at once, and the next one takes its seat in the very next step.",
        "No gaps; tokens a second against the stop before.",
        _users(24, output=_VARIED),
        {"max_num_seqs": 16},
    ),
    Stop(
        "The batch at its ceiling",
        "Seats are plenty, but the KV pool is small: the batch is as large as memory lets it be. When it overflows, the youngest"
        " request gives its blocks back and is computed again later.",
        "KV use near 100 %, bound by KV memory, hollow bars where requests were preempted.",
        _users(64, LengthSpec.fixed(128), LengthSpec.fixed(128)),
        {"max_num_seqs": 64},
        {"num_blocks": 256},
    ),
)


@dataclass(frozen=True, slots=True)
class Measured:
    """What the steps of a stop came to: rows a step, tokens/s, median time of a decode step (s), useful share of FLOPs."""

    steps: int
    mean_rows: float
    tokens_per_s: float
    step_s: float | None
    useful_share: float | None
    bound_by: str


def measured(history: Sequence[StepRecord]) -> Measured | None:
    """Sum up the steps since a stop began; None while they are too few to say anything."""
    ran = [r for r in history if r.prefill_requests + r.decode_requests]
    if len(ran) < LEAST_STEPS:
        return None
    span_s = ran[-1].start_s + ran[-1].duration_s - ran[0].start_s
    plain = [r.duration_s for r in ran if r.decode_requests and not r.prefill_tokens]
    bounds = [r.bound_by for r in ran]
    flops = sum(r.flops for r in ran)
    return Measured(
        steps=len(ran),
        mean_rows=fmean(r.prefill_requests + r.decode_requests for r in ran),
        tokens_per_s=sum(r.output_tokens for r in ran) / span_s if span_s > 0 else 0.0,
        step_s=median(plain) if plain else None,
        useful_share=sum(r.useful_flops for r in ran) / flops if flops else None,
        bound_by=max(sorted(set(bounds)), key=bounds.count),
    )
