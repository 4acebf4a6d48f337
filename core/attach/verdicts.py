"""Detectors of failure modes on a metrics page: the same names as `core.detectors`, judged from scrape intervals.

A page shows sums over a few seconds, not steps, so each rule here is the one that such sums can decide:

    memory ceiling         scrapes with a queue at which KV memory bound the batch     share of the last minute
    preemption thrash      preemptions                                                 / ended requests
    starvation             seconds in a row with a queue and without a first token
    prefill interference   p99 of the gaps between tokens                              / their median, while prompts ran
    head-of-line blocking  scrapes with a queue, free seats, free KV, steps half empty share of the last minute
    host-bound             time that the roofline does not explain                     / time with running requests
    cache thrash           fall of the prefix hit rate                                 against its best minute, memory full

`began_at` is an index into the state's intervals, of which the last `JUDGED` are looked at.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from core.attach.fleet import merged
from core.attach.interval import FULL_KV_USAGE, Interval
from core.attach.scraper import TargetState
from core.detectors import Verdict
from core.devices import DeviceSpec
from core.outputs import BoundBy

WINDOW_S = 60.0
LEAST_SCRAPES = 6
JUDGED = 150
UNSEEN = ("ragged tail", "padding waste", "batch churn")
"""Failure modes that no metrics page shows: they lie inside a step."""


def _unjudged(name: str, limit: float, unit: str, why: str) -> Verdict:
    return Verdict(name, False, None, None, limit, unit, why)


def _windows(intervals: Sequence[Interval], window_s: float = WINDOW_S) -> list[tuple[int, Sequence[Interval]]]:
    """(index of its first interval, intervals) of each window that ends at an interval, oldest first."""
    found, first = [], 0
    for last in range(len(intervals)):
        while intervals[last].end_s - intervals[first].start_s > window_s:
            first += 1
        if last - first + 1 >= LEAST_SCRAPES:
            found.append((first, intervals[first : last + 1]))
    return found


def _worst(
    name: str,
    intervals: Sequence[Interval],
    measure: Callable[[Sequence[Interval]], float | None],
    limit: float,
    unit: str,
    words: str,
    nothing: str,
) -> Verdict:
    """Judge every window; `words` holds {value} and {limit}, `nothing` is said where no window can be judged."""
    worst: float | None = None
    began: int | None = None
    for first, window in _windows(intervals):
        value = measure(window)
        if value is None:
            continue
        worst = value if worst is None else max(worst, value)
        if began is None and value > limit:
            began = first
    if worst is None:
        return _unjudged(name, limit, unit, nothing)
    return Verdict(name, began is not None, began, worst, limit, unit, words.format(value=f"{worst:.3g}", limit=f"{limit:.3g}"))


def memory_ceiling(intervals: Sequence[Interval]) -> Verdict:
    """Share of the scrapes with a queue at which KV memory bound the batch."""

    def measure(window: Sequence[Interval]) -> float | None:
        queued = [i for i in window if i.waiting]
        if len(queued) < LEAST_SCRAPES:
            return None
        return sum(i.bound_by == BoundBy.MEMORY.value for i in queued) / len(queued)

    words = "KV memory bound the batch at up to {value} of the scrapes with a queue (limit {limit})"
    return _worst("memory ceiling", intervals, measure, 0.5, "share", words, "requests waited at too few scrapes")


def preemption_thrash(intervals: Sequence[Interval]) -> Verdict:
    """Preemptions for each request that ended."""

    def measure(window: Sequence[Interval]) -> float | None:
        lost = sum(i.preemptions or 0.0 for i in window)
        if all(i.preemptions is None for i in window):
            return None
        return 0.0 if lost < 4 else lost / max(sum(i.finished or 0.0 for i in window), 1.0)

    words = "up to {value} preemptions for each request that ended (limit {limit})"
    return _worst("preemption thrash", intervals, measure, 1.0, "x", words, "the server exports no preemptions")


def starvation(intervals: Sequence[Interval], limit_s: float = 20.0) -> Verdict:
    """The longest time in which requests waited and none got its first token."""
    name = "starvation"
    if all(i.first_tokens is None for i in intervals):
        return _unjudged(name, limit_s, "s", "the server exports no time to first token")
    longest = stood = 0.0
    start = 0
    began: int | None = None
    for index, i in enumerate(intervals):
        if i.waiting and not i.first_tokens:
            start = index if stood == 0 else start
            stood += i.span_s
            longest = max(longest, stood)
            began = start if began is None and stood > limit_s else began
        else:
            stood = 0.0
    words = f"the queue stood still for {longest:.3g} s in a row (limit {limit_s:.3g} s)"
    return Verdict(name, began is not None, began, longest, limit_s, "s", words)


def prefill_interference(intervals: Sequence[Interval]) -> Verdict:
    """Tail of the gaps between tokens over their median while prompts ran."""

    def measure(window: Sequence[Interval]) -> float | None:
        gaps = merged("itl", (i for i in window if i.prompt_tokens))
        if gaps is None or gaps.count < 100:
            return None
        middle, tail = gaps.quantile(0.5), gaps.quantile(0.99)
        return tail / middle if middle and tail is not None else None

    words = "while prompts ran, the p99 gap between tokens was up to {value} times the median (limit {limit})"
    nothing = "fewer than 100 gaps between tokens in a minute with prompts"
    return _worst("prefill interference", intervals, measure, 5.0, "x", words, nothing)


def head_of_line(intervals: Sequence[Interval], seats: int | None, budget: int | None) -> Verdict:
    """Scrapes at which requests waited though seats, KV and the token budget had room."""
    name = "head-of-line blocking"
    if seats is None or budget is None:
        return _unjudged(name, 0.5, "share", "needs the server's max_num_seqs and max_num_batched_tokens; give them")

    def measure(window: Sequence[Interval]) -> float | None:
        queued = [i for i in window if i.waiting and i.running is not None and i.kv_usage is not None]
        if len(queued) < LEAST_SCRAPES:
            return None
        stuck = [
            i
            for i in queued
            if (i.running or 0) < seats
            and (i.kv_usage or 0) < FULL_KV_USAGE
            and (i.mean_tokens_per_step or budget) < budget / 2
            and not i.preemptions
        ]
        return len(stuck) / len(queued)

    words = "requests waited at up to {value} of the scrapes though seats, KV and token budget had room (limit {limit})"
    return _worst(name, intervals, measure, 0.5, "share", words, "requests waited at too few scrapes")


def host_bound(intervals: Sequence[Interval], device: DeviceSpec | None) -> Verdict:
    """Time that neither the device's memory nor its arithmetic explains, while requests ran all the time."""
    name, limit = "host-bound", 0.7
    if device is None:
        return _unjudged(name, limit, "share", "needs the server's device; choose one")

    def measure(window: Sequence[Interval]) -> float | None:
        busy = [i for i in window if i.running and i.flops_per_s is not None and i.bytes_per_s is not None]
        span_s = sum(i.span_s for i in busy)
        if len(busy) < LEAST_SCRAPES or not span_s:
            return None
        explained_s = sum(
            i.span_s * max((i.flops_per_s or 0) / device.peak_flops, (i.bytes_per_s or 0) / device.memory_bandwidth) for i in busy
        )
        return max(1.0 - explained_s / span_s, 0.0)

    words = "the roofline explains all but {value} of the time with running requests (limit {limit}): host, launches, kernels"
    return _worst(name, intervals, measure, limit, "share", words, "no FLOP and byte counters, and no model to derive them from")


def cache_thrash(intervals: Sequence[Interval]) -> Verdict:
    """How far the prefix hit rate fell below its best minute while the pool was full."""
    name, limit = "cache thrash", 0.5
    best = 0.0
    worst: float | None = None
    began: int | None = None
    for first, window in _windows(intervals):
        queries, hits = sum(i.prefix_queries or 0 for i in window), sum(i.prefix_hits or 0 for i in window)
        if queries <= 0:
            continue
        rate = hits / queries
        best = max(best, rate)
        full = sum((i.kv_usage or 0) >= FULL_KV_USAGE for i in window) * 2 > len(window)
        if best < 0.1 or not full:
            continue
        lost = 1.0 - rate / best
        worst = lost if worst is None else max(worst, lost)
        began = first if began is None and lost > limit else began
    if worst is None:
        return _unjudged(name, limit, "share", "no minute with prefix hits and a full pool")
    words = f"with a full pool the prefix hit rate fell by up to {worst:.3g} of its best minute (limit {limit:.3g})"
    return Verdict(name, began is not None, began, worst, limit, "share", words)


def judge(state: TargetState, *, budget: int | None = None) -> tuple[Verdict, ...]:
    """Every detector on one server; `budget` is its max_num_batched_tokens, by default what it states."""
    intervals = state.intervals[-JUDGED:]
    offset = len(state.intervals) - len(intervals)
    device = state.target.device if state.target else None
    budget = budget or (state.page.max_num_batched_tokens if state.page else None)
    found = (
        memory_ceiling(intervals),
        preemption_thrash(intervals),
        starvation(intervals),
        prefill_interference(intervals),
        head_of_line(intervals, state.seats, budget),
        host_bound(intervals, device),
        cache_thrash(intervals),
        *(_unjudged(name, 0.0, "", "lies inside a step; a metrics page does not show it") for name in UNSEEN),
    )
    return tuple(replace(v, began_at=v.began_at + offset) if v.began_at is not None and offset else v for v in found)
