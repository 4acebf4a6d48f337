"""Detectors of failure modes: step records in, a verdict with the step at which it began out.

Each detector states one rule over a window of steps. A window is always `WINDOW` consecutive records, so that a
single odd step is no finding; `began_at` is the first step of the first window that breaks the rule.

    ragged tail           held rows / (held + live rows)               in decode steps of a fixed batch
    padding waste         padded / (padded + prompt) tokens            in prefill steps of a fixed batch
    starvation            steps in a row without an admission          while requests wait
    prefill interference  time of a decode step with prompt tokens     / time of one without
    memory ceiling        share of steps bound by KV memory            while requests wait
    preemption thrash     preemptions                                  / ended requests
    head-of-line block    reclaimable share of the pool                while memory is said to be short
    batch churn           share of steps that requests joined          after the shape was decided
    host-bound            host time                                    / step time
    cache thrash          tokens overwritten and computed again        / those and the prefix hits
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from core.outputs import BoundBy
from core.records import StepRecord

WINDOW = 16


@dataclass(frozen=True, slots=True)
class Verdict:
    """What a detector says of a run.

    Attributes:
        found: True if the rule is broken.
        began_at: step of the first window that breaks it, None if none does.
        value: worst value of the rule's measure; None where no step could be judged.
        limit: above (or below, see `sentence`) which the rule is broken.
        unit: of value and limit, e.g. "share", "x", "steps".
        sentence: the finding in words with its numbers.
    """

    name: str
    found: bool
    began_at: int | None
    value: float | None
    limit: float
    unit: str
    sentence: str


Detector = Callable[[Sequence[StepRecord]], Verdict]


def _windows(records: Sequence[StepRecord], size: int = WINDOW) -> Iterable[Sequence[StepRecord]]:
    for first in range(0, len(records) - size + 1):
        yield records[first : first + size]


def amount(value: float, unit: str) -> str:
    """A measure in words: shares as percentages, the rest to three figures."""
    return f"{100 * value:.3g} %" if unit == "share" else f"{value:.3g}"


def _worst_window(
    name: str,
    records: Sequence[StepRecord],
    measure: Callable[[Sequence[StepRecord]], float | None],
    limit: float,
    unit: str,
    words: str,
) -> Verdict:
    """Judge every window by `measure`; `words` holds {value} and {limit}."""
    worst: float | None = None
    began: int | None = None
    for window in _windows(records):
        value = measure(window)
        if value is None:
            continue
        worst = value if worst is None else max(worst, value)
        if began is None and value > limit:
            began = window[0].step
    if worst is None:
        return Verdict(name, False, None, None, limit, unit, "no step of this run can be judged by this rule")
    sentence = words.format(value=amount(worst, unit), limit=amount(limit, unit))
    return Verdict(name, began is not None, began, worst, limit, unit, sentence)


def ragged_tail(records: Sequence[StepRecord]) -> Verdict:
    """Rows that a fixed batch holds after their end, as a share of its decode rows."""

    def measure(window: Sequence[StepRecord]) -> float | None:
        held = sum(r.padded_tokens for r in window if r.prefill_tokens == 0)
        live = sum(r.decode_tokens for r in window if r.prefill_tokens == 0)
        return held / (held + live) if held + live else None

    return _worst_window(
        "ragged tail", records, measure, 0.3, "share", "up to {value} of the decode rows were finished requests (limit {limit})"
    )


def padding_waste(records: Sequence[StepRecord]) -> Verdict:
    """Prompt positions computed only to fill a rectangle; every prefill step is judged by itself."""
    worst: float | None = None
    began: int | None = None
    limit = 0.3
    for r in records:
        if r.prefill_tokens == 0:
            continue
        share = r.padded_tokens / (r.padded_tokens + r.prefill_tokens + r.decode_tokens)
        worst = share if worst is None else max(worst, share)
        if began is None and share > limit:
            began = r.step
    if worst is None:
        return Verdict("padding waste", False, None, None, limit, "share", "no prefill step in this run")
    words = f"up to {amount(worst, 'share')} of the positions of a prefill step were padding (limit {amount(limit, 'share')})"
    return Verdict("padding waste", began is not None, began, worst, limit, "share", words)


def starvation(records: Sequence[StepRecord], limit_steps: int = 48) -> Verdict:
    """The longest stretch of steps in which requests waited and none was admitted."""
    longest, run, run_start, began = 0, 0, 0, None
    for r in records:
        if r.num_waiting > 0 and r.admitted == 0:
            run_start = r.step if run == 0 else run_start
            run += 1
            longest = max(longest, run)
            if run > limit_steps and began is None:
                began = run_start
        else:
            run = 0
    words = f"the queue stood still for {longest} steps in a row (limit {limit_steps})"
    return Verdict("starvation", began is not None, began, float(longest), float(limit_steps), "steps", words)


def prefill_interference(records: Sequence[StepRecord]) -> Verdict:
    """How much longer a step gets for the decoding requests when prompt tokens run inside it."""
    pure = [r.duration_s for r in records if r.decode_requests and not r.prefill_tokens]
    limit = 5.0
    name = "prefill interference"
    if len(pure) < 4:
        return Verdict(name, False, None, None, limit, "x", "too few decode-only steps to compare with")
    base = statistics.median(pure)
    worst, began = 1.0, None
    for r in records:
        if r.decode_requests and r.prefill_tokens and base > 0:
            ratio = r.duration_s / base
            worst = max(worst, ratio)
            if ratio > limit and began is None:
                began = r.step
    words = f"a decode step took up to {worst:.3g} times the median decode-only step of {base * 1e3:.3g} ms (limit {limit:.3g})"
    return Verdict(name, began is not None, began, worst, limit, "x", words)


def memory_ceiling(records: Sequence[StepRecord]) -> Verdict:
    """Share of the steps with a queue in which KV memory set the batch."""

    def measure(window: Sequence[StepRecord]) -> float | None:
        queued = [r for r in window if r.num_waiting > 0]
        if len(queued) < WINDOW // 2:
            return None
        return sum(r.bound_by == BoundBy.MEMORY.value for r in queued) / len(queued)

    words = "KV memory set the batch in up to {value} of the steps with a queue (limit {limit})"
    return _worst_window("memory ceiling", records, measure, 0.5, "share", words)


def preemption_thrash(records: Sequence[StepRecord]) -> Verdict:
    """Preemptions for each request that ended, over four windows."""
    worst, began, limit = 0.0, None, 1.0
    for window in _windows(records, 4 * WINDOW):
        lost = sum(r.preempted for r in window)
        ratio = lost / max(sum(r.finished for r in window), 1)
        worst = max(worst, ratio)
        if lost >= 4 and ratio > limit and began is None:
            began = next(r.step for r in window if r.preempted)
    words = f"up to {worst:.3g} preemptions for each request that ended (limit {limit:.3g})"
    return Verdict("preemption thrash", began is not None, began, worst, limit, "x", words)


def head_of_line(records: Sequence[StepRecord]) -> Verdict:
    """Blocks that lie idle while the head of the queue is said to wait for memory."""

    def measure(window: Sequence[StepRecord]) -> float | None:
        stuck = [r for r in window if r.num_waiting > 1 and r.admitted == 0 and r.bound_by == BoundBy.MEMORY.value]
        if len(stuck) < WINDOW:
            return None
        return min((r.blocks_free + r.blocks_cached) / max(r.blocks_free + r.blocks_cached + r.blocks_live, 1) for r in stuck)

    words = "{value} of the pool was free or reclaimable while the head of the queue waited for memory (limit {limit})"
    return _worst_window("head-of-line blocking", records, measure, 0.15, "share", words)


def batch_churn(records: Sequence[StepRecord]) -> Verdict:
    """Share of the steps that requests joined after the shape of the step was decided."""

    def measure(window: Sequence[StepRecord]) -> float | None:
        return sum(r.late_joins > 0 for r in window) / len(window)

    words = (
        "requests joined after the shape was decided in up to {value} of the steps, so a captured shape was void (limit {limit})"
    )
    return _worst_window("batch churn", records, measure, 0.25, "share", words)


def host_bound(records: Sequence[StepRecord]) -> Verdict:
    """Host time as a share of the step."""

    def measure(window: Sequence[StepRecord]) -> float | None:
        total = sum(r.duration_s for r in window)
        return sum(r.host_s for r in window) / total if total else None

    words = "scheduling, preparation, sampling and transfer took up to {value} of the step time (limit {limit})"
    return _worst_window("host-bound", records, measure, 0.3, "share", words)


def cache_thrash(records: Sequence[StepRecord]) -> Verdict:
    """Of the prompt tokens that had been in the prefix cache, the share that was overwritten and computed again."""
    name, limit = "cache thrash", 0.3
    worst: float | None = None
    began = None
    for window in _windows(records, 2 * WINDOW):
        again = sum(r.refaulted_tokens for r in window)
        known = again + sum(r.cached_tokens for r in window)
        if known == 0 or sum(r.admitted for r in window) < 3:
            continue
        share = again / known
        worst = share if worst is None else max(worst, share)
        if share > limit and began is None:
            began = window[0].step
    if worst is None:
        return Verdict(name, False, None, None, limit, "share", "no admission found anything that had been in the prefix cache")
    words = (
        f"up to {amount(worst, 'share')} of the tokens that had been in the cache were overwritten and computed again"
        f" (limit {amount(limit, 'share')})"
    )
    return Verdict(name, began is not None, began, worst, limit, "share", words)


DETECTORS: dict[str, Detector] = {
    "ragged tail": ragged_tail,
    "padding waste": padding_waste,
    "starvation": starvation,
    "prefill interference": prefill_interference,
    "memory ceiling": memory_ceiling,
    "preemption thrash": preemption_thrash,
    "head-of-line blocking": head_of_line,
    "batch churn": batch_churn,
    "host-bound": host_bound,
    "cache thrash": cache_thrash,
}


LIMIT_REASONS: dict[str, str] = {
    "ragged tail": "lengths spread evenly from half the longest upwards leave 0.25 of the decode rows idle; more is ragged",
    "padding waste": "prompts spread evenly from half the longest upwards leave 0.25 of the positions empty; more is waste",
    "starvation": "three windows of steps: an answer of that many tokens would have come and gone meanwhile",
    "prefill interference": "raised from 2 after runs on a CPU, where chunks of 16 tokens still made steps of up to 2.4 times a"
    " decode-only one; a device with idle arithmetic units would bear a lower limit",
    "memory ceiling": "memory, and not the load, set the batch in most of the steps",
    "preemption thrash": "each request that ended cost another one its blocks; at least 4 preemptions in 64 steps",
    "head-of-line blocking": "less than that is the ordinary rest that is too small for anybody",
    "batch churn": "one step in four; below that most launches keep the shape in which they were decided",
    "host-bound": "a device twice as fast would then shorten the step by 0.35 at the most, not by 0.5",
    "cache thrash": "nearly one known token in three is computed twice",
}
"""Why each limit is where it is. All are conventions: a run below one may suffer, a run above one may be content."""


def judge(records: Sequence[StepRecord]) -> tuple[Verdict, ...]:
    """Every detector's verdict on one run."""
    return tuple(detector(records) for detector in DETECTORS.values())
