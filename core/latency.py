"""What a request's times mean, and percentiles over the newest of them.

    arrival ---- queue ----> admitted -- prefill --> first token -- gap -- gap ------- gap -- last token, end
    |<------------------- TTFT ------------------->|<-------------- (n - 1) * TPOT ---------->|
    |<---------------------------------- E2E ------------------------------------------------>|

TTFT is the time to the first token that was delivered; a later preemption does not move it. ITL is each gap
between two delivered tokens, so a preemption is one long gap. TPOT = (E2E - TTFT) / (n - 1) over the n tokens
that really came; it has no value for n < 2. E2E and TPOT are those of requests that finished; cancelled ones
count only with the tokens that they got.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from functools import partial
from operator import sub

import numpy as np
import numpy.typing as npt

from core.on_demand import PercentilesOnDemand
from core.records import RequestRecord
from core.request import FinishReason, Request
from core.snapshot import Percentiles
from core.tally import SECONDS, GrowingTally

NEWEST_REQUESTS = 1024
NEWEST_GAPS = 4096


def tpot_s(e2e_s: float, ttft_s: float | None, output_tokens: int) -> float | None:
    """(E2E - TTFT) / (output tokens - 1); None for fewer than two tokens."""
    if ttft_s is None or output_tokens < 2:
        return None
    return (e2e_s - ttft_s) / (output_tokens - 1)


def gaps_s(token_times_s: Sequence[float]) -> tuple[float, ...]:
    """Time between each output token and the one before."""
    return tuple(map(sub, token_times_s[1:], token_times_s[:-1]))


def slo_met(request: Request, ttft_s: float | None, max_itl_s: float | None) -> bool | None:
    """True if a finished request met every target that it had: TTFT, and each single gap for ITL.

    None without a target, or if its owner cancelled it; a missed deadline misses the SLO.
    """
    slo = request.slo
    if (slo.ttft_s is None and slo.itl_s is None) or request.finish_reason in (FinishReason.CANCELLED, FinishReason.REFUSED):
        return None
    if request.finish_reason is FinishReason.DEADLINE:
        return False
    in_time = slo.ttft_s is None or (ttft_s is not None and ttft_s <= slo.ttft_s)
    steady = slo.itl_s is None or max_itl_s is None or max_itl_s <= slo.itl_s
    return in_time and steady


def request_record(request: Request) -> RequestRecord:
    """The record of an ended request.

    Raises:
        ValueError: if it has not ended.
    """
    if request.finished_time_s is None:
        raise ValueError(f"request {request.request_id} is {request.status}; only an ended one has a record")
    arrival = request.arrival_time_s
    e2e = request.finished_time_s - arrival
    first = request.first_token_time_s
    ttft = None if first is None else first - arrival
    gaps = gaps_s(request.token_times_s)
    longest = max(gaps, default=None)
    return RequestRecord(
        request_id=request.request_id,
        tenant=request.tenant,
        priority=request.priority,
        arrival_s=arrival,
        finished_s=request.finished_time_s,
        finish_reason=str(request.finish_reason or ""),
        prompt_tokens=request.num_prompt_tokens,
        output_tokens=request.num_output_tokens,
        cached_tokens=request.num_cached_tokens,
        num_preemptions=request.num_preemptions,
        queue_s=None if request.admitted_time_s is None else request.admitted_time_s - arrival,
        ttft_s=ttft,
        tpot_s=tpot_s(e2e, ttft, request.num_output_tokens),
        e2e_s=e2e,
        max_itl_s=longest,
        preempted_s=math.fsum(end - start for start, end in request.preempted_spans_s),
        slo_ttft_s=request.slo.ttft_s,
        slo_itl_s=request.slo.itl_s,
        slo_met=slo_met(request, ttft, longest),
        itl_s=gaps,
    )


def percentiles(values: npt.NDArray[np.float64]) -> Percentiles:
    """p50, p95, p99 with linear interpolation between the closest ranks (numpy's default)."""
    count = len(values)
    if not count:
        return Percentiles()
    places = [(count - 1) * share for share in (0.50, 0.95, 0.99)]
    ranks = sorted({k for place in places for k in (math.floor(place), math.ceil(place))})
    parted = np.partition(values, ranks)
    found = []
    for place in places:
        low, high = parted[math.floor(place)], parted[math.ceil(place)]
        found.append(float(low + (high - low) * (place - math.floor(place))))
    return Percentiles(count, *found)


class Newest:
    """The newest `size` values, and their percentiles (computed again only after a change)."""

    __slots__ = ("_at", "_cached", "_count", "_values")

    def __init__(self, size: int) -> None:
        self._values = np.zeros(size)
        self._count = 0
        self._at = 0
        self._cached: Percentiles | None = Percentiles()

    def __len__(self) -> int:
        return self._count

    def extend(self, values: Iterable[float]) -> None:
        """Take values in; the oldest leave."""
        self.extend_array(np.fromiter(values, float))

    def extend_array(self, new: npt.NDArray[np.float64]) -> None:
        """As `extend`."""
        size = len(self._values)
        new = new[-size:]
        if not len(new):
            return
        head = min(size - self._at, len(new))
        self._values[self._at : self._at + head] = new[:head]
        self._values[: len(new) - head] = new[head:]
        self._at = (self._at + len(new)) % size
        self._count = min(self._count + len(new), size)
        self._cached = None

    def add(self, value: float, times: int) -> None:
        """Take the same value in `times` times."""
        size = len(self._values)
        end = self._at + times
        if end > size or times < 1:
            self.extend_array(np.full(max(times, 0), value))
            return
        self._values[self._at : end] = value
        self._at = end % size
        self._count = min(self._count + times, size)
        self._cached = None

    def percentiles(self) -> Percentiles:
        """Percentiles of the values held, computed when somebody reads one."""
        if self._cached is None:
            self._cached = PercentilesOnDemand(self._count, partial(percentiles, self._values[: self._count].copy()))
        return self._cached


class LatencyTracker:
    """Latencies as they happen: TTFT and ITL at each token, TPOT and E2E at the end of a request."""

    def __init__(self) -> None:
        self.ttft = Newest(NEWEST_REQUESTS)
        self.itl = Newest(NEWEST_GAPS)
        self.tpot = Newest(NEWEST_REQUESTS)
        self.e2e = Newest(NEWEST_REQUESTS)
        self.all_ttft = GrowingTally(SECONDS)
        self.all_itl = GrowingTally(SECONDS)
        self._arrival_s: dict[str, float] = {}  # until the first token
        self._last_token_s: dict[str, float] = {}
        self._group: tuple[str, ...] = ()  # whose latest token came at _group_s, whatever _last_token_s says
        self._group_s = 0.0

    def on_arrival(self, request_id: str, arrival_s: float) -> None:
        """A request was accepted."""
        self._arrival_s[request_id] = arrival_s

    def on_step_tokens(self, request_ids: tuple[str, ...], time_s: float) -> None:
        """Take one token of each request, all delivered at once; as `on_tokens`, but the same batch again costs no look-up."""
        if request_ids and request_ids == self._group:
            self.itl.add(time_s - self._group_s, len(request_ids))
            self.all_itl.add(time_s - self._group_s, len(request_ids))
        else:
            self.on_tokens([(request_id, time_s) for request_id in request_ids])
            self._group = request_ids
        self._group_s = time_s

    def on_tokens(self, tokens: Iterable[tuple[str, float]]) -> None:
        """Take delivered tokens: (request id, time)."""
        self._dissolve()
        last = self._last_token_s
        gaps: list[float] = []
        firsts: list[float] = []
        for request_id, time_s in tokens:
            before = last.get(request_id)
            if before is not None:
                gaps.append(time_s - before)
            elif request_id in self._arrival_s:
                firsts.append(time_s - self._arrival_s.pop(request_id))
            last[request_id] = time_s
        if gaps:
            self.itl.extend(gaps)
            self.all_itl.extend(gaps)
        if firsts:
            self.ttft.extend(firsts)
            self.all_ttft.extend(firsts)

    def on_end(self, record: RequestRecord) -> None:
        """Take an ended request."""
        self._dissolve()
        self._last_token_s.pop(record.request_id, None)
        self._arrival_s.pop(record.request_id, None)
        if record.finish_reason in (FinishReason.CANCELLED, FinishReason.DEADLINE, FinishReason.REFUSED):
            return
        self.e2e.extend((record.e2e_s,))
        if record.tpot_s is not None:
            self.tpot.extend((record.tpot_s,))

    def _dissolve(self) -> None:
        """Write down when each request of the group had its latest token."""
        self._last_token_s.update(dict.fromkeys(self._group, self._group_s))
        self._group = ()
