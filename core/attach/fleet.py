"""One target or many as one set of figures: what a page shows of a server, and of a cluster of them.

    running, waiting      sum of the latest gauges            KV usage          mean, weighted by the pools' sizes
    tokens/s, FLOP/s      sum of deltas / time                TTFT, ITL, E2E    quantiles of the added histograms

Only servers that answer count; a share of several servers is never a mean of shares where its parts are known.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from core.attach.interval import Interval, Quantiles, quantiles
from core.attach.page import Histogram
from core.attach.scraper import TargetState

WINDOW_S = 30.0
ANSWERING = ("live", "restarted")
_NO_QUANTILES = Quantiles(0, None, None, None)


@dataclass(frozen=True, slots=True)
class Summary:
    """Figures of one or several servers over the last `window_s`; None where no server tells.

    Attributes:
        replicas, answering: targets, and those of them whose latest scrape went well.
        span_s: the longest time that any server was watched inside the window.
        mean_running, mean_waiting: over the window, in sum over the servers.
        full_batch_share: of the scrapes at which requests waited, those at the largest batch that seats and memory allow.
        bound_shares: share of the scrapes by binding limit, largest first; `bound_by` is the latest scrapes' most frequent.
        flops_per_s, bytes_per_s: of one device, mean over the devices.
        derived: True where any part of them was derived from token counters.
    """

    replicas: int
    answering: int
    span_s: float = 0.0
    running: float | None = None
    waiting: float | None = None
    seats: int | None = None
    kv_usage: float | None = None
    mean_running: float | None = None
    mean_waiting: float | None = None
    prompt_tokens_per_s: float | None = None
    output_tokens_per_s: float | None = None
    requests_per_s: float | None = None
    finished: float | None = None
    preemptions: float | None = None
    prefix_hit_rate: float | None = None
    steps_per_s: float | None = None
    tokens_per_step: float | None = None
    ttft: Quantiles = _NO_QUANTILES
    itl: Quantiles = _NO_QUANTILES
    e2e: Quantiles = _NO_QUANTILES
    full_batch_share: float | None = None
    bound_by: str = ""
    bound_shares: tuple[tuple[str, float], ...] = ()
    flops_per_s: float | None = None
    bytes_per_s: float | None = None
    intensity: float | None = None
    derived: bool = False


def recent(state: TargetState, now_s: float, window_s: float = WINDOW_S) -> tuple[Interval, ...]:
    """Intervals of the last `window_s`, oldest first; none of before a restart."""
    kept: list[Interval] = []
    for interval in reversed(state.intervals):
        if interval.end_s < now_s - window_s:
            break
        kept.append(interval)
        if interval.restarted:
            break
    return tuple(reversed(kept))


def merged(word: str, intervals: Iterable[Interval]) -> Histogram | None:
    """The observations of several intervals, of one server or of several."""
    total: Histogram | None = None
    for interval in intervals:
        part = interval.histograms.get(word)
        if part is not None:
            total = part if total is None else total.plus(part)
    return total


def _sum(values: Iterable[float | None]) -> float | None:
    known = [v for v in values if v is not None]
    return sum(known) if known else None


def _mean(values: Iterable[float | None]) -> float | None:
    known = [v for v in values if v is not None]
    return sum(known) / len(known) if known else None


def _rate(runs: Sequence[Sequence[Interval]], field: str) -> float | None:
    """Sum over servers of (growth of a counter / the time in which it was watched)."""
    rates = []
    for run in runs:
        grown, span_s = _sum(getattr(i, field) for i in run), sum(i.span_s for i in run)
        rates.append(grown / span_s if grown is not None and span_s > 0 else None)
    return _sum(rates)


def _over_time(runs: Sequence[Sequence[Interval]], field: str) -> float | None:
    """Sum over servers of the time-weighted mean of a gauge."""
    means = []
    for run in runs:
        pairs = [(float(v), i.span_s) for i in run if (v := getattr(i, field)) is not None]
        span_s = sum(s for _, s in pairs)
        means.append(sum(v * s for v, s in pairs) / span_s if span_s > 0 else None)
    return _sum(means)


def _kv_usage(states: Sequence[TargetState]) -> float | None:
    """Mean of the usages, weighted by the number of blocks where every server states it."""
    rows = [(s.page.gauges["kv_usage"], s.page.num_blocks) for s in states if s.page and "kv_usage" in s.page.gauges]
    if not rows:
        return None
    if all(blocks for _, blocks in rows):
        return sum(usage * (blocks or 0) for usage, blocks in rows) / sum(blocks or 0 for _, blocks in rows)
    return sum(usage for usage, _ in rows) / len(rows)


def _hit_rate(intervals: Sequence[Interval]) -> float | None:
    queries = _sum(i.prefix_queries for i in intervals)
    hits = _sum(i.prefix_hits for i in intervals if i.prefix_queries is not None)
    if queries and hits is not None:
        return min(hits / queries, 1.0)
    return _mean(i.prefix_hit_rate for i in intervals if i.prefix_queries is None)


def _roofline(runs: Sequence[Sequence[Interval]]) -> tuple[float | None, float | None, bool]:
    """Mean FLOP/s and B/s of a device over the servers, and whether any of it was derived."""
    flops, moved, derived = [], [], False
    for run in runs:
        known = [i for i in run if i.flops_per_s is not None and i.bytes_per_s is not None]
        span_s = sum(i.span_s for i in known)
        if span_s > 0:
            flops.append(sum((i.flops_per_s or 0.0) * i.span_s for i in known) / span_s)
            moved.append(sum((i.bytes_per_s or 0.0) * i.span_s for i in known) / span_s)
            derived = derived or any(i.derived for i in known)
    return _mean(flops), _mean(moved), derived


def summarise(states: Sequence[TargetState], now_s: float, window_s: float = WINDOW_S) -> Summary:
    """The figures of these targets taken together."""
    answering = [s for s in states if s.status in ANSWERING and s.page is not None]
    runs = [run for s in answering if (run := recent(s, now_s, window_s))]
    everything = [i for run in runs for i in run]
    steps = merged("iteration_tokens", everything)
    flops, moved, derived = _roofline(runs)
    queued = [i.full_batch for i in everything if i.full_batch is not None]
    bounds = Counter(i.bound_by for i in everything)
    now_bound = Counter(run[-1].bound_by for run in runs).most_common(1)
    arrived = _rate(runs, "first_tokens")
    seats = [s.seats for s in answering]
    return Summary(
        replicas=len(states),
        answering=len(answering),
        span_s=max((sum(i.span_s for i in run) for run in runs), default=0.0),
        running=_sum(s.page.gauges.get("running") for s in answering if s.page),
        waiting=_sum(s.page.gauges.get("waiting") for s in answering if s.page),
        seats=sum(s or 0 for s in seats) if seats and all(seats) else None,
        kv_usage=_kv_usage(answering),
        mean_running=_over_time(runs, "running"),
        mean_waiting=_over_time(runs, "waiting"),
        prompt_tokens_per_s=_rate(runs, "prompt_tokens"),
        output_tokens_per_s=_rate(runs, "output_tokens"),
        requests_per_s=arrived if arrived is not None else _rate(runs, "finished"),
        finished=_sum(i.finished for i in everything),
        preemptions=_sum(i.preemptions for i in everything),
        prefix_hit_rate=_hit_rate(everything),
        steps_per_s=_rate(runs, "steps"),
        tokens_per_step=steps.mean if steps is not None else None,
        ttft=quantiles(merged("ttft", everything)),
        itl=quantiles(merged("itl", everything)),
        e2e=quantiles(merged("e2e", everything)),
        full_batch_share=sum(queued) / len(queued) if queued else None,
        bound_by=now_bound[0][0] if now_bound else "",
        bound_shares=tuple((name, n / len(everything)) for name, n in bounds.most_common()),
        flops_per_s=flops,
        bytes_per_s=moved,
        intensity=flops / moved if flops is not None and moved else None,
        derived=derived,
    )
