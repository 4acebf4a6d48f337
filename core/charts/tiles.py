"""The six figures that matter, each with the line that led to it.

    TOKENS/S        TTFT            ITL             FULL-BATCH SHARE    MBU           HOST COST
    412             120 ms p50      31 ms p50       97.1 %              61.3 %        1.92 ms a step
    ~~~/\\~~        340 ms p95      55 ms p95       ~~~~~~              ~~~           ~~~

The value comes from the snapshot (its window is stated); the line is computed from the records of the last steps,
thinned to at most 48 points, so tile and line agree but the line is finer.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from core.charts import formats
from core.records import RequestRecord, StepRecord
from core.snapshot import EngineSnapshot, Percentiles

POINTS = 48


@dataclass(frozen=True, slots=True)
class Tile:
    """One tile as text and numbers.

    Attributes:
        line: None where a bucket has no value (the line has a gap there).
        floor, ceiling: range of the line; None follows the data.
    """

    key: str
    label: str
    value: str
    note: str
    help: str
    line: tuple[float | None, ...]
    floor: float | None = 0.0
    ceiling: float | None = None


def buckets(history: Sequence[StepRecord], points: int = POINTS) -> list[Sequence[StepRecord]]:
    """Cut the history into at most `points` runs of equally many steps; the oldest odd ones are left out."""
    if not history:
        return []
    size = max(-(-len(history) // points), 1)
    whole = len(history) // size * size
    kept = history[len(history) - whole :]
    return [kept[i : i + size] for i in range(0, whole, size)]


def _line(history: Sequence[StepRecord], value: Callable[[Sequence[StepRecord]], float | None]) -> tuple[float | None, ...]:
    return tuple(value(bucket) for bucket in buckets(history))


def _tokens_per_s(bucket: Sequence[StepRecord]) -> float | None:
    span = bucket[-1].start_s + bucket[-1].duration_s - bucket[0].start_s
    return sum(r.output_tokens for r in bucket) / span if span > 0 else None


def _gap_s(bucket: Sequence[StepRecord]) -> float | None:
    gaps = sorted(r.duration_s for r in bucket if r.decode_requests)
    return gaps[len(gaps) // 2] if gaps else None


def _full_share(bucket: Sequence[StepRecord]) -> float | None:
    queued = [r.full_batch for r in bucket if r.num_waiting + r.num_preempted > 0]
    return sum(queued) / len(queued) if queued else None


def _host_us(bucket: Sequence[StepRecord]) -> float | None:
    return 1e6 * sum(r.host_s for r in bucket) / len(bucket)


def _useful_rate(bucket: Sequence[StepRecord]) -> float | None:
    span = sum(r.duration_s for r in bucket)
    return sum(r.useful_bytes for r in bucket) / span if span > 0 else None


def _ttft_line(recent: Sequence[RequestRecord]) -> tuple[float | None, ...]:
    """TTFT of the latest requests in order of their end; `recent` is newest first."""
    return tuple(r.ttft_s for r in reversed(recent[:POINTS]) if r.ttft_s is not None)


def _p95(values: Percentiles) -> str:
    return f"p95 {formats.seconds(values.p95)}, p99 {formats.seconds(values.p99)}"


def tiles(snapshot: EngineSnapshot, history: Sequence[StepRecord]) -> tuple[Tile, ...]:
    """The six tiles of one picture."""
    k = snapshot.kpis
    window = formats.seconds(k.window_s)
    ended = f"last {len(snapshot.recent_requests)} ended requests"
    return (
        Tile(
            "tokens_per_s",
            "Output tokens/s",
            formats.figures(k.output_tokens_per_s),
            f"{formats.rate(k.total_tokens_per_s, 'tok')} with prompts",
            f"Output tokens of all requests over the last {window} of engine time.",
            _line(history, _tokens_per_s),
        ),
        Tile(
            "ttft",
            "TTFT p50",
            formats.seconds(k.ttft.p50),
            _p95(k.ttft),
            f"Time to first token from arrival, queue included. Line: {ended}.",
            _ttft_line(snapshot.recent_requests),
        ),
        Tile(
            "itl",
            "ITL p50",
            formats.seconds(k.itl.p50),
            _p95(k.itl),
            "Gap between two output tokens of a request. Line: median step time of steps that decode.",
            _line(history, _gap_s),
        ),
        Tile(
            "full_batch",
            "Full-batch share",
            formats.percent(k.full_batch_share),
            f"mean batch {formats.figures(k.mean_batch)}",
            "Of the steps in which requests waited: how many ran the largest batch that KV memory allows. At 0 % something else"
            " bounds the batch: seats, the token budget or a quota.",
            _line(history, _full_share),
            0.0,
            1.0,
        ),
        Tile(
            "mbu",
            "MBU",
            formats.percent(k.mbu),
            f"MFU {formats.percent(k.mfu)}" + (f", of {k.mbu_ceiling}" if k.mbu_ceiling else ""),
            "Useful bytes over time times the measured bandwidth. Line: useful bytes/s by step.",
            _line(history, _useful_rate),
        ),
        Tile(
            "host",
            "Host cost",
            formats.si(k.host_us * 1e-6, "s") if history else formats.NONE,
            f"a step, {formats.percent(k.host_share)} of it" if history else "a step",
            "Everything in a step that is not the forward pass: schedule, prepare, sample, transfer, update.",
            _line(history, _host_us),
        ),
    )
