"""A predicted run beside another one in words: one line that says what changed, and by how much.

"3.1× throughput, bound moves from KV memory to seats"
"""

from __future__ import annotations

from core.sim_result import SimulationResult

SAME = 0.03
"""Figures closer than this are called the same: a prediction is not better than that."""

FIGURES: tuple[tuple[str, str, str], ...] = (
    ("output_tokens_per_s", "Output", "tok/s"),
    ("requests_per_s", "Requests", "req/s"),
    ("goodput_per_s", "Goodput in SLO", "req/s"),
    ("ttft_p50", "TTFT p50", "s"),
    ("ttft_p95", "TTFT p95", "s"),
    ("ttft_p99", "TTFT p99", "s"),
    ("itl_p50", "ITL p50", "s"),
    ("itl_p95", "ITL p95", "s"),
    ("itl_p99", "ITL p99", "s"),
    ("e2e_p50", "E2E p50", "s"),
    ("e2e_p95", "E2E p95", "s"),
    ("e2e_p99", "E2E p99", "s"),
    ("mean_batch", "Mean batch", "rows"),
    ("full_batch_share", "Full-batch share", "%"),
    ("preemptions", "Preemptions", ""),
    ("peak_kv_usage", "Peak KV use", "%"),
    ("prefix_hit_rate", "Prefix hits", "%"),
    ("intensity", "Intensity", "FLOP/B"),
    ("mfu", "MFU", "%"),
    ("mbu", "MBU", "%"),
)
"""(figure of a result, label, unit), in the order in which a page shows them."""

BETTER = {"output_tokens_per_s": 1, "requests_per_s": 1, "goodput_per_s": 1, "preemptions": -1, "prefix_hit_rate": 1} | {
    f"{kind}_{rank}": -1 for kind in ("ttft", "itl", "e2e") for rank in ("p50", "p95", "p99")
}
"""1: more is better, -1: less is better; a figure that is not here is neither."""


def ratio(base: SimulationResult, new: SimulationResult, name: str) -> float | None:
    """New / base of a figure; None where either has no value or the base is 0."""
    a, b = base.figure(name), new.figure(name)
    return b / a if a and b is not None else None


def bound(result: SimulationResult) -> str:
    """What bound the batch for most of the time; "load" for a run without a step."""
    return result.bound_shares[0][0] if result.bound_shares else "load"


def _times(value: float) -> str:
    return f"{value:.2g}×" if value < 10 else f"{value:.0f}×"


def _change(value: float) -> str:
    return f"{_times(value)}" if value >= 2 or value <= 0.5 else f"{100 * (value - 1):+.0f} %"


def headline(base: SimulationResult, new: SimulationResult) -> str:
    """One line: throughput or, where that is the same, latency; then what bounds the batch."""
    parts = []
    rate = ratio(base, new, "output_tokens_per_s")
    if rate is None:
        return "No output to compare"
    if abs(rate - 1) > SAME:
        parts.append(f"{_change(rate)} throughput")
    else:
        parts.append("Same throughput")
        moved = [(name, ratio(base, new, f"{name.lower()}_p50")) for name in ("TTFT", "ITL")]
        parts += [f"{name} p50 {_change(r)}" for name, r in moved if r is not None and abs(r - 1) > SAME]
    before, after = bound(base), bound(new)
    if before != after:
        parts.append(f"bound moves from {before} to {after}")
    else:
        parts.append(f"still bound by {after}")
    more = new.preemptions - base.preemptions
    if more and max(new.preemptions, base.preemptions) > 1:
        parts.append(f"{abs(more)} {'more' if more > 0 else 'fewer'} preemptions")
    return ", ".join(parts)
