"""Watched servers as data frames: scheduler over time, latency over time, scrapes on a roofline, replicas side by side.

    interval  ->  one row at `ago_s` (seconds before now, negative), one dot on the roofline of its device

The specifications that draw them are in `core.charts.attach_spec`.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Sequence
from statistics import median

import pandas as pd

from core.attach.fleet import ANSWERING, recent
from core.attach.interval import Interval
from core.attach.scraper import TargetState
from core.charts import formats
from core.charts.roofline import ages

SHOWN_S = 300.0
MAX_DOTS = 400
MAX_CELLS = 1800

MEASURES: dict[str, Callable[[Interval], float | None]] = {
    "KV usage": lambda i: i.kv_usage,
    "running": lambda i: i.running,
    "waiting": lambda i: i.waiting,
    "output tokens/s": lambda i: i.output_tokens_per_s,
    "ITL p95, ms": lambda i: None if i.itl.p95 is None else 1e3 * i.itl.p95,
    "preemptions": lambda i: i.preemptions,
}
"""What replicas can be compared by."""


Bins = dict[int, dict[str, list[Interval]]]
"""Bin of the scraper's clock -> server -> its intervals; bins stay where they are while time goes on."""


def _ended_in(states: Sequence[TargetState], now_s: float, shown_s: float, width: float) -> Bins:
    """Intervals by the bin in which they ended, for what is counted."""
    found: Bins = defaultdict(lambda: defaultdict(list))
    for state in states:
        for interval in recent(state, now_s, shown_s):
            found[math.floor(interval.end_s / width)][state.name].append(interval)
    return found


def _lasting_in(states: Sequence[TargetState], now_s: float, shown_s: float, width: float) -> Bins:
    """Intervals by every bin in which they lasted, for gauges and rates, so that no server is missing in between.

    The newest bin is the last one that every answering server has reached.
    """
    found: Bins = defaultdict(lambda: defaultdict(list))
    ends = [s.scraped_s for s in states if s.scraped_s is not None and s.status in ANSWERING and s.intervals]
    last = math.floor(min(ends, default=now_s) / width - 1e-9)
    for state in states:
        for interval in recent(state, now_s, shown_s):
            first = math.floor(interval.start_s / width + 1e-9)
            for index in range(first, min(math.floor(interval.end_s / width - 1e-9), last) + 1):
                found[index][state.name].append(interval)
    return found


def width_s(states: Sequence[TargetState], shown_s: float = SHOWN_S) -> float:
    """Width of a bin: the median scrape interval, and at most 150 bins."""
    spans = [s.intervals[-1].span_s for s in states if s.intervals]
    return max(median(spans) if spans else 2.0, shown_s / 150)


_SCHEDULER_COLUMNS = ("ago_s", "running", "waiting", "seats", "kv_usage", "preemptions", "full", "tokens_a_step")


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


def _mean_of(values: Sequence[float]) -> float | None:
    return _mean(values) if values else None


def scheduler_frame(states: Sequence[TargetState], now_s: float, seats: int | None, shown_s: float = SHOWN_S) -> pd.DataFrame:
    """Rows over time: requests and preemptions in sum over the servers, KV usage, full batches and tokens a step as means."""
    width = width_s(states, shown_s)
    counted = _ended_in(states, now_s, shown_s, width)
    rows = []
    for index, servers in sorted(_lasting_in(states, now_s, shown_s, width).items()):
        runs = list(servers.values())

        def total(field: str, runs: list[list[Interval]] = runs) -> float | None:
            parts = [_mean(known) for run in runs if (known := [getattr(i, field) for i in run if getattr(i, field) is not None])]
            return sum(parts) if parts else None

        usage = total("kv_usage")
        rows.append(
            {
                "ago_s": min((index + 1) * width - now_s, 0.0),
                "running": total("running"),
                "waiting": total("waiting"),
                "seats": float(seats) if seats is not None else None,
                "kv_usage": None if usage is None else usage / len(runs),
                "preemptions": sum(i.preemptions or 0.0 for run in counted.get(index, {}).values() for i in run),
                "full": _mean_of([float(i.full_batch) for run in runs for i in run if i.full_batch is not None]),
                "tokens_a_step": _mean_of([i.mean_tokens_per_step for run in runs for i in run if i.mean_tokens_per_step]),
            }
        )
    return pd.DataFrame(rows, columns=list(_SCHEDULER_COLUMNS))


def tokens_frame(states: Sequence[TargetState], now_s: float, shown_s: float = SHOWN_S) -> pd.DataFrame:
    """Rows (ago_s, name, tokens_per_s): output tokens a second by server."""
    width = width_s(states, shown_s)
    rows = [
        (min((index + 1) * width - now_s, 0.0), name, _mean(known))
        for index, servers in sorted(_lasting_in(states, now_s, shown_s, width).items())
        for name, run in servers.items()
        if (known := [i.output_tokens_per_s for i in run if i.output_tokens_per_s is not None])
    ]
    return pd.DataFrame(rows[-MAX_CELLS:], columns=["ago_s", "name", "tokens_per_s"])


def latency_frame(states: Sequence[TargetState], now_s: float, shown_s: float = SHOWN_S) -> pd.DataFrame:
    """Rows (ago_s, figure, rank, seconds) from the added histograms of each bin; a bin without observations has none."""
    width = max(width_s(states, shown_s), shown_s / 60)
    rows: list[tuple[float, str, str, float]] = []
    for index, servers in sorted(_ended_in(states, now_s, shown_s, width).items()):
        for word, label in (("ttft", "TTFT"), ("itl", "ITL"), ("e2e", "E2E")):
            parts = [i.histograms[word] for run in servers.values() for i in run if word in i.histograms]
            if not parts:
                continue
            total = parts[0]
            for part in parts[1:]:
                total = total.plus(part)
            for rank, share in (("p50", 0.5), ("p95", 0.95)):
                value = total.quantile(share)
                if value:
                    rows.append((min((index + 1) * width - now_s, 0.0), label, rank, value))
    return pd.DataFrame(rows, columns=["ago_s", "figure", "rank", "seconds"])


def replica_frame(states: Sequence[TargetState], now_s: float, measure: str, shown_s: float = SHOWN_S) -> pd.DataFrame:
    """Cells (ago_s, until_s, name, value, text): one row a server, one column a bin."""
    value_of = MEASURES[measure]
    width = max(width_s(states, shown_s), shown_s * len(states) / MAX_CELLS)
    rows = []
    for index, servers in sorted(_lasting_in(states, now_s, shown_s, width).items()):
        for name, run in servers.items():
            known = [v for i in run if (v := value_of(i)) is not None]
            if known:
                value = _mean(known)
                text = formats.percent(value) if measure == "KV usage" else formats.figures(value)
                rows.append((index * width - now_s, min((index + 1) * width - now_s, 0.0), name, value, text))
    return pd.DataFrame(rows[-MAX_CELLS:], columns=["ago_s", "until_s", "name", "value", "text"])


def dot_frame(states: Sequence[TargetState], now_s: float, shown_s: float = SHOWN_S) -> pd.DataFrame:
    """One row a scrape interval in which work was done, oldest first.

    Columns step (its number), name, ago_s, intensity, flops_per_s, prefill_tokens, decode_tokens, running, origin, age.
    """
    found = [
        (i.end_s, s.name, i) for s in states for i in recent(s, now_s, shown_s) if i.intensity and i.flops_per_s and i.bytes_per_s
    ]
    found.sort(key=lambda row: row[0])
    kept = found[-MAX_DOTS:]
    return pd.DataFrame(
        {
            "step": list(range(len(kept))),
            "name": [name for _, name, _ in kept],
            "ago_s": [end_s - now_s for end_s, _, _ in kept],
            "intensity": [float(i.intensity or 0) for _, _, i in kept],
            "flops_per_s": [float(i.flops_per_s or 0) for _, _, i in kept],
            "prefill_tokens": [float(i.prompt_tokens or 0) for _, _, i in kept],
            "decode_tokens": [float(i.output_tokens or 0) for _, _, i in kept],
            "running": [float(i.running or 0) for _, _, i in kept],
            "origin": ["derived" if i.derived else "exported" for _, _, i in kept],
            "age": ages(len(kept)),
        }
    )
