"""Were the targets met, and how many requests a second met them?

attainment = requests that met every target / finished requests          goodput = requests that met them / s

A request meets a target for TTFT with its first token, one for ITL with its longest gap. What its owner cancelled does
not count; a missed deadline counts as not met.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from core.records import RequestRecord
from core.request import FinishReason

_NOT_COUNTED = frozenset({FinishReason.CANCELLED.value, FinishReason.REFUSED.value})


@dataclass(frozen=True, slots=True)
class Attainment:
    """Outcome of a set of requests.

    Attributes:
        counted: requests that ended and count.
        met: those that met every target.
        span_s: time between the first and the last of their ends; 0 for fewer than two.
    """

    counted: int
    met: int
    span_s: float

    @property
    def share(self) -> float | None:
        """Met / counted, 0 to 1; None if nothing counts."""
        return self.met / self.counted if self.counted else None

    @property
    def goodput_per_s(self) -> float | None:
        """Requests a second that met every target; None without a span."""
        return self.met / self.span_s if self.span_s > 0 else None


def counts(record: RequestRecord) -> bool:
    """True for a request that says something about the service: it was not cancelled by its owner, nor refused."""
    return record.finish_reason not in _NOT_COUNTED


def meets(record: RequestRecord, ttft_s: float | None, itl_s: float | None) -> bool:
    """True if a request met both targets; None is no target."""
    if record.finish_reason == FinishReason.DEADLINE.value:
        return False
    in_time = ttft_s is None or (record.ttft_s is not None and record.ttft_s <= ttft_s)
    return in_time and (itl_s is None or record.max_itl_s is None or record.max_itl_s <= itl_s)


def attainment(records: Iterable[RequestRecord], ttft_s: float | None, itl_s: float | None) -> Attainment:
    """Judge ended requests by two targets, s."""
    counted = [r for r in records if counts(r)]
    ends = [r.finished_s for r in counted]
    span_s = max(ends) - min(ends) if len(ends) > 1 else 0.0
    return Attainment(len(counted), sum(meets(r, ttft_s, itl_s) for r in counted), span_s)


def worst(records: Sequence[RequestRecord], by: str, most: int) -> list[RequestRecord]:
    """The requests with the largest value of a field such as "ttft_s", largest first; those without a value are left out."""
    known = [r for r in records if counts(r) and getattr(r, by) is not None]
    return sorted(known, key=lambda r: (-float(getattr(r, by)), r.request_id))[:most]
